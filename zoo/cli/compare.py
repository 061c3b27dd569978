"""`zoo compare`: the nearest neighbours of a few images under two models as one picture, and how often they agree."""

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from PIL import Image, ImageDraw

import zoo
from zoo.errors import BadData, BadNumber, needs
from zoo.files import new_file
from zoo.images.pixels import fit, read_rgb
from zoo.model.embedding import unit_rows

SIDE, GAP, MARGIN = 96, 6, 20  # pixels: of a picture, between pictures, of the line with the models' names
WHITE, BLACK, AGREED = (255, 255, 255), (0, 0, 0), (0, 114, 178)
BLOCK = 1024  # rows of the similarity matrix at a time


def compare(
    a: str,
    b: str,
    /,
    images: Path,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("compare.png"),
    queries: int = 8,
    k: int = 5,
) -> None:
    """Draw the nearest neighbours of a few images under two models, and say how often all images' neighbours agree.

    Whether one of two recipes is better is a question for `python -m eval.compare`.

    Args:
        a: A name of the zoo, or a run folder.
        b: Another one.
        images: Folder, searched through all its folders.
        output: Picture to write: a row for each image, the neighbours under both models beside it; those that both
            have are framed.
        queries: Images to draw, evenly spaced among all.
        k: Neighbours of each.
    """
    with needs("core"):
        from zoo.model.pictures import as_pictures
    if queries < 1 or k < 1:
        raise BadNumber(f"--queries {queries} --k {k}; at least 1 of each")
    if not images.is_dir():
        raise BadData(f"{images}: no such folder; --images is a folder of images")
    paths = list(as_pictures(images))
    if len(paths) <= k:
        raise BadData(f"{images} has {len(paths)} images; for {k} neighbours of each at least {k + 1} are needed")
    found = [neighbours(zoo.load(model).embed(paths, normalize=True), k) for model in (a, b)]
    shared = agreement(*found)
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(queries, len(paths))).round().astype(int))
    with new_file(output) as aside:
        sheet(paths, chosen, found, (a, b)).save(aside, "PNG")
    print(
        f"{output}: of the {k} nearest neighbours of each of {len(paths)} images, {100 * shared.mean():.1f} % are the "
        f"same under both (by chance {100 * k / (len(paths) - 1):.1f} %); the nearest one in "
        f"{100 * (found[0][:, 0] == found[1][:, 0]).mean():.1f} %"
    )


def neighbours(embeddings: np.ndarray, k: int) -> np.ndarray:
    """(n, k) indices of the nearest others of each unit row (n, D), by cosine, the nearest first."""
    rows = unit_rows(embeddings)
    found = []
    for start in range(0, len(rows), BLOCK):
        similar = rows[start : start + BLOCK] @ rows.T
        similar[np.arange(len(similar)), start + np.arange(len(similar))] = -math.inf  # not itself
        found.append(np.argsort(-similar, axis=1, kind="stable")[:, :k])
    return np.concatenate(found)


def agreement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,) shares of the neighbours (n, k) that both have, whatever their order."""
    return (a[:, :, None] == b[:, None, :]).any(2).mean(1)


def sheet(paths: list[Path], chosen: np.ndarray, found: list[np.ndarray], names: tuple[str, str]) -> Image.Image:
    """One row for each chosen image: itself, then its neighbours under the first and under the second model."""
    k, step = found[0].shape[1], SIDE + GAP
    starts = (2 * step, (3 + k) * step)  # left edges of the two groups
    canvas = Image.new("RGB", (starts[1] + k * step, MARGIN + len(chosen) * step), WHITE)
    draw = ImageDraw.Draw(canvas)
    for text, left in (("image", GAP), *zip(names, starts, strict=True)):
        draw.text((left, 4), text, fill=BLACK)
    for row, index in enumerate(chosen):
        top = MARGIN + row * step
        canvas.paste(_thumbnail(paths[index]), (GAP, top))
        both = set(found[0][index]) & set(found[1][index])
        for left, group in zip(starts, found, strict=True):
            for column, other in enumerate(group[index]):
                corner = (left + column * step, top)
                canvas.paste(_thumbnail(paths[other]), corner)
                if other in both:
                    end = (corner[0] + SIDE, corner[1] + SIDE)
                    draw.rectangle((corner[0] - 2, corner[1] - 2, *end), outline=AGREED, width=3)
    return canvas


def _thumbnail(path: Path) -> Image.Image:
    return fit(read_rgb(path), image_size=SIDE)
