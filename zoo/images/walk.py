"""Which files below a folder are images: the one walk and the one list of types that every reader uses."""

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

IMAGE_SUFFIXES = frozenset({
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png",
    ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
})  # fmt: skip
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})  # read where the package pillow-heif is installed
UNREAD_SUFFIXES = frozenset({
    ".arw", ".cr2", ".cr3", ".dng", ".jxl", ".nef", ".orf", ".psd", ".raf", ".rw2", ".svg",
})  # pictures that are read nowhere here  # fmt: skip
NAMED_TYPES = 4  # file types that one line of a summary names


class Walk(NamedTuple):
    """What is below a folder, hidden files and folders left out."""

    files: list[Path]  # relative to the folder, in the order of their parts
    passed_over: dict[str, str]  # links that were not followed, with the reason


class Found(NamedTuple):
    """The image files below a folder."""

    paths: list[Path]  # relative to the folder, in the order of their parts
    skipped: dict[str, str]  # pictures that cannot be read and links that were not followed, with the reason
    others: dict[str, int]  # by suffix: how many files are no images


def is_image(name: str) -> bool:
    """Whether a file of this name counts as an image, in a folder, an archive or a shard."""
    suffix = suffix_of(name)
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and reads_heif())


@cache
def reads_heif() -> bool:
    """Whether pictures of phones in HEIF can be read."""
    return find_spec("pillow_heif") is not None


def unread_reason(name: str) -> str:
    """Why a file that is a picture by its name cannot be read; "" for other files."""
    suffix = suffix_of(name)
    if suffix in HEIF_SUFFIXES and not reads_heif():
        return "HEIF is read by the package pillow-heif: pip install pillow-heif"
    if suffix in UNREAD_SUFFIXES:
        return f"{suffix} is not read; convert it to JPEG or PNG"
    return ""


def suffix_of(name: str) -> str:
    """The last suffix in lower case, such as ".jpg"; "" if there is none."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  (pathlib would be the slowest part of a large walk)


def is_hidden(part: str) -> bool:
    """Whether a file or folder is one that file managers, notebooks and archivers leave behind."""
    return part.startswith(".") or part == "__MACOSX"


def walk(folder: Path, *, on_error: Callable[[OSError], object] | None = None) -> Walk:
    """Every file below `folder`, through links to folders as well, each folder once.

    Folders themselves go before links to them, so a link never takes the place of what it points to, and no link can
    lead in circles. on_error: called with what keeps a folder from being searched, which is raised by default.
    """
    files: list[tuple[str, ...]] = []
    passed_over: dict[str, str] = {}
    seen = {_identity(folder)}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        links: list[tuple[str, ...]] = []
        for start in waiting:
            links += _walk_folders(folder, start, seen, files, passed_over, on_error or _raise)
        waiting = []
        for link in sorted(links):
            identity = _identity(folder.joinpath(*link))
            if identity in seen:
                passed_over["/".join(link)] = "a link to a folder that is searched already"
            else:
                seen.add(identity)
                waiting.append(link)
    return Walk([Path(*parts) for parts in sorted(files)], passed_over)


def _walk_folders(
    root: Path,
    start: tuple[str, ...],
    seen: set[tuple[int, int]],
    files: list[tuple[str, ...]],
    passed_over: dict[str, str],
    on_error: Callable[[OSError], object],
) -> list[tuple[str, ...]]:
    """Add the files below root/start to `files`; the links to folders that were met and not followed."""
    links, waiting = [], [start]
    while waiting:
        parts = waiting.pop()
        try:
            with os.scandir(root.joinpath(*parts)) as entries:
                for entry in entries:
                    below = (*parts, entry.name)
                    if is_hidden(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        seen.add(_identity(root.joinpath(*below)))
                        waiting.append(below)
                    elif entry.is_dir():
                        links.append(below)
                    elif entry.is_file():
                        files.append(below)
                    elif entry.is_symlink():
                        passed_over["/".join(below)] = "a link to nothing"
        except OSError as error:
            on_error(error)
    return links


def find_images(folder: Path, *, on_error: Callable[[OSError], object] | None = None) -> Found:
    """The image files below `folder`, by their names, and what else is there."""
    files, skipped = walk(folder, on_error=on_error)
    paths: list[Path] = []
    others: Counter[str] = Counter()
    for path in files:
        if is_image(path.name):
            paths.append(path)
        elif reason := unread_reason(path.name):
            skipped[path.as_posix()] = reason
        else:
            others[suffix_of(path.name)] += 1
    return Found(paths, skipped, dict(others))


def summary(others: dict[str, int]) -> str:
    """`7 files are no images: 4 .txt, 3 without suffix`; "" if there are none."""
    if not others:
        return ""
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{count:,} {suffix or 'without suffix'}" for suffix, count in ordered[:NAMED_TYPES]]
    rest = sum(count for _, count in ordered[NAMED_TYPES:])
    total = sum(others.values())
    verb = "file is no image" if total == 1 else "files are no images"
    return f"{total:,} {verb}: {', '.join(named)}{f', {rest:,} of other types' if rest else ''}"


def _identity(folder: Path) -> tuple[int, int]:
    """The same for a folder and for every link to it."""
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def _raise(error: OSError) -> None:
    raise error
