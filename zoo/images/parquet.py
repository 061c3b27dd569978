"""Parquet shards with encoded pictures and labels, as the Hub has them. A row group is a block."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import BadData
from zoo.images.index import BlockCache, Encoded, Index


def parquet_shards(paths: Sequence[Path], label: str) -> Index:
    """The rows of all `paths`, in order. label: the column of class indices; "label" is taken where it is missing.

    Raises BadData for a file that is damaged or holds no pictures, and for labels that are no class indices.
    """
    from pyarrow.parquet import ParquetFile

    groups: list[tuple[Path, int, str, int]] = []  # shard, number in it, image column, first row
    counts: list[int] = []
    labels: list[int] = []
    classes: tuple[str, ...] = ()
    for path in paths:
        with _sound(path), ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
            image = next((column.name for column in schema if _holds_pictures(column.type)), "")
            if not image:
                raise BadData(f"{path}: no image column (bytes, path) among {schema.names}")
            column = next((name for name in (label, "label") if name in schema.names), None)
            classes = classes or _class_names(schema, column)
            sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
            firsts = np.cumsum([0, *sizes])
            groups += [(path, group, image, int(firsts[group])) for group in range(len(sizes))]
            counts += sizes
            labels += _marks(file.read([column])[column].to_pylist(), path) if column else [-1] * meta.num_rows
    starts = np.cumsum([0, *counts])

    def load(group: int) -> list[bytes]:
        path, number, image, _ = groups[group]
        with _sound(path), ParquetFile(path) as file:
            cells = file.read_row_group(number, [image])[image].to_pylist()
        if len(cells) != counts[group]:
            raise BadData(f"{path}: has been replaced by another file since it was opened. Start again")
        return [(cell or {}).get("bytes") or b"" for cell in cells]

    held = BlockCache(load)

    def read(place: int) -> Encoded:
        group = int(np.searchsorted(starts, place, side="right")) - 1
        path, _, _, first = groups[group]
        within = place - int(starts[group])
        return Encoded(f"{path.name}#{first + within}", held(group)[within])

    facts = [(path.name, path.stat().st_size) for path in paths]
    blocks = np.repeat(np.arange(len(groups)), counts)
    return Index(np.asarray(labels, np.int64), classes, blocks, facts, read)


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Raises BadData where Arrow cannot read what the block asks of the file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())  # Arrow's messages have several lines
        raise BadData(f"{path}: cannot be read ({reason}). Download it again") from error


def _marks(column: list[Any], path: Path) -> list[int]:
    """The labels of a column, -1 where there is none."""
    wrong = next((value for value in column if not isinstance(value, int | None)), None)
    if wrong is not None:
        raise BadData(f"{path}: there is a label {wrong!r}; a label is a class index, an integer")
    return [-1 if value is None else value for value in column]


def _holds_pictures(kind: Any) -> bool:
    """Whether a cell is the Hub's struct of bytes and path."""
    from pyarrow import types

    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _class_names(schema: Any, label: str | None) -> tuple[str, ...]:
    """The names that the `datasets` library wrote beside a column of class indices; () where there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()
