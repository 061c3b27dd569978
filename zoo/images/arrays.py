"""NumPy arrays of images and labels: one .npz, or a folder of .npy files, named as MedMNIST or Keras name them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from zoo.errors import BadData
from zoo.images.index import Encoded, Index
from zoo.images.labels import class_names

# The names that the images and the labels of a split may have.
ARRAYS = {
    "train": [("train_images", "train_labels"), ("x_train", "y_train"), ("X_train", "y_train")],
    "val": [("val_images", "val_labels"), ("x_val", "y_val"), ("X_val", "y_val")],
    "test": [("test_images", "test_labels"), ("x_test", "y_test"), ("X_test", "y_test")],
    "all": [("images", "labels"), ("x", "y"), ("X", "y"), ("data", "labels"), ("arr_0", "arr_1")],
}


def array_splits(place: Path) -> dict[str, Index]:
    """The splits of an .npz file, or of a folder of .npy files.

    Images are (n, H, W), (n, H, W, 1), (n, H, W, 3) or (n, H, W, 4) uint8; labels (n,) or (n, 1) integers or names, or
    (n, C) of 0 and 1. Raises BadData.
    """
    arrays = _load(place)
    found = {}
    for split, names in ARRAYS.items():
        for images, labels in names:
            if images in arrays:
                found[split] = _index(place, images, arrays[images], arrays.get(labels))
                break
    if not found:
        raise BadData(
            f"{place}: no images among its arrays {sorted(arrays)}; name them train_images, train_labels, ..."
        )
    return {split: index for split, index in found.items() if split != "all" or len(found) == 1}


def _load(place: Path) -> Mapping[str, np.ndarray]:
    try:
        if place.is_dir():
            return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(place.glob("*.npy"))}
        with place.open("rb") as file:
            loaded: Any = np.load(file, allow_pickle=False)
            return {"images": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, BadZipFile, KeyError) as error:
        raise BadData(f"{place}: cannot be read ({error}). Save it again with numpy.savez") from error


def _index(place: Path, name: str, images: np.ndarray, labels: np.ndarray | None) -> Index:
    fine = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] in (1, 3, 4))
    if images.dtype != np.uint8 or not fine or 0 in images.shape:
        raise BadData(
            f"{place}: {name} is {images.dtype} {images.shape}; allowed: uint8 (n, H, W), or (n, H, W, C) with 1, 3 or "
            "4 channels. Scale to 0..255 and cast; choose three channels"
        )
    known, classes = _labels(place, labels, len(images))
    facts = [(f"{place.name}/{name}", int(images.nbytes))]

    def read(i: int) -> Encoded:
        return Encoded(f"{name}[{i}]", np.asarray(images[i]))

    return Index(known, classes, np.zeros(len(images), np.int64), facts, read)


def _labels(place: Path, labels: np.ndarray | None, n: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) or (n, C) int64 and the names of the classes, if they are named."""
    if labels is None:
        return np.full(n, -1, np.int64), ()
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if len(labels) != n or labels.ndim > 2:
        raise BadData(f"{place}: {n} images, but labels {labels.shape}")
    if labels.dtype.kind in "US":
        names = labels.astype(str).tolist()
        classes = class_names(names)
        return np.array([classes.index(name) for name in names], np.int64), classes
    if labels.dtype.kind not in "iub":
        raise BadData(f"{place}: labels of {labels.dtype}; allowed: integers, or class names")
    return labels.astype(np.int64), ()
