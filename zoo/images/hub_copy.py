"""The copy of a data set on the Hugging Face Hub, kept and read by the `datasets` library."""

from typing import Any

import numpy as np

from zoo.errors import BadData
from zoo.images.dataset import Dataset, SplitName
from zoo.images.index import BlockCache, Encoded, Index

ROWS = 256  # of a block


def hub_copy(row: Dataset, split: SplitName) -> Index:
    """The split of `row.hub`, downloaded once. Raises BadData if it cannot be read or is another data set."""
    where = f"{row.hub} on the Hub"
    try:
        return _opened(row, split, where)
    except BadData:
        raise
    except Exception as error:  # `datasets`, its readers and its network raise anything at all
        then = "Is there a network? A local copy works, too: pass its folder as data"
        raise BadData(f"{where}: cannot be read ({error}). {then}") from error


def _opened(row: Dataset, split: SplitName, where: str) -> Index:
    import datasets

    table = datasets.load_dataset(row.hub, split=split)
    image = next((name for name, kind in table.features.items() if isinstance(kind, datasets.Image)), None)
    if image is None:
        raise BadData(f"{where}: no image column among {list(table.features)}")
    label = next((name for name in (row.label, "label") if name in table.features), None)
    classes = tuple(getattr(table.features[label], "names", None) or ()) if label else ()
    marks = [-1 if value is None else value for value in table[label]] if label else [-1] * len(table)
    encoded = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))

    def load(block: int) -> list[bytes]:
        cells: list[Any] = encoded[block * ROWS : block * ROWS + ROWS][image]
        return [(cell or {}).get("bytes") or b"" for cell in cells]

    held = BlockCache(load)
    blocks = np.arange(len(table)) // ROWS
    return Index(
        np.asarray(marks, np.int64),
        classes,
        blocks,
        [(f"{row.hub}@{split}", len(table))],
        lambda place: Encoded(f"{row.hub}#{place}", held(place // ROWS)[place % ROWS]),
    )
