"""Images that stay encoded on disk and are read one by one: folders of files, Parquet shards, tar shards (WebDataset).

For what is too large for `zoo.images.split.open_split`, which decodes a whole split once. Opening reads names,
counts and labels alone. Neighbours lie in one block (a Parquet row group, a stretch of a tar), which is cheap to read
whole: an order that visits block by block reads every byte once.
"""

import hashlib
import json
import os
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, final

import numpy as np
from PIL.Image import Image

from zoo.errors import BadData, BadImage
from zoo.images.dataset import SplitName, dataset_row
from zoo.images.pixels import fit, read_rgb
from zoo.images.source import FOLDER, own_images, split_images
from zoo.images.split import Split
from zoo.images.voc import labelled_images

TAR_BLOCK = 256  # images of a tar that count as neighbours
HELD_BYTES = 2**31  # of encoded images in Parquet row groups, kept between two readings

Named = tuple[str, bytes | Path]  # a name for messages, and the encoded picture
Read = Callable[[int], Named]
Labels = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Shards:
    """One split, not decoded: labels as a `Split`'s; block (n,), equal for neighbours."""

    dataset: str
    split: SplitName
    labels: np.ndarray
    block: np.ndarray
    rows: np.ndarray  # (n,) int64, what `read` calls each image
    classes: tuple[str, ...]
    sha256: str  # of names and sizes on disk, and of the labels
    read: Read
    skipped: dict[str, str] = field(default_factory=dict)  # images found undecodable so far, with the reason

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, n: int | None, *, seed: int = 0) -> "Shards":
        """n images drawn without replacement, in the split's order; all of them if n is None or not smaller."""
        if n is None or n >= len(self):
            return self
        some = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        digest = hashlib.sha256(f"{self.sha256} sample {n} {seed}".encode()).hexdigest()
        return replace(self, labels=self.labels[some], block=self.block[some], rows=self.rows[some], sha256=digest)

    def picture(self, index: int) -> Image | None:
        """The upright RGB image at `index`; None if it cannot be decoded, and then `skipped` tells why."""
        name, picture = self.read(int(self.rows[index]))
        try:
            return read_rgb(picture)
        except (BadImage, OSError) as error:
            self.skipped[name] = str(error)
            return None

    def decoded(self, image_size: int) -> Split:
        """What can be decoded, in memory, brought to (image_size, image_size). Raises BadData if nothing can."""
        pictures = ((i, self.picture(i)) for i in range(len(self)))
        found = {i: np.asarray(fit(picture, image_size=image_size)) for i, picture in pictures if picture}
        if not found:
            name, reason = next(iter(self.skipped.items()))
            raise BadData(f"none of {len(self)} images can be decoded, such as {name}: {reason}")
        labels, skipped = self.labels[list(found)], tuple(self.skipped)
        pixels = np.stack(list(found.values()))
        return Split(self.dataset, self.split, pixels, labels, self.classes, self.sha256, skipped)


def open_shards(name: str, split: SplitName, data: str | Path) -> Shards:
    """The `split` of the data set `name` in `data`, nothing decoded.

    data: a folder of `<split>-*.parquet` or `<split>-*.tar` shards, a folder `<split>/<class>/<image>`, or
    `folder:PATH`, any folder of images at any depth. A data set of several labels an image lies in VOC layout.
    Raises UnknownName, FileNotFoundError, BadData.
    """
    row = dataset_row(name)
    folder = Path(str(data).removeprefix(FOLDER))
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; images that are read while training lie in a folder")
    if str(data).startswith(FOLDER):
        return _files(name, split, folder, *own_images(folder, split))
    if row.several_labels:
        return _files(name, split, folder, *labelled_images(folder, split))
    for ending, index in {"parquet": _parquet, "tar": _tars}.items():
        paths = sorted({*folder.rglob(f"{split}-*.{ending}"), *folder.rglob(f"*-{split}-*.{ending}")})
        if paths:
            labels, block, read = index(paths, row.label)
            _check_labels(labels, row.classes, folder)
            return _shards(name, split, labels, block, (), [(p.name, p.stat().st_size) for p in paths], read)
    if (folder / split).is_dir():
        return _files(name, split, folder / split, *split_images(folder, split))
    wanted = f"{split}-*.parquet or {split}-*.tar shards, or a folder {split}/"
    raise BadData(f"{folder}: no {split} split; expected {wanted}. {FOLDER}{folder} takes any images in it")


def _check_labels(labels: list[int], classes: int, where: Path) -> None:
    if not labels:
        raise BadData(f"{where}: no image in its shards")
    if not -1 <= min(labels) <= max(labels) < classes:
        raise BadData(f"{where}: labels {min(labels)}..{max(labels)}, allowed 0..{classes - 1}, or -1 for none")


def _shards(
    name: str, split: SplitName, marks: Labels, block: np.ndarray, classes: Sequence[str], facts: Any, read: Read
) -> Shards:
    labels = np.asarray(marks, np.int64)
    digest = hashlib.sha256(json.dumps(facts).encode() + labels.tobytes()).hexdigest()
    return Shards(name, split, labels, block, np.arange(len(labels)), tuple(classes), digest, read)


def _files(
    name: str, split: SplitName, root: Path, paths: Sequence[Path], labels: Labels, classes: Sequence[str]
) -> Shards:
    """One block a file: any order reads as well as any other."""
    if not paths:
        raise BadData(f"{root}: no image in it; what ends like .jpg, .png or .webp counts as one, at any depth")
    facts = [(str(path), (root / path).stat().st_size) for path in paths]
    block = np.arange(len(paths))
    return _shards(name, split, labels, block, classes, facts, lambda i: (str(paths[i]), root / paths[i]))


def _parquet(paths: Sequence[Path], label: str) -> tuple[list[int], np.ndarray, Read]:
    """Labels, blocks (row groups) and the reader of Parquet shards with the Hub's columns."""
    from pyarrow import types
    from pyarrow.parquet import ParquetFile

    groups: list[tuple[Path, int, str]] = []  # shard, number in it, image column
    counts: list[int] = []
    labels: list[int] = []
    for path in paths:
        with _sound(path), ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
            image = next((f.name for f in schema if types.is_struct(f.type) and "bytes" in _fields(f.type)), "")
            if not image:
                raise BadData(f"{path}: no image column (bytes, path) among {schema.names}")
            column = next((c for c in (label, "label") if c in schema.names), None)
            groups += [(path, g, image) for g in range(meta.num_row_groups)]
            counts += [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
            labels += _marks(file.read([column])[column].to_pylist(), path) if column else [-1] * meta.num_rows
    starts = np.cumsum([0, *counts])

    def load(group: int) -> list[bytes]:
        path, number, image = groups[group]
        with _sound(path), ParquetFile(path) as file:
            cells = file.read_row_group(number, [image])[image].to_pylist()
        if len(cells) != counts[group]:
            raise BadData(f"{path}: has been replaced by another file since it was opened. Start again")
        return [(cell or {}).get("bytes") or b"" for cell in cells]

    held = _Held(load)

    def read(index: int) -> Named:
        group = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{groups[group][0].name} image {index}", held(group)[index - starts[group]]

    return labels, np.repeat(np.arange(len(groups)), counts), read


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Raises BadData where Arrow cannot read what the block asks of the file."""
    from pyarrow import ArrowInvalid

    try:
        yield
    except (ArrowInvalid, OSError) as error:
        told = " ".join(str(error).split())  # Arrow's has several lines
        raise BadData(f"{path}: cannot be read ({told}). Download it again") from error


def _marks(column: list[Any], path: Path) -> list[int]:
    """The labels of a column, -1 where there is none."""
    wrong = next((value for value in column if not isinstance(value, int | None)), None)
    if wrong is not None:
        raise BadData(f"{path}: there is a label {wrong!r}; a label is a class index, an integer")
    return [-1 if value is None else value for value in column]


def _fields(kind: Any) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)]


@final
class _Held:
    """`load(block)`, the most recent blocks kept up to HELD_BYTES; two threads never load the same one twice."""

    def __init__(self, load: Callable[[int], list[bytes]]) -> None:
        self._load, self._lock, self._bytes = load, Lock(), 0
        self._blocks: OrderedDict[int, list[bytes]] = OrderedDict()

    def __call__(self, block: int) -> list[bytes]:
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = self._load(block)
                self._bytes += sum(map(len, self._blocks[block]))
            self._blocks.move_to_end(block)
            while self._bytes > HELD_BYTES and len(self._blocks) > 1:
                self._bytes -= sum(map(len, self._blocks.popitem(last=False)[1]))
            return self._blocks[block]


def _tars(paths: Sequence[Path], _: str) -> tuple[list[int], np.ndarray, Read]:
    """Labels (`KEY.cls`), blocks and the reader of tars whose files belong together where they share a KEY."""
    from PIL import Image as Pillow

    endings = Pillow.registered_extensions()
    found: list[tuple[Path, str, int, int]] = []  # shard, name, offset, bytes
    labels: list[int] = []
    block: list[int] = []
    for path in paths:
        marks, pictures = {}, []
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    key, _, ending = member.name.rpartition("/")[2].partition(".")
                    key = f"{member.name.rpartition('/')[0]}/{key}"
                    if any(part.startswith(".") for part in Path(member.name).parts):
                        continue  # hidden, as what a Mac puts beside every file
                    if member.isfile() and f".{ending.rpartition('.')[2].lower()}" in endings:
                        pictures.append((key, (path, member.name, member.offset_data, member.size)))
                    elif member.isfile() and ending == "cls":
                        marks[key] = int(archive.extractfile(member).read())  # type: ignore[union-attr]
                _check_end(archive)
        except (tarfile.TarError, ValueError) as error:
            raise BadData(f"{path}: truncated, damaged or no uncompressed tar ({error}). Download it again") from error
        base = block[-1] + 1 if block else 0
        block += [base + index // TAR_BLOCK for index in range(len(pictures))]
        labels += [marks.get(key, -1) for key, _ in pictures]
        found += [where for _, where in pictures]

    def read(index: int) -> Named:
        path, name, offset, size = found[index]
        handle = os.open(path, os.O_RDONLY)
        try:
            return f"{path.name}/{name}", os.pread(handle, size, offset)
        finally:
            os.close(handle)

    return labels, np.asarray(block, np.int64), read


def _check_end(archive: tarfile.TarFile) -> None:
    """Raises TarError if the members end with something else than zeros, or the file: tarfile stops at a damaged
    header as at the end, and says nothing of the members behind it."""
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"a damaged header at byte {archive.offset:,}")
