"""Archives of folders: unpacked once, into the cache under `$ZOO_HOME`."""

import hashlib
import tarfile
import zipfile
from pathlib import Path

from zoo.errors import BadData
from zoo.files import locked, new_folder, zoo_home
from zoo.images.dataset import SPLITS
from zoo.images.walk import is_hidden

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


def unpacked(path: Path) -> Path:
    """The folder itself, or the cached contents of an archive. Raises BadData for a damaged one, or another file."""
    if path.is_dir():
        return path.resolve()
    if not path.name.lower().endswith(ARCHIVES):
        raise BadData(f"{path}: neither a folder nor an archive ({', '.join(ARCHIVES)})")
    stat = path.stat()
    decides = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    key = hashlib.sha256(decides.encode()).hexdigest()[:16]
    folder = zoo_home() / "cache" / "archives" / f"{path.name.split('.')[0]}-{key}"
    with locked(folder.parent):
        if not folder.is_dir():
            with new_folder(folder) as aside:
                _extract(path, aside)
    inside = [entry for entry in folder.iterdir() if not is_hidden(entry.name)]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() and inside[0].name not in SPLITS else folder


def _extract(path: Path, folder: Path) -> None:
    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as archive:  # zipfile drops "..", leading slashes and links itself
                for member in archive.infolist():
                    member.filename = member.filename.replace("\\", "/")  # as some Windows tools write them
                    archive.extract(member, folder)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
                while archive.fileobj and archive.fileobj.read(2**20):
                    pass  # to the end: there gzip keeps its checksum, which tarfile alone would never reach
    except Exception as error:  # hostile archives raise anything at all
        if isinstance(error, OSError) and error.errno is not None:  # such as a full disk
            raise
        raise BadData(f"{path}: truncated, damaged or no archive ({error}). Download it again") from error
