"""The copy of a data set on the Hugging Face Hub, kept and read by the `datasets` library."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from zoo.errors import BadData
from zoo.images.dataset import Dataset, SplitName
from zoo.images.index import BlockCache, Encoded, Index
from zoo.images.labels import class_indices, class_names, label_name
from zoo.images.parquet import IMAGE_COLUMNS

ROWS = 256  # of a block
T = TypeVar("T")


def hub_copy(row: Dataset, split: SplitName) -> Index:
    """The split of `row.hub`, downloaded once. Raises BadData if it cannot be read."""
    return _answered(row.hub, lambda: _opened(row.hub, split, label=row.label))


def hub_splits(address: str, *, image: str = "", label: str = "") -> dict[str, Index]:
    """The splits of ORG/NAME or ORG/NAME@REVISION. Raises BadData if it cannot be read."""

    def splits() -> dict[str, Index]:
        import datasets

        name, _, revision = address.partition("@")
        names = datasets.get_dataset_split_names(name, revision=revision or None)
        known = {"train": "train", "test": "test", "validation": "val", "valid": "val", "val": "val"}
        found = {known.get(each, each): _opened(address, each, image=image, label=label) for each in names}
        return found if "train" in found or len(found) > 1 else {"all": next(iter(found.values()))}

    return _answered(address, splits)


def _answered(address: str, ask: Callable[[], T]) -> T:
    """What `ask` returns. Raises BadData, which says what to do."""
    where = f"{address} on the Hub"
    try:
        return ask()
    except BadData:
        raise
    except Exception as error:  # `datasets`, its readers and its network raise anything at all
        then = "Is there a network? A local copy works, too: pass its folder as data"
        raise BadData(f"{where}: cannot be read ({error}). {then}") from error


def _opened(address: str, split: str, *, image: str = "", label: str = "") -> Index:
    import datasets

    where = f"{address} on the Hub"
    name, _, revision = address.partition("@")
    table = datasets.load_dataset(name, split=split, revision=revision or None)
    able = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    image = image or next((each for each in IMAGE_COLUMNS if each in able), able[0] if len(able) == 1 else "")
    if image not in able:
        raise BadData(f"{where}: one image column is needed; it has {', '.join(able) or 'none'}")
    marked = label_name(list(table.features), label)
    classes = tuple(getattr(table.features[marked], "names", None) or ()) if marked else ()
    marks = list(table[marked]) if marked else [None] * len(table)
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
        [(f"{address}@{split}", len(table))],
        lambda place: Encoded(f"{name}#{place}", held(place // ROWS)[place % ROWS]),
    )
