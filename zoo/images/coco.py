"""Folders with COCO annotations: boxes become image-level labels, as of Lin et al. 2014's 80 classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import BadData
from zoo.images.index import Index, index_of_files
from zoo.images.walk import find_images

KEYS = {"images", "annotations", "categories"}


def coco_files(folder: Path) -> dict[str, Path]:
    """The annotation files below a folder by their split, "all" where the name tells none."""
    found: dict[str, Path] = {}
    for path in sorted(
        [*folder.glob("*.json"), *folder.glob("annotations/*.json"), *folder.glob("*/_annotations*.json")]
    ):
        if path.name.startswith(("captions", "person_keypoints", ".")) or not _is_coco(path):
            continue
        words = f"{path.parent.name if path.parent != folder else ''} {path.stem}".lower()
        split = next((split for split in ("train", "test", "val") if split in words), "all")
        if split in found:
            raise BadData(f"{folder}: which annotations are of {split}: {found[split].name} or {path.name}?")
        found[split] = path
    return found


def coco_splits(folder: Path) -> dict[str, Index]:
    """The images that the annotation files list, with labels (n, C): 1 where an object of the class is on it."""
    files = coco_files(folder)
    contents = {split: json.loads(path.read_text()) for split, path in files.items()}
    names = {each["id"]: each["name"] for content in contents.values() for each in content["categories"]}
    used = {each["category_id"] for content in contents.values() for each in content["annotations"]}
    order = sorted(used & set(names))
    if not order:
        raise BadData(f"{folder}: no annotation is of one of its categories")
    found = find_images(folder)
    by_name: dict[str, Path] = {}
    for path in found.paths:
        by_name.setdefault(path.name, path)
        by_name[path.as_posix()] = path
    return {split: _index(folder, content, by_name, order, names) for split, content in contents.items()}


def _index(folder: Path, content: Any, by_name: dict[str, Path], order: list[int], names: dict[int, str]) -> Index:
    place = {category: column for column, category in enumerate(order)}
    rows = {each["id"]: np.zeros(len(order), np.int64) for each in content["images"]}
    for each in content["annotations"]:
        if each["image_id"] in rows and each["category_id"] in place:
            rows[each["image_id"]][place[each["category_id"]]] = 1
    skipped: dict[str, str] = {}
    kept: list[tuple[Path, np.ndarray]] = []
    for each in content["images"]:
        path = by_name.get(each["file_name"]) or by_name.get(Path(each["file_name"]).name)
        if path is None:
            skipped[each["file_name"]] = "is annotated, but there is no such image"
        else:
            kept.append((path, rows[each["id"]]))
    if not kept:
        raise BadData(f"{folder}: none of the {len(rows)} images that its annotations list is there")
    kept.sort(key=lambda each: each[0].parts)
    labels = np.stack([marks for _, marks in kept])
    return index_of_files(folder, [path for path, _ in kept], labels, [names[each] for each in order], skipped=skipped)


def _is_coco(path: Path) -> bool:
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError):
        return False
    return isinstance(content, dict) and set(content) >= KEYS
