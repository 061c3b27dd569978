"""WebDataset tars: files belong together where they share a KEY. A stretch of neighbours in a tar is a block."""

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zoo.errors import BadData
from zoo.images.index import Encoded, Index
from zoo.images.walk import is_hidden, is_image

TAR_BLOCK = 256  # pictures that count as neighbours


def tar_shards(paths: Sequence[Path]) -> Index:
    """The pictures of all `paths`, in order, with the labels of `KEY.cls`. Raises BadData for a damaged tar."""
    found: list[tuple[Path, str, int, int]] = []  # shard, name, offset, bytes
    labels: list[int] = []
    blocks: list[int] = []
    for path in paths:
        marks, pictures = {}, []
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    key, _, ending = member.name.rpartition("/")[2].partition(".")
                    key = f"{member.name.rpartition('/')[0]}/{key}"
                    if any(is_hidden(part) for part in Path(member.name).parts):
                        continue
                    if member.isfile() and is_image(member.name):
                        pictures.append((key, (path, member.name, member.offset_data, member.size)))
                    elif member.isfile() and ending == "cls":
                        marks[key] = int(archive.extractfile(member).read())  # type: ignore[union-attr]
                _check_end(archive)
        except (tarfile.TarError, ValueError) as error:
            raise BadData(f"{path}: truncated, damaged or no uncompressed tar ({error}). Download it again") from error
        base = blocks[-1] + 1 if blocks else 0
        blocks += [base + index // TAR_BLOCK for index in range(len(pictures))]
        labels += [marks.get(key, -1) for key, _ in pictures]
        found += [where for _, where in pictures]

    def read(place: int) -> Encoded:
        path, name, offset, size = found[place]
        handle = os.open(path, os.O_RDONLY)
        try:
            return Encoded(f"{path.name}/{name}", os.pread(handle, size, offset))
        finally:
            os.close(handle)

    facts = [(path.name, path.stat().st_size) for path in paths]
    return Index(_as_int64(labels, paths), (), np.asarray(blocks, np.int64), facts, read)


def _as_int64(labels: list[int], paths: Sequence[Path]) -> np.ndarray:
    """(n,) int64. Raises BadData for a number that no such label can be."""
    try:
        return np.asarray(labels, np.int64)
    except OverflowError as error:
        raise BadData(f"{paths[0].parent}: labels {min(labels)}..{max(labels)}; a label is a class index") from error


def _check_end(archive: tarfile.TarFile) -> None:
    """Raises TarError if the members end with something else than zeros, or the file: tarfile stops at a damaged
    header as at the end, and says nothing of the members behind it."""
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"a damaged header at byte {archive.offset:,}")
