"""Small images decoded once: a memory-mapped array, labels and facts in a folder under `$ZOO_HOME`."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL

from zoo.errors import BadData, BadImage, CorruptFile
from zoo.files import locked, new_folder, zoo_home
from zoo.images.index import Encoded, Index
from zoo.images.pixels import decode, fit
from zoo.images.walk import walk

FORMAT = 2  # raise it when the layout, the list of image types or the preprocessing changes
THREADS = 4
CHUNK = 1024  # images that are decoded at a time


class CachedPixels(NamedTuple):
    """What can be decoded of an index, in its order."""

    pixels: np.ndarray  # (n, S, S, 3) uint8, memory-mapped
    labels: np.ndarray  # (n,) or (n, C) int64
    rows: np.ndarray  # (n,) int64, the place of each image in the index
    classes: tuple[str, ...]
    sha256: str  # of pixels and labels
    skipped: dict[str, str]  # images that could not be decoded, with the reason
    square: bool  # whether no picture had to be cut to a square


def cached_pixels(
    index: Callable[[], Index], *, name: str, image_size: int, source: Path | None, settings: list[Any]
) -> CachedPixels:
    """The images of `index`, decoded to image_size if no earlier call has done so.

    Args:
        index: opens the index; called only where there is no cache.
        name: of the folder that holds the caches of this split.
        image_size: pixels, H = W.
        source: the folder that the pictures are in; any change of a file below it makes a new cache.
        settings: whatever else decides labels and pixels.

    Raises:
        BadData: nothing can be decoded.
        CorruptFile: the cache is damaged.
    """
    decides = [FORMAT, PIL.__version__, image_size, str(source), *settings, state_of(source) if source else []]
    caches = zoo_home() / "cache" / "pixels" / name
    folder = caches / hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
    with locked(caches):  # the processes of one training run ask at the same time; one of them decodes
        if not (folder / "split.json").is_file():
            _decode(index(), folder, image_size=image_size, what=name)
        return _open(folder)


def state_of(source: Path) -> list[tuple[str, int, int, int]]:
    """Name, size and times of a file, or of every file below a folder, those behind links included.

    They change with the content: a file that is replaced by one of equal size and time still changes its inode's time.
    """
    files = [Path()] if source.is_file() else walk(source).files
    found = ((path, (source / path).stat()) for path in files)
    return [(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in found]


def _decode(index: Index, folder: Path, *, image_size: int, what: str) -> None:
    """Decode all images and put the arrays into `folder`, which appears whole or not at all."""
    from tqdm import tqdm

    rows: list[int] = []
    skipped, square, digest = dict(index.skipped), True, hashlib.sha256()
    with new_folder(folder) as aside, ThreadPoolExecutor(THREADS) as threads, (aside / "pixels.u8").open("wb") as out:
        places = iter(tqdm(range(len(index)), desc=f"decoding {what}", unit=" images", leave=False, disable=None))
        while chunk := list(islice(places, CHUNK)):
            encoded = map(index.read, chunk)
            for place, found in zip(chunk, threads.map(lambda one: _fitted(one, image_size), encoded), strict=True):
                if isinstance(found, tuple):
                    square &= found[1]
                    digest.update(found[0])
                    out.write(found[0])
                    rows.append(place)
                else:
                    skipped.update(found)
        if not rows:
            raise BadData(f"{what}: none of {len(index)} images can be decoded{_such_as(skipped)}")
        labels = index.labels[rows]
        digest.update(labels.tobytes())
        np.save(aside / "labels.npy", labels)
        np.save(aside / "rows.npy", np.asarray(rows, np.int64))
        facts = {"shape": [len(rows), image_size, image_size, 3], "classes": index.classes, "square": square}
        (aside / "split.json").write_text(json.dumps(facts | {"sha256": digest.hexdigest(), "skipped": skipped}))


def _fitted(encoded: Encoded, image_size: int) -> tuple[bytes, bool] | dict[str, str]:
    """The pixels of one picture and whether it is a square; or its name and why it cannot be decoded."""
    try:
        image = decode(*encoded)
        return np.asarray(fit(image, image_size=image_size)).tobytes(), image.width == image.height
    except (BadImage, OSError) as error:
        return {encoded.name: str(error).removeprefix(f"{encoded.name}: ")}


def _such_as(skipped: dict[str, str]) -> str:
    return "".join(f", such as {name}: {reason}" for name, reason in list(skipped.items())[:1])


def _open(folder: Path) -> CachedPixels:
    try:
        facts = json.loads((folder / "split.json").read_text())
        pixels = np.memmap(folder / "pixels.u8", np.uint8, "r").reshape(facts["shape"])
        labels, rows = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("labels", "rows"))
        if not len(labels) == len(rows) == len(pixels) or not labels.dtype == rows.dtype == np.int64:
            raise ValueError(f"{len(pixels)} images, but labels {labels.dtype} {labels.shape}")
        return CachedPixels(
            pixels, labels, rows, tuple(facts["classes"]), facts["sha256"], dict(facts["skipped"]), facts["square"]
        )
    except (ValueError, TypeError, KeyError, EOFError, FileNotFoundError) as error:
        raise CorruptFile(f"{folder}: damaged cache ({error}). Delete the folder and try again") from error
