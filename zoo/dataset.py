"""The data sets a name may carry, one row each, and `open_split`: small images as one memory-mapped array.

mean and std stand here once. They travel into the encoder, its card and its ONNX graph; nothing else normalises.
"""

import glob
import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from zoo.errors import BadData, BadImage, CorruptFile, unknown
from zoo.files import locked, new_folder, zoo_home
from zoo.pixels import preprocess

SPLITS = ("train", "test")
LARGEST_CACHED = 96  # pixels; larger images would not fit a memory-mapped array of the whole split
DIGITS = "sklearn:digits"  # comes with scikit-learn
CACHE_FORMAT = 1
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
FOLDER = "folder:"  # before the path of one's own images
SplitName = Literal["train", "test"]


@dataclass(frozen=True)
class Dataset:
    """One data set: where it is, what it holds, how its pixels are normalised."""

    hub: str  # id on the Hugging Face Hub, DIGITS, or "" where a data set has to be brought along
    classes: int
    image_size: int  # pixels, H = W, that its images are brought to
    mean: tuple[float, float, float]  # of RGB in [0, 1], over the train split
    std: tuple[float, float, float]  # over all pixels of the train split
    licence: str
    label: str = "label"  # column of the class index

    @property
    def hub_id(self) -> str:
        """The id on the Hugging Face Hub; "" where it has none."""
        return "" if self.hub == DIGITS else self.hub


DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset("uoft-cs/cifar10", 10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "unknown"),
    "cifar100": Dataset(
        "uoft-cs/cifar100", 100, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "unknown", label="fine_label"
    ),
    # mean and std over the train splits, as published many times to these digits; no Hub copy of ours to read
    "stl10": Dataset("", 10, 96, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), "unknown"),
    "svhn": Dataset("", 10, 32, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "non-commercial use"),
    # mean and std of the official MoCo code and of torchvision; std is over images, not pixels
    "in100": Dataset("", 100, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "non-commercial research"),
    "in1k": Dataset("", 1000, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "non-commercial research"),
    # scikit-learn's 1,797 handwritten digits, 8x8 grey repeated to RGB: the first 80 % train, the rest test
    "digits": Dataset(DIGITS, 10, 8, (0.3055,) * 3, (0.3754,) * 3, "BSD-3-Clause"),
    # 2,800 aerial scenes (Zou et al. 2015), brought to 64 px
    "rsscn7": Dataset("", 7, 64, (0.3731, 0.3837, 0.3439), (0.1847, 0.1666, 0.1714), "research use"),
    # 2,062 photos of hands that sign the digits 0 to 9, brought to 64 px
    "signdigits": Dataset("", 10, 64, (0.6747, 0.6457, 0.6163), (0.1429, 0.1588, 0.1856), "Apache-2.0"),
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
        if n is not None and n < 0:
            raise ValueError(f"{n} images; at least 0 can be drawn")
        if n is None or n >= len(self):
            return self
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        digest = hashlib.sha256(f"{self.sha256} sample {n} {seed}".encode()).hexdigest()
        return Split(self.dataset, self.split, self.pixels[rows], self.labels[rows], self.classes, digest, self.skipped)


def open_split(name: str, split: SplitName, *, data: str | Path | None = None) -> Split:
    """The `split` of the data set `name`, decoded once into a memory-mapped cache under `$ZOO_HOME`.

    data: a folder of Parquet shards `<split>-*.parquet`, a folder `<split>/<class>/<image>`, or an archive (zip, tar)
    of either; None takes the Hub's copy (digits: scikit-learn's). `folder:PATH` takes one's own images in place of
    the data set's: all of them at any depth, of any classes or none, as the train split.
    Raises UnknownName, FileNotFoundError, BadData, CorruptFile (a damaged cache). Images that cannot be decoded are
    left out and listed in `skipped`.
    """
    row = dataset_row(name)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if row.image_size > LARGEST_CACHED:
        raise BadData(f"{name} has images of {row.image_size} px; only up to {LARGEST_CACHED} px are supported so far")
    own = str(data).startswith(FOLDER)
    if own:
        data = str(data).removeprefix(FOLDER)
        if not Path(data).is_dir():
            raise FileNotFoundError(f"{data}: no such folder; {FOLDER}PATH takes a folder of images")
    if data is not None and not Path(data).exists():
        raise FileNotFoundError(f"{data}: no such folder or archive; --data takes what open_split's docstring lists")
    if data is None and row.hub == DIGITS:
        return _digits(split)
    if data is None and not row.hub:
        raise BadData(f"{name} is on no hub; give its folder or archive as data")
    source = _unpacked(Path(data)) if data is not None else None
    decides = [CACHE_FORMAT, row.hub, row.label, row.classes, row.image_size, str(source), own, _state_of(source)]
    stamp = json.dumps(decides)
    caches = zoo_home() / "cache" / "pixels" / f"{name}-{split}"
    folder = caches / hashlib.sha256(stamp.encode()).hexdigest()[:16]
    with locked(caches):  # the processes of one training ask at the same time; one of them decodes
        if not (folder / "split.json").is_file():
            rows = _own_folder(source, split) if own and source else _rows_of(name, row, split, source)
            _decode(rows, replace(row, classes=max(1, len(rows.classes))) if own else row, split, folder)
        return _open_cache(name, split, folder)


class _Encoded(NamedTuple):
    """One image before decoding."""

    name: str
    picture: bytes | Path | None  # None where a row holds none
    label: Any  # None where an image has none


class _Source(NamedTuple):
    rows: Iterator[_Encoded]
    classes: tuple[str, ...]  # their names; empty where none are given
    where: str


def _rows_of(name: str, row: Dataset, split: SplitName, source: Path | None) -> _Source:
    """The encoded images and labels of a split."""
    shards = sorted(source.rglob(f"{split}-*.parquet")) if source is not None else []
    if source is not None and not shards:
        if not (source / split).is_dir():
            raise BadData(
                f"{source}: no {split} split of {name}; expected {split}-*.parquet shards or a folder {split}/"
            )
        return _image_folder(source, split)
    where = str(source or f"{row.hub} on the Hub")
    try:
        return _table(row, split, shards, where)
    except BadData:
        raise
    except Exception as error:  # `datasets`, its readers and its network raise anything at all
        then = "Download it again" if shards else "Is there a network? A local copy works, too: pass its folder as data"
        raise BadData(f"{where}: cannot be read ({error}). {then}") from error


def _image_folder(source: Path, split: SplitName) -> _Source:
    root = source / split
    return _files(root, str(source), *split_images(source, split))


def _own_folder(source: Path, split: SplitName) -> _Source:
    return _files(source, str(source), *own_images(source, split))


def _files(root: Path, where: str, paths: list[Path], labels: list[int], classes: list[str]) -> _Source:
    rows = (_Encoded(str(path), root / path, label) for path, label in zip(paths, labels, strict=True))
    return _Source(rows, tuple(classes), where)


def split_images(source: Path, split: SplitName) -> tuple[list[Path], list[int], list[str]]:
    """Files of `<split>/<class>/.../<image>` below `source/split`, their labels and the classes.

    The classes of all splits together, so a label means the same in each; -1 outside any class folder.
    """
    parts = [source / part for part in SPLITS if (source / part).is_dir()]
    classes = sorted(
        {entry.name for part in parts for entry in part.iterdir() if entry.is_dir() and _seen(entry, part)}
    )
    label = {name: index for index, name in enumerate(classes)}
    root = source / split
    paths = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file() and _seen(path, root)]
    return paths, [label.get(path.parts[0], -1) for path in paths], classes


def own_images(folder: Path, split: SplitName) -> tuple[list[Path], list[int], list[str]]:
    """Files below `folder` that end like pictures, their labels and the classes.

    The folders directly below are the classes if every picture lies in one of them; else there are none, and all
    labels are -1. Raises BadData for the test split: one's own images have none.
    """
    if split != "train":
        raise BadData(f"{FOLDER}{folder} has no {split} split; it is for training. Evaluate on a labelled data set")
    endings = Image.registered_extensions()
    paths = [
        path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in endings and path.is_file() and _seen(path, folder)
    ]
    flat = any(len(path.parts) == 1 for path in paths)
    classes = [] if flat else sorted({path.parts[0] for path in paths})
    label = {name: index for index, name in enumerate(classes)}
    return paths, [label.get(path.parts[0], -1) for path in paths], classes


def _seen(path: Path, root: Path) -> bool:
    """Whether no part of the path is hidden, as the leavings of file managers are."""
    return not any(part.startswith(".") for part in path.relative_to(root).parts)


def _table(row: Dataset, split: SplitName, shards: list[Path], where: str) -> _Source:
    """Parquet shards, or the Hub's copy, read with the `datasets` library."""
    import datasets

    if shards:
        files = {split: [glob.escape(str(shard)) for shard in shards]}  # the library takes names for patterns
        stream = datasets.load_dataset("parquet", data_files=files, split=split, streaming=True)
    else:
        stream = datasets.load_dataset(row.hub, split=split)
    features = stream.features
    image = next((c for c, kind in features.items() if _is_image(kind)), None)
    if image is None:
        raise BadData(f"{where}: no image column among {list(features)}")
    label = next((c for c in (row.label, "label") if c in features), None)
    names = getattr(features[label], "names", None) if label else None
    stream = stream.cast_column(image, datasets.Image(decode=False))
    return _Source(_encoded(stream, image, label, where), tuple(names or ()), where)


def _encoded(stream: Any, image: str, label: str | None, where: str) -> Iterator[_Encoded]:
    index = count()
    try:
        for columns in stream.iter(256):
            cells = columns[image]
            for cell, value in zip(cells, columns[label] if label else [None] * len(cells), strict=True):
                picture = cell or {}
                name = f"image {next(index)} {picture.get('path') or ''}".rstrip()
                yield _Encoded(name, picture.get("bytes"), value)
    except Exception as error:  # as in _rows_of
        raise BadData(f"{where}: cannot be read ({error}). Download it again") from error


def _is_image(kind: Any) -> bool:
    """Whether a column holds encoded images: the Image feature, or its storage (bytes, path)."""
    return type(kind).__name__ == "Image" or (isinstance(kind, dict) and set(kind) == {"bytes", "path"})


def _decode(source: _Source, row: Dataset, split: str, folder: Path) -> None:
    """Decode all images to the row's size and put the arrays into `folder`, which appears whole or not at all."""
    from tqdm import tqdm

    def decode(item: _Encoded) -> np.ndarray | str:
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


def _label_of(item: _Encoded, where: str) -> int:
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


def _unpacked(path: Path) -> Path:
    """The folder itself, or the cached contents of an archive."""
    if path.is_dir():
        return path.resolve()
    if not path.name.endswith(ARCHIVES):
        raise BadData(f"{path}: neither a folder nor an archive ({', '.join(ARCHIVES)})")
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = zoo_home() / "cache" / "archives" / f"{path.name.split('.')[0]}-{key}"
    with locked(folder.parent):
        if not folder.is_dir():
            with new_folder(folder) as aside:
                _extract(path, aside)
    inside = [entry for entry in folder.iterdir() if entry.name != "__MACOSX"]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() and inside[0].name not in SPLITS else folder


def _extract(path: Path, folder: Path) -> None:
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:  # zipfile drops "..", leading slashes and links itself
                archive.extractall(folder)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
                while archive.fileobj and archive.fileobj.read(2**20):
                    pass  # to the end: there gzip keeps its checksum, which tarfile alone would never reach
    except Exception as error:  # hostile archives raise anything at all
        if isinstance(error, OSError) and error.errno is not None:  # such as a full disk
            raise
        raise BadData(f"{path}: truncated, damaged or no archive ({error}). Download it again") from error
