"""Where a split's images lie, still encoded: Parquet shards, the Hub's copy, folders of pictures, archives of them."""

import glob
import hashlib
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from zoo.errors import BadData
from zoo.files import locked, new_folder, zoo_home
from zoo.images.dataset import SPLITS, Dataset, SplitName

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
FOLDER = "folder:"  # before the path of one's own images


class Encoded(NamedTuple):
    """One image before decoding."""

    name: str
    picture: bytes | Path | None  # None where a row holds none
    label: Any  # None where an image has none


class Source(NamedTuple):
    rows: Iterator[Encoded]
    classes: tuple[str, ...]  # their names; empty where none are given
    where: str


def read_source(name: str, row: Dataset, split: SplitName, source: Path | None) -> Source:
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


def _image_folder(source: Path, split: SplitName) -> Source:
    root = source / split
    return _files(root, str(source), *split_images(source, split))


def own_source(source: Path, split: SplitName) -> Source:
    """The encoded images of `own_images`, with their labels."""
    return _files(source, str(source), *own_images(source, split))


def _files(root: Path, where: str, paths: list[Path], labels: list[int], classes: list[str]) -> Source:
    rows = (Encoded(str(path), root / path, label) for path, label in zip(paths, labels, strict=True))
    return Source(rows, tuple(classes), where)


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


def _table(row: Dataset, split: SplitName, shards: list[Path], where: str) -> Source:
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
    if names and len(names) != row.classes:
        raise BadData(
            f"{where}: {len(names)} classes ({', '.join(names[:3])} ...), not {row.classes}; another data set?"
        )
    stream = stream.cast_column(image, datasets.Image(decode=False))
    return Source(_encoded(stream, image, label, where), tuple(names or ()), where)


def _encoded(stream: Any, image: str, label: str | None, where: str) -> Iterator[Encoded]:
    index = count()
    try:
        for columns in stream.iter(256):
            cells = columns[image]
            for cell, value in zip(cells, columns[label] if label else [None] * len(cells), strict=True):
                picture = cell or {}
                name = f"image {next(index)} {picture.get('path') or ''}".rstrip()
                yield Encoded(name, picture.get("bytes"), value)
    except Exception as error:  # as in read_source
        raise BadData(f"{where}: cannot be read ({error}). Download it again") from error


def _is_image(kind: Any) -> bool:
    """Whether a column holds encoded images: the Image feature, or its storage (bytes, path)."""
    return type(kind).__name__ == "Image" or (isinstance(kind, dict) and set(kind) == {"bytes", "path"})


def unpacked(path: Path) -> Path:
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
