"""An answer in a minute: as many random images as the encoders embed in that time, and what all would take."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eval.contestants import Contestant
from eval.features import embed_rows, labelled
from eval.sources import crop_of
from zoo.errors import BadData
from zoo.images.image_set import ImageSet

SECONDS = 40.0  # of extraction, over all encoders
TRAIN_SHARE = 0.8
MOST, FEWEST = 2500, 50  # images
WARM_UP, TIMED = 2, 4  # images that tell an encoder's speed
PROTOCOLS = ("knn", "ridge")


class QuickLook(NamedTuple):
    """How many images are measured, and what a reader is told for each encoder, in the order they came."""

    max_train: int | None
    max_test: int | None
    notes: tuple[str, ...]


def quick_look(contestants: Sequence[Contestant], train: ImageSet, test: ImageSet) -> QuickLook:
    """Numbers of images that all contestants together embed in SECONDS, the same for each, so that they compare.

    Raises BadData if there is no labelled image.
    """
    speeds = [_images_per_second(one, train) for one in contestants]
    every = len(train) + len(test)
    images = min(MOST, max(FEWEST, int(SECONDS / sum(1 / speed for speed in speeds))))
    if images >= every:
        return QuickLook(None, None, ("",) * len(speeds))
    some_train = min(len(train), round(TRAIN_SHARE * images))
    some_test = min(len(test), images - some_train)
    told = (
        f"a quick look at {some_train:,} of {len(train):,} train and {some_test:,} of {len(test):,} test images, so "
        "the interval is wide; all of them would take about {}."
    )
    return QuickLook(some_train, some_test, tuple(told.format(_duration(every / speed)) for speed in speeds))


def _images_per_second(contestant: Contestant, images: ImageSet) -> float:
    """Decoding and embedding, of a few images after others that warm everything up."""
    encoder, index = contestant.encoder, labelled(images)
    if len(index) < WARM_UP + TIMED:
        raise BadData(f"{len(index)} labelled images in {images.split}; a quick look needs {WARM_UP + TIMED} at least")
    some = np.random.default_rng(0).permutation(index)[: WARM_UP + TIMED]
    sized = images.sized(encoder.image_size, crop=crop_of(encoder))
    embed_rows(encoder, sized, some[:WARM_UP])
    started = time.perf_counter()
    embed_rows(encoder, sized, some[WARM_UP:])
    return TIMED / max(time.perf_counter() - started, 1e-6)


def _duration(seconds: float) -> str:
    """`20 seconds`, `5 minutes`, `2.5 hours`."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
