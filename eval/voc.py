"""A folder in the layout of PASCAL VOC: JPEGImages, Annotations, ImageSets/Main."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from zoo.errors import BadData


class Scene(NamedTuple):
    """One image and the boxes drawn on it."""

    image: Path
    boxes: np.ndarray  # (k, 4) float32: left, top, right, bottom in pixels, from 0
    names: tuple[str, ...]  # of their classes


def read_voc(folder: Path, split: str) -> list[Scene]:
    """The scenes that ImageSets/Main/<split>.txt lists; boxes marked difficult, or without an area, are left out.

    Raises BadData if the list, an image or an annotation is missing or unreadable.
    """
    names = folder / "ImageSets" / "Main" / f"{split}.txt"
    if not names.is_file():
        there = sorted(path.stem for path in names.parent.glob("*.txt"))
        raise BadData(
            f"{names}: no such list; there are {there or 'none'}. A VOC folder has ImageSets/Main/<split>.txt"
        )
    scenes = [_scene(folder, line.split()[0]) for line in names.read_text().splitlines() if line.strip()]
    if not any(len(scene.boxes) for scene in scenes):
        raise BadData(f"{names}: no box in {len(scenes)} images")
    return scenes


def class_names(scenes: Sequence[Scene]) -> list[str]:
    """All classes that have a box, in order of the alphabet."""
    return sorted({name for scene in scenes for name in scene.names})


def _scene(folder: Path, name: str) -> Scene:
    annotation = folder / "Annotations" / f"{name}.xml"
    image = folder / "JPEGImages" / f"{name}.jpg"
    try:
        root = ElementTree.parse(annotation).getroot()
        found = [(_box(item), item.findtext("name", "")) for item in root.iter("object") if not _difficult(item)]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise BadData(f"{annotation}: not an annotation ({error})") from error
    if not image.is_file():
        raise BadData(f"{image}: no such image, though {annotation.name} describes it")
    kept = [(box, label) for box, label in found if box[2] > box[0] and box[3] > box[1]]
    boxes = np.array([box for box, _ in kept], np.float32).reshape(-1, 4)
    return Scene(image, boxes, tuple(label for _, label in kept))


def _difficult(item: ElementTree.Element) -> bool:
    return item.findtext("difficult", "0").strip() == "1"


def _box(item: ElementTree.Element) -> list[float]:
    """VOC counts pixels from 1, and the right and bottom ones belong to the box."""
    left, top, right, bottom = (float(item.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax"))
    return [left - 1, top - 1, right, bottom]
