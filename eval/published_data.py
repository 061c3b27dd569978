"""Whether images are those that a data set's name stands for: their number, classes, and, where known, pixels."""

import hashlib
from typing import NamedTuple

import numpy as np

from zoo.images.dataset import dataset_row
from zoo.images.image_set import ImageSet


class Published(NamedTuple):
    """A data set as its authors split it for evaluation."""

    n_train: int
    n_test: int
    contents: tuple[str, str] | None = None  # `content_of` train and test, where a whole copy was at hand


# Sizes: the data sets' own papers and, for transfer, Kornblith et al. 2019, table 1.
PUBLISHED = {
    "cifar10": Published(50_000, 10_000),
    "cifar100": Published(50_000, 10_000, ("797829d0bda873c06e1fe5773e446be8", "e4543a4d748b98179c5904fc0df983f4")),
    "stl10": Published(5_000, 8_000),
    "svhn": Published(73_257, 26_032),
    "in1k": Published(1_281_167, 50_000),
    "food101": Published(75_750, 25_250),
    "cars": Published(8_144, 8_041),
    "sun397": Published(19_850, 19_850),
    "dtd": Published(3_760, 1_880),
    "aircraft": Published(6_667, 3_333),
    "pets": Published(3_680, 3_669),
    "caltech101": Published(3_060, 6_084),
    "flowers102": Published(2_040, 6_149),
    "voc2007": Published(5_011, 4_952),
}


def difference_from_published(name: str, train: ImageSet, test: ImageSet) -> str:
    """What differs from the published data set `name`, as half a sentence; "" if nothing does, or nothing is known."""
    wanted, classes = PUBLISHED.get(name), dataset_row(name).classes
    different = []
    named = len(set(train.classes)) if train.labels.ndim == 1 else classes
    if named != classes:
        different.append(f"{named} classes, not {classes}")
    if wanted is not None:
        counts = {"train": (len(train), wanted.n_train), "test": (len(test), wanted.n_test)}
        different += [f"{n:,} {split} images, not {known:,}" for split, (n, known) in counts.items() if n != known]
        if not different and wanted.contents and train.in_memory and test.in_memory:
            parts = zip(("train", "test"), (train, test), wanted.contents, strict=True)
            different += [f"other {split} images" for split, part, known in parts if content_of(part) != known]
    return ", ".join(different)


def content_of(images: ImageSet) -> str:
    """Hex digest of all pixels and labels, whatever their order."""
    pairs = zip(images.hashes(), images.labels, strict=True)
    in_order = sorted(digest + np.int64(label).tobytes() for digest, label in pairs)
    return hashlib.sha256(b"".join(in_order)).hexdigest()[:32]
