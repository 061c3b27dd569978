"""The data sets a name may carry, one row each, and `open_split`: small images as one memory-mapped array.

mean and std stand here once. They travel into the encoder, its card and its ONNX graph; nothing else normalises.
"""

import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from zoo.errors import BadData, BadImage, unknown
from zoo.files import new_folder, zoo_home
from zoo.pixels import preprocess

SPLITS = ("train", "test")
LARGEST_CACHED = 96  # pixels; larger images would not fit a memory-mapped array of the whole split
CACHE_FORMAT = 1
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
SplitName = Literal["train", "test"]


@dataclass(frozen=True)
class Dataset:
    """One data set: where it is, what it holds, how its pixels are normalised."""

    hub: str  # id on the Hugging Face Hub, or "" where it has none
    classes: int
    image_size: int  # pixels, H = W, that its images are brought to
    mean: tuple[float, float, float]  # of RGB in [0, 1], over the train split
    std: tuple[float, float, float]  # over all pixels of the train split
    licence: str
    label: str = "label"  # column of the class index


DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset("uoft-cs/cifar10", 10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "unknown"),
    "cifar100": Dataset(
        "uoft-cs/cifar100", 100, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "unknown", label="fine_label"
    ),
    # scikit-learn's 1,797 handwritten digits, 8x8 grey repeated to RGB: the first 80 % train, the rest test
    "digits": Dataset("", 10, 8, (0.3055,) * 3, (0.3754,) * 3, "BSD-3-Clause"),
}


def dataset_row(name: str) -> Dataset:
    """The row called `name`. Raises UnknownName with the nearest names."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


@dataclass(frozen=True)
class Split:
    """One split, decoded: pixels (n, H, W, 3) uint8 and labels (n,) int64, -1 where an image has none."""

    dataset: str
    split: str
    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    sha256: str  # of pixels and labels
    skipped: tuple[str, ...] = ()  # images that could not be decoded, with the reason

    def __len__(self) -> int:
        return len(self.pixels)

    def sample(self, n: int | None, *, seed: int = 0) -> "Split":
        """n images drawn without replacement, in the split's order; all of them if n is None or not smaller."""
        if n is None or n >= len(self):
            return self
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        digest = hashlib.sha256(f"{self.sha256} sample {n} {seed}".encode()).hexdigest()
        return Split(self.dataset, self.split, self.pixels[rows], self.labels[rows], self.classes, digest, self.skipped)


def open_split(name: str, split: SplitName, *, data: str | Path | None = None) -> Split:
    """The `split` of the data set `name`, decoded once into a memory-mapped cache under `$ZOO_HOME`.

    data: a folder of Parquet shards `<split>-*.parquet`, a folder `<split>/<class>/<image>`, or an archive (zip, tar)
    of either; None takes the Hub's copy (digits: scikit-learn's).
    Raises UnknownName, FileNotFoundError, BadData. Images that cannot be decoded are left out and listed in `skipped`.
    """
    row = dataset_row(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if row.image_size > LARGEST_CACHED:
        raise BadData(f"{name} has images of {row.image_size} px; only up to {LARGEST_CACHED} px are supported so far")
    if data is not None and not Path(data).exists():
        raise FileNotFoundError(f"{data}: no such folder or archive; --data takes what open_split's docstring lists")
    if data is None and not row.hub:
        return _digits(row, split)
    source = _unpacked(Path(data)) if data is not None else None
    stamp = json.dumps([CACHE_FORMAT, name, split, asdict(row), str(source), _state_of(source)])
    folder = zoo_home() / "cache" / "pixels" / f"{name}-{split}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if not (folder / "split.json").is_file():
        _decode(_rows_of(name, row, split, source), row, split, folder)
    return _open_cache(name, split, folder)


class _Encoded(NamedTuple):
    """One image before decoding."""

    name: str
    picture: bytes | str
    label: int


class _Source(NamedTuple):
    rows: Iterator[_Encoded]
    classes: tuple[str, ...]
    where: str


def _rows_of(name: str, row: Dataset, split: SplitName, source: Path | None) -> _Source:
    """The encoded images and labels of a split, read with the `datasets` library."""
    import datasets

    if source is None:
        stream = datasets.load_dataset(row.hub, split=split)
    else:
        shards = sorted(map(str, source.rglob(f"{split}*.parquet")))
        if not shards and not (source / split).is_dir():
            raise BadData(
                f"{source}: no {split} split of {name}; expected {split}-*.parquet shards or a folder {split}/"
            )
        if shards:
            stream = datasets.load_dataset("parquet", data_files={split: shards}, split=split, streaming=True)
        else:
            files = {split: str(source / split / "**")}
            stream = datasets.load_dataset("imagefolder", data_files=files, split=split, streaming=True)
    features = stream.features
    image = next((c for c, kind in features.items() if _is_image(kind)), None)
    if image is None:
        raise BadData(f"{source or row.hub}: no image column among {list(features)}")
    stream = stream.cast_column(image, datasets.Image(decode=False))
    label = next((c for c in (row.label, "label") if c in features), None)
    names = getattr(features[label], "names", None) if label else None
    rows = (
        _Encoded(str(r[image].get("path") or index), r[image]["bytes"] or r[image]["path"], r[label] if label else -1)
        for index, r in enumerate(stream)
    )
    return _Source(rows, tuple(names or map(str, range(row.classes))), str(source or row.hub))


def _is_image(kind: Any) -> bool:
    """Whether a column holds encoded images: the Image feature, or its storage (bytes, path)."""
    return type(kind).__name__ == "Image" or (isinstance(kind, dict) and set(kind) == {"bytes", "path"})


def _decode(source: _Source, row: Dataset, split: str, folder: Path) -> None:
    """Decode all images to the row's size and put the arrays into `folder`, which appears whole or not at all."""
    from tqdm import tqdm

    def decode(item: _Encoded) -> np.ndarray | str:
        try:
            return preprocess(item.picture, image_size=row.image_size)
        except (BadImage, OSError) as error:
            return f"{item.name}: {error}"

    labels: list[int] = []
    skipped: list[str] = []
    digest = hashlib.sha256()
    with new_folder(folder) as aside, ThreadPoolExecutor(4) as threads, (aside / "pixels.u8").open("wb") as out:
        rows = iter(tqdm(source.rows, desc=f"decoding {split}", unit=" images", leave=False))
        while chunk := list(islice(rows, 1024)):
            for item, pixels in zip(chunk, threads.map(decode, chunk), strict=True):
                if isinstance(pixels, str):
                    skipped.append(pixels)
                    continue
                digest.update(pixels.tobytes())
                out.write(pixels.tobytes())
                labels.append(int(item.label))
        if not labels:
            raise BadData(f"{source.where}: no readable image in its {split} split ({len(skipped)} unreadable)")
        if not -1 <= min(labels) <= max(labels) < row.classes:
            raise BadData(
                f"{source.where}: labels {min(labels)}..{max(labels)}, allowed 0..{row.classes - 1}, or -1 for none"
            )
        digest.update(np.asarray(labels, np.int64).tobytes())
        np.save(aside / "labels.npy", np.asarray(labels, np.int64))
        facts = {"shape": [len(labels), row.image_size, row.image_size, 3], "classes": source.classes}
        (aside / "split.json").write_text(json.dumps(facts | {"sha256": digest.hexdigest(), "skipped": skipped}))


def _open_cache(name: str, split: str, folder: Path) -> Split:
    facts = json.loads((folder / "split.json").read_text())
    shape = tuple(facts["shape"])
    size = (folder / "pixels.u8").stat().st_size
    if size != np.prod(shape):
        raise BadData(f"{folder}: cache of {size} bytes instead of {np.prod(shape)}; delete the folder and try again")
    pixels = np.memmap(folder / "pixels.u8", np.uint8, "r", shape=shape)
    labels = np.load(folder / "labels.npy")
    return Split(name, split, pixels, labels, tuple(facts["classes"]), facts["sha256"], tuple(facts["skipped"]))


def _digits(row: Dataset, split: str) -> Split:
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


def _unpacked(path: Path) -> Path:
    """The folder itself, or the cached contents of an archive."""
    if path.is_dir():
        return path.resolve()
    if not path.name.endswith(ARCHIVES):
        raise BadData(f"{path}: neither a folder nor an archive ({', '.join(ARCHIVES)})")
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = zoo_home() / "cache" / "archives" / f"{path.name.split('.')[0]}-{key}"
    if not folder.is_dir():
        with new_folder(folder) as aside:
            try:
                _extract(path, aside)
            except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
                raise BadData(f"{path}: truncated or not an archive ({error}). Download it again") from error
    inside = [entry for entry in folder.iterdir() if entry.name != "__MACOSX"]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() and inside[0].name not in SPLITS else folder


def _extract(path: Path, folder: Path) -> None:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:  # zipfile drops "..", drive letters and leading slashes itself
            archive.extractall(folder)
    else:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
