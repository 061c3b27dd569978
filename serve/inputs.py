"""The images of `serve.bulk`: what lies below a path or URL, cut into shards, and read from them one by one.

Of a file that is larger than MAX_IMAGE, also in an archive, one byte more than that is read.
"""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from serve.limits import MAX_IMAGE
from zoo.errors import BadData
from zoo.images.archive import ARCHIVES
from zoo.images.parquet import bytes_of, picture_column
from zoo.images.walk import IMAGE_SUFFIXES, is_hidden, is_image, walk

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
    images = [path for path in paths if is_image(path)]
    parts = [(images[n : n + FILES], 0) for n in range(0, len(images), FILES)]
    parts += [([path], 0) for path in paths if path.lower().endswith(ARCHIVES)]
    for path in paths:
        if _suffix(path) == ".parquet":
            parts += [([path], group) for group in range(_parquet(system, path)[0].num_row_groups)]
    if not parts:
        raise BadData(f"{source}: no {', '.join([*sorted(IMAGE_SUFFIXES), *ARCHIVES])} or .parquet file")
    return [Shard(number, files, group) for number, (files, group) in enumerate(parts)]


def _files_below(system: fs.FileSystem, root: str) -> list[str]:
    """Every file of a folder, at any depth. Raises BadData for a local name that is no text."""
    if not isinstance(system, fs.LocalFileSystem):
        found = system.get_file_info(fs.FileSelector(root, recursive=True))
        files = [each.path for each in found if each.type == fs.FileType.File]
        return [path for path in files if not _hidden(PurePosixPath(path).relative_to(root).as_posix())]
    paths = [str(Path(root) / path) for path in walk(Path(root)).files]
    for path in paths:
        if _text(path) != path:  # pyarrow could not open it
            raise BadData(f"{_text(path)}: the name of this file is not UTF-8. Rename it")
    return paths


def _text(name: str) -> str:
    """A file's name as Unicode: Python keeps bytes that are not UTF-8 as lone surrogates, which no row can hold."""
    return name.encode(errors="backslashreplace").decode()


def images_of(source: str, shard: Shard) -> Iterator[Encoded]:
    """Every image of a shard, once; ids are paths below the input, with the place in an archive or Parquet file."""
    system, root = filesystem(source)
    for path in shard.files:
        name = PurePosixPath(path).relative_to(root).as_posix() if path != root else PurePosixPath(path).name
        if is_image(path):
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
    return file, picture_column(file.schema_arrow, path)


def _parquet_images(system: fs.FileSystem, path: str, name: str, group: int) -> Iterator[Encoded]:
    """The images of one row group, their ids with the place among all rows."""
    file, column = _parquet(system, path)
    first = sum(file.metadata.row_group(each).num_rows for each in range(group))
    for place, value in enumerate(file.read_row_group(group, columns=[column])[column].to_pylist(), first):
        yield f"{name}#{place}", bytes_of(value)


def _archived_images(file: IO[bytes], name: str) -> Iterator[Encoded]:
    """Raises BadData for a damaged archive."""
    try:
        if _suffix(name) == ".zip":
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    if is_image(info.filename) and not _hidden(info.filename):
                        with archive.open(info) as member:
                            yield f"{name}/{_text(info.filename)}", member.read(MAX_IMAGE + 1)
            return
        with tarfile.open(fileobj=file) as tar:
            for entry in tar:
                wanted = entry.isfile() and is_image(entry.name) and not _hidden(entry.name)
                content = tar.extractfile(entry) if wanted else None
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


def _hidden(path: str) -> bool:
    """Whether a path goes through a hidden folder or to a hidden file."""
    return any(is_hidden(part) for part in PurePosixPath(path).parts)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()
