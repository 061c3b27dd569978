"""Files that are whole or not there at all, and the folder they are kept in."""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zoo.errors import ZooError


def zoo_home() -> Path:
    """Folder of kept models and caches: `$ZOO_HOME`, or `~/.cache/contrastive-zoo`. Raises ZooError: no home."""
    path = Path(os.environ.get("ZOO_HOME") or "~/.cache/contrastive-zoo")
    try:
        return path.expanduser()
    except RuntimeError as error:  # as of a container's user without a home
        raise ZooError(f"{path}: whose home is that? Set ZOO_HOME to a folder for kept models and caches") from error


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole: aside, flushed to disk, then renamed over `path`. On failure `path` stays as it was."""
    with new_file(path) as aside:
        aside.write_bytes(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file name beside `path` to write to; after the block it is flushed to disk and becomes `path`."""
    with _written(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        aside = Path(name)
        try:
            yield aside
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.chmod(0o644)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill; after the block it takes the place of `path`."""
    with _written(path):
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield aside
            aside.chmod(0o755)
            _take_place(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there. Raises ZooError."""
    with _written(path):
        path.mkdir(exist_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While the block runs, other processes and threads that ask for the same folder wait. A kill unlocks it, too."""
    make_folder(folder)
    with _written(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Make the parent folder; tell the system's errors as ours."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ZooError(
            f"cannot write {path}: {error.strerror or error}. What was there before, if anything, is untouched"
        ) from error


def _take_place(aside: Path, path: Path) -> None:
    """Rename the folder `aside` to `path`, whatever other processes put there meanwhile: the last one stays."""
    old = Path(f"{aside}.old")
    while True:
        with suppress(FileNotFoundError):
            path.rename(old)
        try:
            aside.rename(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was faster: once more
                with suppress(FileNotFoundError):
                    old.rename(path)
                raise
        finally:
            _remove(old)


def _remove(old: Path) -> None:
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)
