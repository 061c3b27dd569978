"""A folder in the layout of PASCAL VOC: JPEGImages, Annotations, ImageSets/Main.

Everingham et al. 2010. An object may be marked as difficult: an answer about it counts neither way.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from zoo.errors import BadData
from zoo.images.dataset import SplitName
from zoo.images.index import Index, index_of_files

LARGEST_SIDE = 2**24  # pixels; float32 holds each whole number up to it

# The lists that a split may lie in; the first that is there is taken.
LISTS: dict[SplitName, tuple[str, ...]] = {"train": ("trainval", "train"), "test": ("test",)}


class Scene(NamedTuple):
    """One image and what is on it, difficult or not."""

    image: Path
    boxes: np.ndarray  # (k, 4) float32: left, top, right, bottom in pixels, from 0
    names: tuple[str, ...]  # of their classes
    difficult: np.ndarray  # (k,) bool


def read_voc(folder: Path, split: str) -> list[Scene]:
    """The scenes that ImageSets/Main/<split>.txt lists, to find boxes in: those without an area are left out.

    Raises BadData if the list or an annotation is missing or unreadable, an image is missing, or no box is surely one.
    """
    scenes = [_to_find(scene) for scene in _scenes(folder, split)]
    if all(scene.difficult.all() for scene in scenes):
        raise BadData(f"{_list_file(folder, split)}: no box to find in {len(scenes)} images")
    return scenes


def class_names(scenes: Sequence[Scene]) -> list[str]:
    """All classes that have a box, in order of the alphabet."""
    return sorted({name for scene in scenes for name in scene.names})


def voc_images(folder: Path, split: SplitName) -> Index:
    """The images of `labelled_images`. Raises what it raises."""
    return index_of_files(folder, *labelled_images(folder, split))


def labelled_images(folder: Path, split: SplitName) -> tuple[list[Path], np.ndarray, list[str]]:
    """The images of a split below `folder`, their labels (n, C) int64, and the C classes of both splits together.

    1: an object of the class is on the image; 0: none is; -1: only difficult ones, which counts neither way.
    Both splits have to be there. Raises BadData if a list or an annotation is missing or unreadable, an image is
    missing, or there is no object at all.
    """
    found = {name: _scenes(folder, _first_list(folder, lists)) for name, lists in LISTS.items()}
    classes = class_names([scene for scenes in found.values() for scene in scenes])
    if not classes:
        raise BadData(f"{folder}: no object on any image of its lists")
    marks = [_marks(scene, classes) for scene in found[split]]
    images = [scene.image.relative_to(folder) for scene in found[split]]
    return images, np.array(marks, np.int64), classes


def _marks(scene: Scene, classes: Sequence[str]) -> list[int]:
    sure = {name for name, hard in zip(scene.names, scene.difficult, strict=True) if not hard}
    return [1 if name in sure else -1 if name in scene.names else 0 for name in classes]


def _first_list(folder: Path, names: Sequence[str]) -> str:
    return next((name for name in names if _list_file(folder, name).is_file()), names[0])


def _list_file(folder: Path, name: str) -> Path:
    return folder / "ImageSets" / "Main" / f"{name}.txt"


def _scenes(folder: Path, name: str) -> list[Scene]:
    path = _list_file(folder, name)
    if not path.is_file():
        there = sorted(other.stem for other in path.parent.glob("*.txt"))
        raise BadData(f"{path}: no such list; there are {there or 'none'}. A VOC folder has ImageSets/Main/<split>.txt")
    try:
        names = [line.split()[0] for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not a list of images ({error})") from error
    if not names:
        raise BadData(f"{path}: lists no image")
    (most, times), *_ = Counter(names).most_common(1)
    if times > 1:
        raise BadData(f"{path}: {most} stands there {times} times, and would count as often; once is enough")
    return [_scene(folder, name) for name in names]


def _scene(folder: Path, name: str) -> Scene:
    annotation = folder / "Annotations" / f"{name}.xml"
    image = folder / "JPEGImages" / f"{name}.jpg"
    try:
        root = ElementTree.parse(annotation).getroot()
        if root.tag != "annotation":
            raise ValueError(f"it is a {root.tag}")
        objects = list(root.iter("object"))
        names = tuple(map(_name, objects))
        boxes = np.array([_box(item) for item in objects], np.float32).reshape(-1, 4)
    except (OSError, ElementTree.ParseError, LookupError, ValueError) as error:  # LookupError: of an unknown encoding
        raise BadData(f"{annotation}: not an annotation ({error})") from error
    if not image.is_file():
        raise BadData(f"{image}: no such image, though {annotation.name} describes it")
    difficult = [item.findtext("difficult", "0").strip() == "1" for item in objects]
    return Scene(image, boxes, names, np.array(difficult, bool))


def _to_find(scene: Scene) -> Scene:
    """Without the boxes that hold nothing, which torchvision refuses."""
    left, top, right, bottom = scene.boxes.T
    kept = np.flatnonzero((right > left) & (bottom > top))
    return Scene(scene.image, scene.boxes[kept], tuple(scene.names[i] for i in kept), scene.difficult[kept])


def _name(item: ElementTree.Element) -> str:
    name = item.findtext("name", "").strip()
    if not name:
        raise ValueError("an object without a name")
    return name


def _box(item: ElementTree.Element) -> list[float]:
    """VOC counts pixels from 1, and the right and bottom ones belong to the box."""
    sides = [float(item.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")]
    if not all(abs(side) <= LARGEST_SIDE for side in sides):  # as no NaN is
        raise ValueError(f"a box with the sides {sides}")
    left, top, right, bottom = sides
    return [left - 1, top - 1, right, bottom]
