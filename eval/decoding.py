"""Large images decoded once for all encoders, and those that cannot be decoded left out before anything is measured."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from zoo.errors import BadData
from zoo.files import make_folder, write_bytes, zoo_home
from zoo.images.image_set import ImageSet

BATCH = 64  # images that are decoded between two steps of the bar
DISK_SHARE = 0.25  # of the free disk that decoded images may take
THREADS = 4


class SharedPixels:
    """(n, S, S, 3) uint8, indexed like an array; each image is decoded when it is first asked for, and then kept.

    The pixels are in an unnamed file, which goes with the process.
    """

    def __init__(self, images: ImageSet) -> None:
        self._images, self._done = images, np.zeros(len(images), bool)
        self.shape, self.dtype = (len(images), images.size, images.size, 3), np.dtype(np.uint8)
        folder = zoo_home() / "cache"
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            self._pixels = np.memmap(file, np.uint8, "w+", shape=self.shape)

    def __len__(self) -> int:
        return len(self._done)

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        wanted = np.arange(len(self))[index]
        missing = np.unique(wanted[~self._done[wanted]]) if wanted.ndim else wanted[~self._done[wanted]]
        if missing.size:
            self._pixels[missing] = self._images.pixels()[np.atleast_1d(missing)]
            self._done[missing] = True
        return np.asarray(self._pixels[wanted])


class DecodedOnce:
    """Image sets whose pixels are shared by all encoders of the same size and crop."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str, int, float], ImageSet] = {}

    def sized(self, images: ImageSet, size: int, *, crop: float) -> ImageSet:
        """`images.sized`; of images that are decoded when asked for, each once, where the disk has room for all."""
        sized = images.sized(size, crop=crop)
        if sized.in_memory or 3 * size**2 * len(sized) > DISK_SHARE * _free_disk():
            return sized
        key = (sized.split, sized.digest, size, crop)
        if key not in self._shared:
            self._shared[key] = replace(sized, array=SharedPixels(sized))
        return self._shared[key]


def readable(images: ImageSet, decoded: DecodedOnce) -> ImageSet:
    """Without the images that cannot be decoded, which `skipped` then names. Raises BadData if none is left.

    All are decoded, unless an earlier call has found out and no file has changed since.
    """
    if images.in_memory:
        return images
    key = hashlib.sha256(f"{images.digest} {images.state}".encode()).hexdigest()[:20]
    kept = zoo_home() / "cache" / "readable" / f"{key}.json"
    if kept.is_file():
        reasons = json.loads(kept.read_text())
    else:
        reasons = dict(_unreadable(images, decoded))
        write_bytes(kept, json.dumps(reasons).encode())
    if not reasons:
        return images
    good = np.setdiff1d(np.arange(len(images)), [int(i) for i in reasons])
    named = {images.read(int(i)).name: reason for i, reason in reasons.items()}
    if not len(good):
        name, reason = next(iter(named.items()))
        raise BadData(f"none of {len(images)} {images.split} images can be decoded, such as {name}: {reason}")
    digest = hashlib.sha256(f"{images.digest} without {sorted(map(int, reasons))}".encode()).hexdigest()
    left_out = images.left_out + len(named)
    return replace(images.part(good, digest=digest), skipped=images.skipped | named, left_out=left_out)


def _unreadable(images: ImageSet, decoded: DecodedOnce) -> Iterator[tuple[str, str]]:
    """Index and reason of each image that cannot be decoded."""
    pixels: Any = decoded.sized(images, images.size, crop=1.0).pixels()

    def reason(i: int) -> str:
        try:
            pixels[np.array([i])]
            return ""
        except BadData:
            return images.fault(i)

    starts = tqdm(range(0, len(images), BATCH), desc=f"checking {images.split} images", leave=False, disable=None)
    with ThreadPoolExecutor(THREADS) as threads:
        for start in starts:
            batch = range(start, min(start + BATCH, len(images)))
            yield from ((str(i), told) for i, told in zip(batch, threads.map(reason, batch), strict=True) if told)


def _free_disk() -> int:
    folder = zoo_home() / "cache"
    make_folder(folder)
    return shutil.disk_usage(folder).free
