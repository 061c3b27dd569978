"""Small folders in VOC layout: grey pictures with bright squares."""

from pathlib import Path

import numpy as np
from PIL import Image

OBJECT = "<object><name>{}</name><difficult>{}</difficult><bndbox>{}</bndbox></object>"
Objects = list[tuple[str, int, tuple[int, int, int, int]]]  # name, difficult, box in pixels from 1


def voc(folder: Path, scenes: dict[str, Objects], *, split: str = "train") -> Path:
    """Add 96 px images with one square for each object, red ones for `red`, blue ones otherwise; and their list."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, objects in scenes.items():
        pixels = np.full((96, 96, 3), 60, np.uint8)
        texts = []
        for label, difficult, (left, top, right, bottom) in objects:
            pixels[top - 1 : bottom, left - 1 : right] = (250, 40, 40) if label == "red" else (40, 40, 250)
            sides = f"<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
            texts.append(OBJECT.format(label, difficult, sides))
        Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
        (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(texts)}</annotation>")
    (folder / f"ImageSets/Main/{split}.txt").write_text("\n".join(scenes) + "\n")
    return folder
