"""The copy of a data set on the Hugging Face Hub, kept and read by the `datasets` library."""

from typing import Any

import numpy as np

from zoo.errors import BadData
from zoo.images.dataset import Dataset, SplitName
from zoo.images.index import BlockCache, Encoded, Index
from zoo.images.labels import class_indices, class_names, label_name
from zoo.images.parquet import IMAGE_COLUMNS

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
    able = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    image = next((name for name in IMAGE_COLUMNS if name in able), able[0] if len(able) == 1 else None)
    if image is None:
        raise BadData(f"{where}: one image column is needed; it has {', '.join(able) or 'none'}")
    label = label_name(list(table.features), row.label)
    classes = tuple(getattr(table.features[label], "names", None) or ()) if label else ()
    marks = list(table[label]) if label else [None] * len(table)
    classes = classes or class_names(marks)
    encoded = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))

    def load(block: int) -> list[bytes]:
        cells: list[Any] = encoded[block * ROWS : block * ROWS + ROWS][image]
        return [(cell or {}).get("bytes") or b"" for cell in cells]

    held = BlockCache(load)
    blocks = np.arange(len(table)) // ROWS
    return Index(
        class_indices(marks, classes, where),
        classes,
        blocks,
        [(f"{row.hub}@{split}", len(table))],
        lambda place: Encoded(f"{row.hub}#{place}", held(place // ROWS)[place % ROWS]),
    )
