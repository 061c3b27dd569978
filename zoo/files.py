"""Files that are whole or not there at all, and the folder they are kept in."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import ZooError


def zoo_home() -> Path:
    """Folder of kept models and caches: `$ZOO_HOME`, or `~/.cache/contrastive-zoo`."""
    return Path(os.environ.get("ZOO_HOME") or "~/.cache/contrastive-zoo").expanduser()


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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.chmod(0o644)
        aside.replace(path)
    except OSError as error:
        raise ZooError(
            f"cannot write {path}: {error.strerror or error}. The earlier file, if any, is untouched"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill; after the block it takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside
        aside.chmod(0o755)
        old = Path(f"{aside}.old")
        if path.exists():
            path.rename(old)
        aside.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ZooError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
