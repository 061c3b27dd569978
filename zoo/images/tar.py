"""WebDataset tars: files belong together where they share a KEY. A stretch of neighbours in a tar is a block."""

import json
import os
import tarfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.errors import BadData
from zoo.images.index import Encoded, Index
from zoo.images.labels import class_indices, class_names, label_name
from zoo.images.walk import is_hidden, is_image, suffix_of

TAR_BLOCK = 256  # pictures that count as neighbours
IMAGE_FIELDS = ("", ".image", ".img", ".input", ".rgb")  # between KEY and suffix: of the picture, the likeliest first
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")  # of one field in several types: the likeliest first


class _Member(NamedTuple):
    """A picture in a tar."""

    path: Path
    name: str
    offset: int
    size: int

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.removesuffix(self.name[-len(suffix_of(self.name)) :])


def tar_shards(paths: Sequence[Path], *, siblings: Sequence[Path] = ()) -> Index:
    """One picture of each sample of all `paths`, in order, with the labels of `KEY.cls` or `KEY.json`.

    siblings: the tars of the other splits, so that class names mean the same in all. Raises BadData for a damaged tar,
    and for samples of several pictures without a likeliest one.
    """
    found: list[_Member] = []
    marks: list[Any] = []
    blocks: list[int] = []
    others: Counter[str] = Counter()
    for path in paths:
        members, labels = _scan(path)
        pictures, fields = _pictures(members, labels, path)
        base = blocks[-1] + 1 if blocks else 0
        blocks += [base + number // TAR_BLOCK for number in range(len(pictures))]
        marks += [labels.get(key) for key, _ in pictures]
        found += [member for _, member in pictures]
        others += fields

    def read(place: int) -> Encoded:
        path, name, offset, size = found[place]
        handle = os.open(path, os.O_RDONLY)
        try:
            return Encoded(f"{path.name}/{name}", os.pread(handle, size, offset))
        finally:
            os.close(handle)

    classes: tuple[str, ...] = ()
    if any(isinstance(mark, str) for mark in marks):
        classes = class_names([*marks, *(mark for path in siblings for mark in _scan(path)[1].values())])
    facts = [(path.name, path.stat().st_size) for path in paths]
    labels_found = class_indices(marks, classes, str(paths[0].parent))
    return Index(labels_found, classes, np.asarray(blocks, np.int64), facts, read, others=dict(others))


def _scan(path: Path) -> tuple[list[_Member], dict[str, Any]]:
    """The pictures of a tar, and its labels by the name that they share with their picture."""
    members: list[_Member] = []
    labels: dict[str, Any] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                if not entry.isfile() or any(is_hidden(part) for part in Path(entry.name).parts):
                    continue
                suffix = suffix_of(entry.name)
                if is_image(entry.name):
                    members.append(_Member(path, entry.name, entry.offset_data, entry.size))
                elif suffix in (".cls", ".json"):
                    content = archive.extractfile(entry).read()  # type: ignore[union-attr]
                    label = _label(content, suffix, f"{path}: {entry.name}")
                    key = entry.name[: -len(suffix)]
                    labels[key] = labels.get(key) if label is None else label
            _check_end(archive)
    except tarfile.TarError as error:
        raise BadData(f"{path}: truncated, damaged or no uncompressed tar ({error}). Download it again") from error
    return members, labels


def _label(content: bytes, suffix: str, where: str) -> int | str | None:
    """A class index or a class's name; None where a JSON file has none."""
    try:
        text = content.decode().strip()
        if suffix == ".cls":
            return int(text) if text.lstrip("-").isdecimal() else text or None
        facts = json.loads(text)
    except ValueError as error:
        raise BadData(f"{where}: neither a class index nor a class's name ({error})") from error
    name = label_name(list(facts)) if isinstance(facts, dict) else None
    value = facts[name] if name else None
    return value if isinstance(value, int | str) else None


def _pictures(
    members: Sequence[_Member], labels: dict[str, Any], path: Path
) -> tuple[list[tuple[str, _Member]], Counter[str]]:
    """One picture of each sample with the key of its label, in order; and how many others there are, by their fields.

    A dot in a file's name may end KEY, as in `3.seg.png` beside `3.jpg`, or be a part of it, as in `v1.5.jpg`: it is
    a part where the whole name has a label, or nothing else shares what is before the dot.
    """
    stems = {member.stem for member in members}
    first = {stem: _before_dot(stem) for stem in stems}
    times = Counter(stem[len(first[stem]) :] for stem in stems)  # how often each field occurs
    many = Counter(first.values())
    samples: dict[str, list[tuple[str, _Member]]] = defaultdict(list)
    for member in members:
        stem = member.stem
        key, rest = first[stem], stem[len(first[stem]) :]
        a_field = rest and stem not in labels and (key in stems or key in labels or (many[key] > 1 and times[rest] > 1))
        samples[key if a_field else stem].append((rest if a_field else "", member))
    chosen = {id(_likeliest(sample, path)): key for key, sample in samples.items()}
    pictures = [(chosen[id(member)], member) for member in members if id(member) in chosen]
    fields = Counter(member.name[len(_before_dot(member.stem)) :] for member in members if id(member) not in chosen)
    return pictures, fields


def _likeliest(sample: Sequence[tuple[str, _Member]], path: Path) -> _Member:
    """The picture of a sample. Raises BadData if it has several without a likeliest one."""
    fields = {field for field, _ in sample}
    best = next((field for field in IMAGE_FIELDS if field in fields), None)
    if best is None and len(fields) > 1:
        names = ", ".join(member.name for _, member in sample)
        raise BadData(f"{path}: which of {names} is the picture? Name it KEY.jpg, or KEY.image.jpg")
    able = [member for field, member in sample if best is None or field == best]
    rank = {suffix: place for place, suffix in enumerate(SUFFIXES)}
    return min(able, key=lambda member: rank.get(suffix_of(member.name), len(rank)))


def _before_dot(stem: str) -> str:
    """The path up to the first dot of its last part."""
    folder, slash, name = stem.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def _check_end(archive: tarfile.TarFile) -> None:
    """Raises TarError if the members end with something else than zeros, or the file: tarfile stops at a damaged
    header as at the end, and says nothing of the members behind it."""
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"a damaged header at byte {archive.offset:,}")
