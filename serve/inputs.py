"""The images of `serve.bulk`: what lies below a path or URL, cut into shards, and read from them one by one.

Of a file that is larger than MAX_IMAGE, also in an archive, one byte more than that is read.
"""

import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from serve.limits import MAX_IMAGE, SUFFIXES
from zoo.errors import BadData

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
COLUMNS = ("image", "img", "bytes")  # of a Parquet file's images: bytes, or the Hub's struct of bytes and path
# what Python's readers raise; RuntimeError: encrypted, or packed in a way they do not know; UnicodeError: a name
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, UnicodeError)
FILES = 1000  # image files of one shard

Encoded = tuple[str, bytes | None]  # id, file; None where a row of Parquet holds none


class Shard(NamedTuple):
    """A part of the input that is embedded, and repeated after a kill, as one."""

    number: int
    files: list[str]  # image files, or one archive or Parquet file
    row_group: int = 0  # of the Parquet file


def shards_of(source: str) -> list[Shard]:
    """The input, an absolute path or a URL, cut up; always in the same way. Raises BadData if it holds no image."""
    system, root = filesystem(source)
    info = system.get_file_info(root)
    if info.type == fs.FileType.NotFound:
        raise BadData(f"{source}: no such file or folder")
    paths = sorted(_files_below(system, root) if info.type == fs.FileType.Directory else [info.path])
    images = [path for path in paths if _suffix(path) in SUFFIXES]
    parts = [(images[n : n + FILES], 0) for n in range(0, len(images), FILES)]
    parts += [([path], 0) for path in paths if path.lower().endswith(ARCHIVES)]
    for path in paths:
        if _suffix(path) == ".parquet":
            parts += [([path], group) for group in range(_parquet(system, path)[0].num_row_groups)]
    if not parts:
        raise BadData(f"{source}: no {', '.join([*sorted(SUFFIXES), *ARCHIVES])} or .parquet file")
    return [Shard(number, files, group) for number, (files, group) in enumerate(parts)]


def _files_below(system: fs.FileSystem, root: str) -> list[str]:
    """Every file of a folder, at any depth. Raises BadData for a local name that is no text."""
    if not isinstance(system, fs.LocalFileSystem):
        found = system.get_file_info(fs.FileSelector(root, recursive=True))
        return [each.path for each in found if each.type == fs.FileType.File]
    paths: list[str] = []
    seen = {_identity(Path(root))}
    for folder, below, names in os.walk(root, followlinks=True, onerror=_raised):
        # a link to a folder that was met already, such as to one above, would give its images again, or without end
        fresh = {_identity(Path(folder, name)): name for name in sorted(below, reverse=True)}
        below[:] = sorted(name for identity, name in fresh.items() if identity not in seen)
        seen |= fresh.keys()
        paths += [str(path) for path in (Path(folder, name) for name in names) if path.is_file()]
    for path in paths:
        if _text(path) != path:  # pyarrow could not open it
            raise BadData(f"{_text(path)}: the name of this file is not UTF-8. Rename it")
    return paths


def _identity(folder: Path) -> tuple[int, int]:
    """The same for a folder and for every link to it."""
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def _raised(error: OSError) -> None:
    raise error


def _text(name: str) -> str:
    """A file's name as Unicode: Python keeps bytes that are not UTF-8 as lone surrogates, which no row can hold."""
    return name.encode(errors="backslashreplace").decode()


def images_of(source: str, shard: Shard) -> Iterator[Encoded]:
    """Every image of a shard, once; ids are paths below the input, with the place in an archive or Parquet file."""
    system, root = filesystem(source)
    for path in shard.files:
        name = PurePosixPath(path).relative_to(root).as_posix() if path != root else PurePosixPath(path).name
        if _suffix(path) in SUFFIXES:
            with system.open_input_stream(path) as stream:
                yield name, stream.read(MAX_IMAGE + 1)
        elif _suffix(path) == ".parquet":
            yield from _parquet_images(system, path, name, shard.row_group)
        else:
            with system.open_input_file(path) as file:
                yield from _archived_images(file, name)


def _parquet(system: fs.FileSystem, path: str) -> tuple[pq.ParquetFile, str]:
    """A Parquet file, and the name of its column of images. Raises BadData for a damaged file, or one without."""
    try:
        file = pq.ParquetFile(path, filesystem=system)
    except pa.ArrowInvalid as error:
        raise BadData(f"{path}: not a sound Parquet file ({error}). Make or fetch it again") from error
    kinds = {field.name: field.type for field in file.schema_arrow}
    for column in COLUMNS:
        if column in kinds and _holds_files(kinds[column]):
            return file, column
    held = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    raise BadData(f"{path}: no column {' or '.join(COLUMNS)} of encoded images; it has {held}")


def _holds_files(kind: pa.DataType) -> bool:
    """Whether a cell is bytes, or a struct that has `bytes`."""
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_files(kind.field("bytes").type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _parquet_images(system: fs.FileSystem, path: str, name: str, group: int) -> Iterator[Encoded]:
    """The images of one row group, their ids with the place among all rows."""
    file, column = _parquet(system, path)
    first = sum(file.metadata.row_group(each).num_rows for each in range(group))
    for place, value in enumerate(file.read_row_group(group, columns=[column])[column].to_pylist(), first):
        yield f"{name}#{place}", value["bytes"] if isinstance(value, dict) else value


def _archived_images(file: IO[bytes], name: str) -> Iterator[Encoded]:
    """Raises BadData for a damaged archive."""
    try:
        if _suffix(name) == ".zip":
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    if _suffix(info.filename) in SUFFIXES:
                        with archive.open(info) as member:
                            yield f"{name}/{_text(info.filename)}", member.read(MAX_IMAGE + 1)
            return
        with tarfile.open(fileobj=file) as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isfile() and _suffix(entry.name) in SUFFIXES else None
                if content is not None:
                    yield f"{name}/{_text(entry.name)}", content.read(MAX_IMAGE + 1)
    except DAMAGED as error:
        raise BadData(f"{name}: not a sound zip or tar archive ({error}). Make or fetch it again") from error


def filesystem(source: str) -> tuple[fs.FileSystem, str]:
    """Where an absolute path or a URL lies, and the path there. Raises BadData for a URL of another kind."""
    if "://" not in source:
        return fs.LocalFileSystem(), source
    try:
        return fs.FileSystem.from_uri(source)
    except pa.ArrowInvalid as error:
        raise BadData(
            f"{source}: {error}. Take a path, or a URL of an object store: s3, gs, abfs, hdfs, file"
        ) from error


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()
