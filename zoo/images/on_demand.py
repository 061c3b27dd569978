"""Pixels that are decoded when they are asked for: a split too large for one array looks like one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zoo.errors import BadData, BadImage
from zoo.images.dataset import Dataset, SplitName
from zoo.images.pixels import preprocess
from zoo.images.shards import Shards, open_shards
from zoo.images.split import Split

THREADS = 4


@dataclass(frozen=True, eq=False)
class OnDemand:
    """(n, S, S, 3) uint8 of encoded images; an index decodes one, a slice or an array of indices those alone."""

    shards: Shards
    image_size: int  # S
    crop: float = 1.0  # share of the shorter side that is kept, (0, 1]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.shards), self.image_size, self.image_size, 3

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        wanted = np.arange(len(self))[index]
        if wanted.ndim == 0:
            return self._decode(int(wanted))
        with ThreadPoolExecutor(THREADS) as threads:
            pixels = list(threads.map(self._decode, wanted.tolist()))
        return np.stack(pixels) if pixels else np.zeros((0, *self.shape[1:]), np.uint8)

    def part(self, rows: np.ndarray) -> "OnDemand":
        """The images `rows`, still encoded."""
        whole = self.shards
        some = replace(whole, rows=whole.rows[rows], labels=whole.labels[rows], block=whole.block[rows])
        return replace(self, shards=some)

    def encoded(self, index: int) -> bytes:
        """The picture's bytes as they are stored."""
        _, picture = self.shards.read(int(self.shards.rows[index]))
        return picture.read_bytes() if isinstance(picture, Path) else picture

    def _decode(self, index: int) -> np.ndarray:
        name, picture = self.shards.read(int(self.shards.rows[index]))
        try:
            return preprocess(picture, image_size=self.image_size, crop=self.crop)
        except (BadImage, OSError) as error:
            raise BadData(f"{name} cannot be decoded: {error}. Remove it, or download it again") from error


def open_on_demand(name: str, split: SplitName, row: Dataset, data: str) -> Split:
    """As `zoo.images.split.open_split`; nothing is decoded yet. Raises what `open_shards` raises."""
    shards = open_shards(name, split, data)
    if max(len(shards.classes), shards.labels.max() + 1) > row.classes:
        raise BadData(f"{data}: {len(shards.classes)} classes, allowed {row.classes}; is it another data set?")
    classes = shards.classes or tuple(map(str, range(row.classes)))
    return Split(name, split, OnDemand(shards, row.image_size), shards.labels, classes, shards.sha256)
