"""`zoo index NAME FOLDER`: the embeddings of a folder's images in one file, brought up to date when run again."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Annotated

import numpy as np
import tyro

from zoo.command_line import parse_and_call, run_command
from zoo.errors import BadData, BadImage, ZooError

if __name__ == "__main__":
    run_command("serve.index", extra="index")

import onnxruntime  # noqa: F401  (serve.session's)

from serve.limits import MAX_BATCH, MAX_IMAGE
from serve.search import SUFFIX, Entry, Facts, read_index, write_index
from serve.session import Session, open_model
from zoo.files import locked, zoo_home
from zoo.images.walk import IMAGE_SUFFIXES, find_images
from zoo.model.embedding import unit_rows

ASIDE = ".building"  # folder beside an index: who holds its lock builds, and keeps there what is embedded so far
PAUSE = 60.0  # seconds between two savings: what a kill can lose


def build(
    model: tyro.conf.Positional[str],
    folder: tyro.conf.Positional[Path],
    *,
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
) -> Path:
    """Embed the images below a folder for POST /v1/search; a second run embeds only what is new or changed.

    A server that has the file open answers from the new one as soon as it is whole. A run that was stopped goes on
    where it was, less the last minute if it was killed.

    Args:
        model: a kept model's name, a run folder or an .onnx file.
        folder: searched through all its folders for image files.
        output: the file to write, ending in .index.npz; by default in $ZOO_HOME/indexes, named after the folder.
    """
    path = output or default_file(folder)
    if not path.name.endswith(SUFFIX):
        raise ZooError(f"-o {path}: the name of an index ends in {SUFFIX}")
    session, entries = open_model(model), entries_below(folder)
    begun = path.parent / ASIDE / path.name
    with locked(begun.parent):  # two builds at once would both embed everything
        for left in begun.parent.iterdir():
            if left.name.startswith(f".{path.name}."):  # half a file, of a build that was killed as it wrote
                left.unlink()
        rows = known_vectors(path, session) | known_vectors(begun, session)
        todo = [entry for entry in entries if entry not in rows]
        reasons = embed_new(session, folder, todo, rows, keep=lambda: write_rows(begun, session, folder, entries, rows))
        indexed = write_rows(begun, session, folder, entries, rows)
        begun.replace(path)
    for reason in reasons:
        print(f"left out: {reason}", file=sys.stderr)
    print(f"{path}: {indexed} images, {len(todo) - len(reasons)} of them new, {len(reasons)} left out")
    return path


def default_file(folder: Path) -> Path:
    """Where the index of a folder lies if no file was named. Raises ZooError if that of another folder lies there."""
    path = zoo_home() / "indexes" / f"{folder.resolve().name}{SUFFIX}"
    other = Path(read_index(path)[0].folder) if path.exists() else folder
    if other.is_dir() and folder.is_dir() and not other.samefile(folder):  # else it was moved
        raise ZooError(f"{path} is the index of {other}. Name another file for this folder: -o NAME{SUFFIX}")
    return path


def entries_below(folder: Path) -> list[Entry]:
    """Every image file below a folder, in the order of their paths. Raises BadData if there is none."""
    if not folder.is_dir():
        raise BadData(f"{folder}: no such folder")
    found = find_images(folder)
    for name, reason in found.skipped.items():
        print(f"left out: {folder / name}: {reason}", file=sys.stderr)
    if not found.paths:
        raise BadData(f"{folder}: no image file ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return [
        Entry(path.as_posix(), stat.st_size, stat.st_mtime_ns)
        for path, stat in ((path, (folder / path).stat()) for path in found.paths)
    ]


def known_vectors(path: Path, session: Session) -> dict[Entry, np.ndarray]:
    """The unit vectors (D,) of an earlier file, if it is of the same weights."""
    if not path.exists():
        return {}
    facts, vectors = read_index(path)
    same = (facts.model, facts.weights_sha256) == (session.name, session.weights_sha256)
    return dict(zip(facts.entries, vectors, strict=True)) if same else {}


def embed_new(
    session: Session, folder: Path, entries: list[Entry], rows: dict[Entry, np.ndarray], *, keep: Callable[[], object]
) -> list[str]:
    """Add the unit vectors (D,) of image files to `rows`; why others have none. keep: saves what `rows` has so far."""
    reasons: list[str] = []
    kept = monotonic()
    try:
        for batch in _decoded(session, folder, entries, reasons):
            vectors = unit_rows(session.embed_pixels(np.stack([pixels for _, pixels in batch])))
            rows |= {entry: row for (entry, _), row in zip(batch, vectors, strict=True)}
            if monotonic() - kept > PAUSE:
                keep()
                kept = monotonic()
    except KeyboardInterrupt:
        keep()
        raise
    return reasons


def write_rows(path: Path, session: Session, folder: Path, entries: list[Entry], rows: dict[Entry, np.ndarray]) -> int:
    """Write the index of those entries that have a row (D,); how many these are."""
    good = [entry for entry in entries if entry in rows]
    facts = Facts(
        model=session.name,
        weights_sha256=session.weights_sha256,
        dim=session.dim,
        folder=str(folder.resolve()),
        entries=good,
    )
    write_index(path, facts, np.array([rows[entry] for entry in good], np.float32).reshape(-1, session.dim))
    return len(good)


def _decoded(
    session: Session, folder: Path, entries: list[Entry], reasons: list[str]
) -> Iterator[list[tuple[Entry, np.ndarray]]]:
    """Batches of entries with their pixels (S, S, 3) uint8; what cannot be read goes to `reasons`."""
    batch = []
    for entry in entries:
        try:
            entry.path.encode()
            if entry.size > MAX_IMAGE:
                raise BadImage(f"larger than {MAX_IMAGE:,} bytes")
            batch.append((entry, session.preprocess((folder / entry.path).read_bytes(), formats=None)))
        except (BadImage, OSError) as error:
            reasons.append(f"{folder / entry.path}: {error}")
        except UnicodeEncodeError:  # no answer in JSON could hold it
            name = entry.path.encode(errors="backslashreplace").decode()
            reasons.append(f"{folder}/{name}: the name of this file is not UTF-8. Rename it")
        if len(batch) == MAX_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> None:
    """Command line of `zoo index`."""
    parse_and_call(
        build,
        prog="zoo index",
        stopped="an earlier index is as it was; the same command goes on from here",
    )
