"""The splits of a data set of the user's own, in whatever format it is."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zoo.errors import BadData
from zoo.files import locked, write_bytes, zoo_home
from zoo.images.archive import ARCHIVES, unpacked
from zoo.images.arrays import array_splits
from zoo.images.coco import coco_files, coco_splits
from zoo.images.dataset import SplitName
from zoo.images.folder import folders_of_classes, own_images
from zoo.images.hub_copy import hub_splits
from zoo.images.index import Index, content_of
from zoo.images.parquet import parquet_shards
from zoo.images.pixel_cache import state_of
from zoo.images.registry import HUB
from zoo.images.table import table_splits
from zoo.images.tar import tar_shards
from zoo.images.voc import voc_images
from zoo.images.walk import suffix_of, walk

SPLIT_FOLDERS = ("train", "test", "val", "valid", "validation")
TABLES = (".csv", ".tsv")
TEST_SHARE = 0.2  # of each class, where a data set has no test split
DRAWN = f"{TEST_SHARE:.0%} of each class, by the hashes of their files"


def own_splits(place: str, *, image: str = "", label: str = "") -> dict[str, Index]:
    """The splits that a data set has, by their names; "all" where it has none.

    Args:
        place: a folder of class folders, with or without folders train and test above them; a flat folder; a CSV or
            Parquet table of files and labels beside the images, or the folder with one such CSV; Parquet shards with
            the pictures; WebDataset tars; an .npz file or a folder of .npy files; a folder with COCO annotations or in
            VOC layout; an archive of such a folder; or hf://ORG/NAME[@REVISION].
        image: the column of pictures or files; "" finds it by its name.
        label: the column of labels; "" finds it by its name.
    """
    if place.startswith(HUB):
        return hub_splits(place.removeprefix(HUB), image=image, label=label)
    path = Path(place)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.is_file() and suffix_of(path.name) in (".npz", ".npy"):
        return array_splits(path)
    if path.is_file() and suffix_of(path.name) in TABLES:
        return table_splits(path, file_column=image, label_column=label)
    if path.is_file() and suffix_of(path.name) == ".parquet":
        return _parquet_file(path, image, label)
    if path.is_file() and not path.name.lower().endswith(ARCHIVES):
        raise BadData(
            f"{path}: not a data set; allowed: a folder, an archive of one ({', '.join(ARCHIVES)}), .csv, .tsv, "
            ".parquet, .npz, .npy"
        )
    return _folder(unpacked(path), image, label)


def own_index(place: str, split: SplitName, *, image: str = "", label: str = "") -> tuple[Index, str]:
    """One split, and how it was drawn if the data set has no test split: "" if it has one.

    Without labels, or with one image of each class, all images are for training. Raises BadData for their test split.
    """
    found = own_indices(place, image=image, label=label)
    if split not in found.indices:
        raise BadData(f"{place}: no {split} split, and none can be drawn: {found.drawn}")
    return found.indices[split], found.drawn if "test" in found.indices else ""


class Splits(NamedTuple):
    """The train split of a data set, and its test split unless it can have none."""

    indices: dict[str, Index]
    drawn: str  # how test was drawn, or why it cannot be; "" where the data set has one


def own_indices(place: str, *, image: str = "", label: str = "") -> Splits:
    """Train and test of `own_splits`. Validation images are the test split where there is no other."""
    found = own_splits(place, image=image, label=label)
    if "test" not in found and "val" in found:
        found["test"] = found["val"]
    train = found.get("train", found.get("all"))
    if train is None:
        raise BadData(f"{place}: no train split; it has {', '.join(found)}")
    if "test" in found:
        return Splits({"train": train, "test": found["test"]}, "")
    if not (train.labels >= 0).any():
        return Splits({"train": train}, "its images have no labels")
    test = _is_test(train, place)
    if not test.any():
        return Splits({"train": train}, "each class has one image")
    mine = {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    return Splits({split: part_of(train, places, split) for split, places in mine.items()}, DRAWN)


def files_of(place: str) -> Path | None:
    """The folder or file whose state decides what a data set holds; None on the Hub."""
    if place.startswith(HUB):
        return None
    path = Path(place)
    if path.is_file() and suffix_of(path.name) in (*TABLES, ".parquet"):
        return path.resolve().parent
    if path.is_file() and path.name.lower().endswith(ARCHIVES):
        return unpacked(path)
    return path.resolve()


def part_of(index: Index, places: np.ndarray, what: str) -> Index:
    """The pictures at `places` (n,) of an index."""
    facts = [*index.facts, (what, len(places))]
    read = index.read
    return replace(
        index,
        labels=index.labels[places],
        blocks=index.blocks[places],
        facts=facts,
        read=lambda i: read(int(places[i])),
    )


def content_hashes(index: Index, place: str) -> np.ndarray:
    """(n,) 16 bytes each, of the encoded pictures. They are kept as long as no file changes."""
    files = files_of(place)
    state = state_of(files) if files else []
    key = hashlib.sha256(json.dumps([index.digest, state]).encode()).hexdigest()[:16]
    file = zoo_home() / "cache" / "hashes" / key
    with locked(file.parent):
        if not file.is_file():
            pictures = (content_of(index.read(i).picture) for i in range(len(index)))
            write_bytes(file, b"".join(hashlib.blake2b(each, digest_size=16).digest() for each in pictures))
    return np.frombuffer(file.read_bytes(), "S16")


def _is_test(index: Index, place: str) -> np.ndarray:
    """(n,) bool: TEST_SHARE of each class, equal pictures all on one side. A class of one image stays in train."""
    hashes = content_hashes(index, place)
    first = index.labels if index.labels.ndim == 1 else index.labels.argmax(1)
    test = np.zeros(len(index), bool)
    for label in np.unique(first):
        mine = np.flatnonzero(first == label)
        distinct = np.unique(hashes[mine])
        share = max(1, round(TEST_SHARE * len(distinct))) if len(distinct) > 1 else 0
        test[mine] = np.isin(hashes[mine], distinct[:share])
    return test


def _folder(folder: Path, image: str, label: str) -> dict[str, Index]:
    """The splits of a folder, in the first of the formats that it has."""
    if (folder / "ImageSets" / "Main").is_dir() and (folder / "Annotations").is_dir():
        return {split: voc_images(folder, split) for split in ("train", "test")}
    if coco_files(folder):
        return coco_splits(folder)
    files = walk(folder).files
    for suffix, read in ((".parquet", partial(parquet_shards, image=image)), (".tar", _tars)):
        shards = [path for path in files if suffix_of(path.name) == suffix]
        if shards and not (suffix == ".parquet" and len(shards) == 1 and _names_files(folder / shards[0], image)):
            return _shards(folder, shards, read, label)
    tables = [path for path in files if suffix_of(path.name) in (*TABLES, ".parquet") and len(path.parts) == 1]
    if len(tables) == 1:
        return table_splits(folder / tables[0], file_column=image, label_column=label)
    if len(tables) > 1:
        raise BadData(f"{folder}: which table has the labels: {', '.join(map(str, tables))}? Give its path instead")
    if any(suffix_of(path.name) == ".npy" for path in files):
        return array_splits(folder)
    if any(suffix_of(path.name) == ".npz" for path in files):
        (first, *more) = [path for path in files if suffix_of(path.name) == ".npz"]
        if not more:
            return array_splits(folder / first)
    splits = [name for name in SPLIT_FOLDERS if (folder / name).is_dir()]
    if "train" in splits:
        found = {name: folders_of_classes(folder, name, splits) for name in splits}
        return {"val" if name.startswith("val") else name: index for name, index in found.items()}
    return {"all": own_images(folder)}


def _shards(folder: Path, paths: list[Path], read: Callable[..., Index], label: str) -> dict[str, Index]:
    by_split: dict[str, list[Path]] = {}
    for path in paths:
        words = {*path.parts[:-1], *path.stem.replace("_", "-").replace(".", "-").split("-")}
        split = next((name for name in SPLIT_FOLDERS if name in words), "all")
        by_split.setdefault("val" if split.startswith("val") else split, []).append(folder / path)
    found = {}
    for split, mine in by_split.items():
        siblings = [path for other, theirs in by_split.items() if other != split for path in theirs]
        found[split] = read(mine, label, siblings=siblings)
    return found


def _tars(paths: list[Path], _: str, *, siblings: list[Path]) -> Index:
    return tar_shards(paths, siblings=siblings)


def _parquet_file(path: Path, image: str, label: str) -> dict[str, Index]:
    if _names_files(path, image):
        return table_splits(path, file_column=image, label_column=label)
    return {"all": parquet_shards([path], label, image=image)}


def _names_files(path: Path, image: str) -> bool:
    """Whether a Parquet file names picture files rather than holding pictures."""
    from pyarrow import ArrowException, types
    from pyarrow.parquet import read_schema

    try:
        schema = read_schema(path)
    except (ArrowException, OSError):
        return False  # whoever reads it says what is wrong
    mine = [column for column in schema if not image or column.name == image]
    return all(not types.is_struct(each.type) and not types.is_binary(each.type) for each in mine)
