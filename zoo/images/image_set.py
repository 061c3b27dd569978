"""One split of a data set, whatever it is kept in: images in memory, or read and decoded when they are asked for."""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from PIL.Image import Image

from zoo.errors import BadData, BadImage
from zoo.images.index import Encoded, Index, content_of
from zoo.images.pixel_cache import state_of
from zoo.images.pixels import decode, fit, preprocess

THREADS = 4


@final
@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and labels of one split. `zoo.images.opening.open_images` makes one; so does `from_pixels`."""

    name: str  # of the data set
    split: str
    labels: np.ndarray  # (n,) int64, -1 where there is none; (n, C) where an image may be of several: 1, 0, -1 unknown
    classes: tuple[str, ...]
    digest: str  # of pixels and labels where images are in memory; else of names and sizes on disk, and labels
    size: int  # pixels, H = W, that `pixels` has by default
    rows: np.ndarray  # (n,) int64, what the index calls each image
    index: Callable[[], Index] | None = None  # opens the encoded pictures; None where there are pixels alone
    array: Any = None  # (n, S, S, 3) uint8 where the images are in memory
    crop: float = 1.0  # share of the shorter side that is kept of images that are decoded when asked for, (0, 1]
    square: bool = True  # whether no picture had to be cut to a square to be kept in memory
    skipped: dict[str, str] = field(default_factory=dict)  # images that cannot be decoded, as found, with the reason
    source: Path | None = None  # the folder that the files are in
    drawn: str = ""  # how the splits were drawn where the data set has no test split
    left_out: int = 0  # pictures that were found unreadable before and are not among `rows`

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_memory(self) -> bool:
        """Whether all images are decoded already. Any order then reads as well as any other."""
        return self.array is not None

    @property
    def listed(self) -> int:
        """How many pictures there are, those that cannot be read included."""
        return len(self) + self.left_out

    @property
    def blocks(self) -> np.ndarray:
        """(n,) int64, equal for neighbours that are cheap to read together."""
        return np.zeros(len(self), np.int64) if self.index is None else self.index().blocks[self.rows]

    @property
    def state(self) -> str:
        """A digest that changes whenever a file does. "" where `digest` is that of the pixels."""
        if self.in_memory or self.source is None:
            return ""
        return hashlib.sha256(json.dumps(state_of(self.source)).encode()).hexdigest()

    def read(self, i: int) -> Encoded:
        """The picture at `i` as it is stored, and its name."""
        if self.index is None:
            raise BadData(f"{self.name}: these images have no files; take their pixels")
        return self.index().read(int(self.rows[i]))

    def picture(self, i: int) -> Image | None:
        """The whole upright RGB picture at `i`; None if it cannot be decoded, and then `skipped` says why."""
        name, encoded = self.read(i)
        try:
            return decode(name, encoded)
        except (BadImage, OSError) as error:
            self.skipped[name] = str(error).removeprefix(f"{name}: ")
            return None

    def fault(self, i: int) -> str:
        """Why the picture at `i` cannot be decoded; "" if it can."""
        name, encoded = self.read(i)
        try:
            decode(name, encoded)
            return ""
        except (BadImage, OSError) as error:
            return str(error).removeprefix(f"{name}: ")

    def pixels(self, size: int | None = None) -> Any:
        """(n, size, size, 3) uint8, indexed like an array: the memory-mapped one, or decoded as it is asked for."""
        size = size or self.size
        return self.array if self.in_memory and self.array.shape[1] == size else _Decoded(self, size)

    def sized(self, size: int, *, crop: float = 1.0) -> "ImageSet":
        """With images that are decoded when asked for at that size and crop; those in memory keep their own."""
        return self if self.in_memory else replace(self, size=size, crop=crop)

    def sample(self, n: int | None, *, seed: int = 0) -> "ImageSet":
        """n images drawn without replacement, in the split's order; all of them if n is None or not smaller."""
        if n is not None and n < 0:
            raise ValueError(f"{n} images; at least 0 can be drawn")
        if n is None or n >= len(self):
            return self
        some = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        digest = hashlib.sha256(f"{self.digest} sample {n} {seed}".encode()).hexdigest()
        return self.part(some, digest=digest)

    def part(self, indices: np.ndarray, *, digest: str) -> "ImageSet":
        """The images `indices` alone, in that order."""
        array = self.array[indices] if self.in_memory else None
        return replace(self, labels=self.labels[indices], rows=self.rows[indices], array=array, digest=digest)

    def whole(self) -> "ImageSet":
        """The same images read from their files, so that `picture` gives all of each; not even cut to a square."""
        return replace(self, array=None, skipped=dict(self.skipped)) if self.in_memory else self

    def decoded(self, size: int) -> "ImageSet":
        """What can be decoded, in memory, at size x size. Raises BadData if nothing can."""
        pictures = ((i, self.picture(i)) for i in range(len(self)))
        found = {i: np.asarray(fit(picture, image_size=size)) for i, picture in pictures if picture}
        if not found:
            name, reason = next(iter(self.skipped.items()))
            raise BadData(f"none of {len(self)} images can be decoded, such as {name}: {reason}")
        there = self.part(np.array(list(found)), digest=self.digest)
        return replace(there, array=np.stack(list(found.values())), size=size)

    def hashes(self) -> Iterator[bytes]:
        """16 bytes for each image: of its pixels where they are in memory, else of its encoded picture."""
        if self.in_memory:
            yield from (_hash(image.tobytes()) for image in self.array)
            return
        for i in range(len(self)):
            yield _hash(content_of(self.read(i).picture))


def from_pixels(
    name: str, split: str, pixels: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], digest: str
) -> ImageSet:
    """Images (n, S, S, 3) uint8 that are in memory already. digest: of pixels and labels."""
    rows = np.arange(len(pixels))
    return ImageSet(name, split, labels, classes, digest, size=pixels.shape[1], rows=rows, array=pixels)


@final
@dataclass(frozen=True, eq=False)
class _Decoded:
    """(n, S, S, 3) uint8: an index decodes (or resizes) one image, a slice or an array of indices those alone."""

    images: ImageSet
    size: int  # S

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.images), self.size, self.size, 3

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        wanted = np.arange(len(self))[index]
        if wanted.ndim == 0:
            return self._one(int(wanted))
        with ThreadPoolExecutor(THREADS) as threads:
            pixels = list(threads.map(self._one, wanted.tolist()))
        return np.stack(pixels) if pixels else np.zeros((0, *self.shape[1:]), np.uint8)

    def _one(self, i: int) -> np.ndarray:
        if self.images.in_memory:
            return preprocess(np.asarray(self.images.array[i]), image_size=self.size)
        name, encoded = self.images.read(i)
        try:
            return np.asarray(fit(decode(name, encoded), image_size=self.size, crop=self.images.crop))
        except (BadImage, OSError) as error:
            reason = str(error).removeprefix(f"{name}: ")
            raise BadData(f"{name} cannot be decoded: {reason}. Remove it, or download it again") from error


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
