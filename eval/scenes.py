"""What detection learns from and is tested on: two lists of one folder in VOC layout, checked before any training."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from eval.result import MeasuredData
from zoo.errors import BadData
from zoo.images.pixels import read_rgb
from zoo.images.voc import Scene, class_names, read_voc


class Lists(NamedTuple):
    """Two lists of a folder, and what stands in a row about them."""

    name: str  # of the folder
    lists: tuple[str, str]
    train: list[Scene]
    test: list[Scene]
    sha256: tuple[str, str]  # of the images and boxes of each
    unseen: int  # test images with a class that train lacks
    duplicates: int  # test images that train holds, too, byte for byte

    @property
    def measured(self) -> MeasuredData:
        """What a result says about the images; one that cannot be decoded would have been refused."""
        return MeasuredData(
            name=self.name,
            sha256=self.sha256,
            n_train=len(self.train),
            n_test=len(self.test),
            skipped=0,
            unlabelled=0,
            unseen=self.unseen,
            duplicates=self.duplicates,
        )

    @property
    def classes(self) -> list[str]:
        """Those of both lists."""
        return class_names([*self.train, *self.test])


def read_lists(folder: Path, train: str, test: str) -> Lists:
    """Both lists. Raises BadData if an image is on both, or a box beside its image, BadImage, and as `read_voc`."""
    scenes, tests = read_voc(folder, train), read_voc(folder, test)
    both = {scene.image for scene in scenes} & {scene.image for scene in tests}
    if both:
        raise BadData(f"{folder}: {len(both)} images are on both lists, {train} and {test}; what was learnt is no test")
    images, asked = ([_image_sha256(scene) for scene in part] for part in (scenes, tests))
    known, copies = set(class_names(scenes)), set(images)
    return Lists(
        os.fsencode(folder.resolve().name).decode(errors="replace"),  # tables are UTF-8
        (train, test),
        scenes,
        tests,
        (_sha256(scenes, images), _sha256(tests, asked)),
        unseen=sum(not known.issuperset(scene.names) for scene in tests),
        duplicates=sum(digest in copies for digest in asked),
    )


def _image_sha256(scene: Scene) -> bytes:
    """Of the image's file, once it was decoded: what cannot be learnt from is told here, not after hours."""
    size = read_rgb(scene.image).size
    if (scene.boxes[:, :2] >= size).any() or (scene.boxes[:, 2:] <= 0).any():
        raise BadData(f"{scene.image}: {size[0]} x {size[1]} pixels, and a box of its annotation lies beside them")
    return hashlib.sha256(scene.image.read_bytes()).digest()


def _sha256(scenes: Sequence[Scene], images: Sequence[bytes]) -> str:
    """Of a list: its images' digests and what is on each, in order."""
    digest = hashlib.sha256()
    for scene, image in zip(scenes, images, strict=True):
        digest.update(image + scene.boxes.tobytes() + scene.difficult.tobytes())
        digest.update("\n".join((*scene.names, "")).encode())
    return digest.hexdigest()
