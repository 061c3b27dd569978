"""Parquet shards with encoded pictures and labels, as the Hub has them. A row group is a block."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import BadData
from zoo.images.index import BlockCache, Encoded, Index
from zoo.images.labels import class_indices, class_names, label_name

# Columns that hold the pictures of a data set, the likeliest first.
IMAGE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes")


def parquet_shards(paths: Sequence[Path], label: str, *, siblings: Sequence[Path] = (), image: str = "") -> Index:
    """The rows of all `paths`, in order.

    Args:
        paths: of one split.
        label: the column of labels; where it is missing, the likeliest one is taken.
        image: the column of pictures; "" finds it by `picture_column`.
        siblings: the shards of the other splits, so that class names mean the same in all.

    Raises BadData for a file that is damaged, has no column of pictures or several, and for labels of no class.
    """
    from pyarrow.parquet import ParquetFile

    groups: list[tuple[Path, int, str, int]] = []  # shard, number in it, image column, first row
    counts: list[int] = []
    marks: list[Any] = []
    classes: tuple[str, ...] = ()
    for path in paths:
        with _sound(path), ParquetFile(path) as file:
            meta, pictures = file.metadata, image or picture_column(file.schema_arrow, str(path))
            _check_columns(file.schema_arrow.names, [image, label if image else ""], path)
            column = label_name(file.schema_arrow.names, label)
            classes = classes or _stored_names(file.schema_arrow, column)
            sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
            firsts = np.cumsum([0, *sizes])
            groups += [(path, group, pictures, int(firsts[group])) for group in range(len(sizes))]
            counts += sizes
            marks += file.read([column])[column].to_pylist() if column else [None] * meta.num_rows
    starts = np.cumsum([0, *counts])
    if not classes and any(isinstance(mark, str) for mark in marks):
        classes = class_names([*marks, *(mark for path in siblings for mark in _marks(path, label))])

    def load(group: int) -> list[bytes]:
        path, number, column, _ = groups[group]
        with _sound(path), ParquetFile(path) as file:
            cells = file.read_row_group(number, [column])[column].to_pylist()
        if len(cells) != counts[group]:
            raise BadData(f"{path}: has been replaced by another file since it was opened. Start again")
        return [bytes_of(cell) or b"" for cell in cells]

    held = BlockCache(load)

    def read(place: int) -> Encoded:
        group = int(np.searchsorted(starts, place, side="right")) - 1
        path, _, _, first = groups[group]
        within = place - int(starts[group])
        return Encoded(f"{path.name}#{first + within}", held(group)[within])

    facts = [(path.name, path.stat().st_size) for path in paths]
    blocks = np.repeat(np.arange(len(groups)), counts)
    return Index(class_indices(marks, classes, str(paths[0].parent)), classes, blocks, facts, read)


def picture_column(schema: Any, where: str) -> str:
    """The column of encoded pictures of an Arrow schema.

    The likeliest name of IMAGE_COLUMNS, else the only column that can hold pictures. Raises BadData if there is none,
    or several without a likeliest one.
    """
    able = [column.name for column in schema if _holds_bytes(column.type)]
    lower = {name.lower(): name for name in reversed(able)}
    likeliest = next((lower[name] for name in IMAGE_COLUMNS if name in lower), None)
    if likeliest or len(able) == 1:
        return likeliest or able[0]
    if able:
        raise BadData(f"{where}: which column holds the images: {', '.join(able)}? Name it `image`")
    held = ", ".join(f"{column.name} ({column.type})" for column in schema)
    raise BadData(f"{where}: no image column, of bytes or of the Hub's struct of bytes and path; it has {held}")


def _check_columns(names: Sequence[str], wanted: Sequence[str], path: Path) -> None:
    missing = next((name for name in wanted if name and name not in names), None)
    if missing:
        raise BadData(f"{path}: no column {missing}; it has {', '.join(names)}")


def bytes_of(cell: Any) -> bytes | None:
    """The encoded picture of a cell; None where there is none."""
    return cell.get("bytes") if isinstance(cell, dict) else cell


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Raises BadData where Arrow cannot read what the block asks of the file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())  # Arrow's messages have several lines
        raise BadData(f"{path}: cannot be read ({reason}). {_advice(error)}") from error


def _advice(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "Change its permissions"
    if isinstance(error, FileNotFoundError):
        return "It was there when the data set was opened; put it back and start again"
    return "Download it again"


def _marks(path: Path, label: str) -> list[Any]:
    """The labels of one shard as they are stored."""
    from pyarrow.parquet import ParquetFile

    with _sound(path), ParquetFile(path) as file:
        column = label_name(file.schema_arrow.names, label)
        return file.read([column])[column].to_pylist() if column else []


def _holds_bytes(kind: Any) -> bool:
    """Whether a cell is bytes, or a struct that has `bytes`."""
    from pyarrow import types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_bytes(kind.field("bytes").type)
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_null(kind)


def _stored_names(schema: Any, label: str | None) -> tuple[str, ...]:
    """The names that the `datasets` library wrote beside a column of class indices; () where there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()
