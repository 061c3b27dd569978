"""Folders with one file for each picture: class folders of each split, or any folder of one's own."""

from collections.abc import Sequence
from pathlib import Path

from zoo.errors import BadData
from zoo.images.dataset import SPLITS, SplitName
from zoo.images.index import Index, index_of_files
from zoo.images.walk import IMAGE_SUFFIXES, find_images, is_hidden, summary


def class_folders(folder: Path, split: SplitName) -> Index:
    """`<split>/<class>/.../<image>`. Raises BadData if there is no image.

    The classes are those of all splits together, so a label means the same in each; -1 outside any class folder.
    """
    return folders_of_classes(folder, split, [part for part in SPLITS if (folder / part).is_dir()])


def folders_of_classes(folder: Path, split: str, parts: Sequence[str]) -> Index:
    """As `class_folders`; the classes are those of all `parts` together."""
    classes = sorted({entry.name for part in parts for entry in (folder / part).iterdir() if _is_class(entry)})
    return _labelled_by_folder(folder / split, classes)


def own_images(folder: Path) -> Index:
    """All images below `folder`, at any depth. Raises BadData if there is none.

    The folders directly below are the classes if every picture is in one of them; else there are none, and all labels
    are -1.
    """
    paths = find_images(folder).paths
    flat = any(len(path.parts) == 1 for path in paths)
    return _labelled_by_folder(folder, [] if flat else sorted({path.parts[0] for path in paths}))


def _labelled_by_folder(root: Path, classes: Sequence[str]) -> Index:
    paths, skipped, others = find_images(root)
    if not paths:
        there = f" ({summary(others)})" if others else ""
        known = ", ".join(sorted(IMAGE_SUFFIXES))
        raise BadData(f"{root}: no image in it, at any depth{there}; an image ends in one of {known}")
    label = {name: number for number, name in enumerate(classes)}
    labels = [label.get(path.parts[0], -1) if len(path.parts) > 1 else -1 for path in paths]
    return index_of_files(root, paths, labels, classes, skipped=skipped, others=others)


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not is_hidden(entry.name)
