"""One split of a data set, decoded: small images as one memory-mapped array, large ones when they are asked for."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import BadData, BadImage, CorruptFile, unknown
from zoo.files import locked, new_folder, zoo_home
from zoo.images.dataset import DIGITS, SPLITS, Dataset, SplitName, dataset_row
from zoo.images.pixels import preprocess
from zoo.images.source import FOLDER, Encoded, Source, own_source, read_source, unpacked

LARGEST_CACHED = 96  # pixels; larger images would not fit a memory-mapped array of the whole split
CACHE_FORMAT = 1


@dataclass(frozen=True)
class Split:
    """One split, decoded: pixels (n, H, W, 3) uint8 and labels (n,) int64, -1 where an image has none.

    Where an image may be of several classes, labels are (n, C): 1 of it, 0 not, -1 not known.
    """

    dataset: str
    split: str
    pixels: Any  # a memory-mapped array, or `zoo.images.on_demand.OnDemand`, which is indexed like one
    labels: np.ndarray
    classes: tuple[str, ...]
    sha256: str  # of pixels and labels
    skipped: tuple[str, ...] = ()  # images that could not be decoded, with the reason

    def __len__(self) -> int:
        return len(self.pixels)

    def sample(self, n: int | None, *, seed: int = 0) -> "Split":
        """n images drawn without replacement, in the split's order; all of them if n is None or not smaller."""
        if n is not None and n < 0:
            raise ValueError(f"{n} images; at least 0 can be drawn")
        if n is None or n >= len(self):
            return self
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        digest = hashlib.sha256(f"{self.sha256} sample {n} {seed}".encode()).hexdigest()
        return self.part(rows, sha256=digest)

    def part(self, rows: np.ndarray, *, sha256: str) -> "Split":
        """The images `rows` alone, in that order; large ones stay encoded."""
        lazy = not isinstance(self.pixels, np.ndarray)
        pixels = self.pixels.part(rows) if lazy else self.pixels[rows]
        return replace(self, pixels=pixels, labels=self.labels[rows], sha256=sha256)


def open_split(name: str, split: SplitName, *, data: str | Path | None = None) -> Split:
    """The `split` of the data set `name`, decoded once into a memory-mapped cache under `$ZOO_HOME`.

    Images above LARGEST_CACHED px stay where they are and are decoded whenever they are asked for.

    data: a folder of Parquet shards `<split>-*.parquet`, a folder `<split>/<class>/<image>`, or an archive (zip, tar)
    of either; None takes the Hub's copy (digits: scikit-learn's). `folder:PATH` takes one's own images in place of
    the data set's: all of them at any depth, of any classes or none, as the train split. voc2007 lies in VOC layout.
    Raises UnknownName, FileNotFoundError, BadData, CorruptFile (a damaged cache). Images that cannot be decoded are
    left out and listed in `skipped`.
    """
    row = dataset_row(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    own = str(data).startswith(FOLDER)
    if own:
        data = str(data).removeprefix(FOLDER)
        if not Path(data).is_dir():
            raise FileNotFoundError(f"{data}: no such folder; {FOLDER}PATH takes a folder of images")
    if data is not None and not Path(data).exists():
        raise FileNotFoundError(
            f"{data}: no such folder or archive; data is a folder of Parquet shards ({split}-*.parquet), a folder "
            f"{split}/<class>/<image>, a zip or tar of either, or {FOLDER}PATH, a folder of any images"
        )
    if data is None and row.hub == DIGITS:
        return _digits(split)
    if data is None and not row.hub:
        raise BadData(f"{name} is on no hub; give its folder or archive as data")
    source = unpacked(Path(data)) if data is not None else None
    if row.image_size > LARGEST_CACHED:
        from zoo.images.on_demand import open_on_demand

        return open_on_demand(name, split, row, f"{FOLDER if own else ''}{source}")
    decides = [CACHE_FORMAT, row.hub, row.label, row.classes, row.image_size, str(source), own, _state_of(source)]
    stamp = json.dumps(decides)
    caches = zoo_home() / "cache" / "pixels" / f"{name}-{split}"
    folder = caches / hashlib.sha256(stamp.encode()).hexdigest()[:16]
    with locked(caches):  # the processes of one training ask at the same time; one of them decodes
        if not (folder / "split.json").is_file():
            rows = own_source(source, split) if own and source else read_source(name, row, split, source)
            _decode(rows, replace(row, classes=max(1, len(rows.classes))) if own else row, split, folder)
        return _open_cache(name, split, folder)


def _decode(source: Source, row: Dataset, split: str, folder: Path) -> None:
    """Decode all images to the row's size and put the arrays into `folder`, which appears whole or not at all."""
    from tqdm import tqdm

    def decode(item: Encoded) -> np.ndarray | str:
        if item.picture is None:
            return f"{item.name}: holds no bytes"
        try:
            return preprocess(item.picture, image_size=row.image_size)
        except (BadImage, OSError) as error:
            return f"{item.name}: {error}"

    labels: list[int] = []
    skipped: list[str] = []
    digest = hashlib.sha256()
    with new_folder(folder) as aside, ThreadPoolExecutor(4) as threads, (aside / "pixels.u8").open("wb") as out:
        rows = iter(tqdm(source.rows, desc=f"decoding {split}", unit=" images", leave=False, disable=None))
        while chunk := list(islice(rows, 1024)):
            for item, pixels in zip(chunk, threads.map(decode, chunk), strict=True):
                if isinstance(pixels, str):
                    skipped.append(pixels)
                    continue
                digest.update(pixels.tobytes())
                out.write(pixels.tobytes())
                labels.append(_label_of(item, source.where))
        if not labels:
            raise BadData(f"{source.where}: no readable image in its {split} split ({len(skipped)} unreadable)")
        if not -1 <= min(labels) <= max(labels) < row.classes:
            raise BadData(
                f"{source.where}: labels {min(labels)}..{max(labels)}, allowed 0..{row.classes - 1}, or -1 for none"
            )
        classes = source.classes or tuple(map(str, range(row.classes)))
        digest.update(np.asarray(labels, np.int64).tobytes())
        np.save(aside / "labels.npy", np.asarray(labels, np.int64))
        facts = {"shape": [len(labels), row.image_size, row.image_size, 3], "classes": classes}
        (aside / "split.json").write_text(json.dumps(facts | {"sha256": digest.hexdigest(), "skipped": skipped}))


def _label_of(item: Encoded, where: str) -> int:
    if item.label is None:
        return -1
    if not isinstance(item.label, int):
        raise BadData(f"{where}: {item.name} has the label {item.label!r}; a label is a class index, an integer")
    return item.label


def _open_cache(name: str, split: str, folder: Path) -> Split:
    try:
        facts = json.loads((folder / "split.json").read_text())
        pixels = np.memmap(folder / "pixels.u8", np.uint8, "r").reshape(facts["shape"])
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        if labels.shape != (len(pixels),) or labels.dtype != np.int64:
            raise ValueError(f"{len(pixels)} images, but labels {labels.dtype} {labels.shape}")
        return Split(name, split, pixels, labels, tuple(facts["classes"]), facts["sha256"], tuple(facts["skipped"]))
    except (ValueError, TypeError, KeyError, EOFError, FileNotFoundError) as error:
        raise CorruptFile(f"{folder}: damaged cache ({error}). Delete the folder and try again") from error


def _digits(split: str) -> Split:
    """scikit-learn's digits: grey levels 0..16 spread over 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    cut = round(0.8 * len(bunch.target))
    rows = slice(None, cut) if split == "train" else slice(cut, None)
    grey = np.round(bunch.images[rows] * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(grey[..., None], 3, axis=-1)  # (n, 8, 8, 3)
    labels = bunch.target[rows].astype(np.int64)
    digest = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
    return Split("digits", split, pixels, labels, tuple("0123456789"), digest)


def _state_of(source: Path | None) -> list[Any]:
    """Names, sizes and times of the files below `source`: any change makes a new cache."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source else []
    return [(str(path.relative_to(source)), path.stat().st_size, path.stat().st_mtime_ns) for path in files if source]
