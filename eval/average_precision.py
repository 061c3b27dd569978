"""Several labels an image: the average precision of each class, as PASCAL VOC 2007 defines it, and its mean.

Labels are (n, C): 1 there, 0 not, -1 left out, as VOC does with difficult objects.
"""

from collections.abc import Iterator

import numpy as np

from zoo.errors import BadData

LEVELS = np.arange(11)  # of recall, in tenths
RESAMPLES = 200  # of the interval of one mAP
PAIRED_RESAMPLES = 1000  # of the interval of a difference, which decides whether there is one


def eleven_point(scores: np.ndarray, labels: np.ndarray) -> float:
    """Of one class, [0, 1]; NaN where no image is of it. scores (n,), the higher the surer; labels (n,).

    Everingham et al. 2010 (PASCAL VOC), the interpolated average precision: the mean over the recalls 0, 0.1, ..., 1
    of the greatest precision at that recall or a higher one. Images of equal scores come in together, so their order
    changes nothing.
    """
    scores, right = scores[labels >= 0], labels[labels >= 0] == 1
    if not right.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of those with one score
    found = np.cumsum(right[order])[last]
    best = np.maximum.accumulate((found / (last + 1))[::-1])[::-1]  # precision here or further down
    return float(best[np.searchsorted(10 * found, LEVELS * found[-1])].mean())


def average_precisions(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(C,) of scores (n, C) and labels (n, C); NaN for a class without images."""
    return np.array([eleven_point(*columns) for columns in zip(scores.T, labels.T, strict=True)])


def mean_average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the classes that have images, [0, 1]. Raises BadData if none has."""
    values = average_precisions(scores, labels)
    if np.isnan(values).all():
        raise BadData(f"none of the {len(labels)} images is surely of any class; more images are needed to measure")
    return float(np.nanmean(values))


def bootstrap(scores: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean: images are drawn with replacement, RESAMPLES times."""
    return _middle([mean_average_precision(scores[rows], labels[rows]) for rows in _draws(labels, RESAMPLES, seed)])


def paired_bootstrap(a: np.ndarray, b: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of scores `a` less that of `b`, both (n, C): each draw of images is graded for both."""
    return _middle(
        [
            mean_average_precision(a[rows], labels[rows]) - mean_average_precision(b[rows], labels[rows])
            for rows in _draws(labels, PAIRED_RESAMPLES, seed)
        ]
    )


def _draws(labels: np.ndarray, times: int, seed: int) -> Iterator[np.ndarray]:
    """Images (n,) drawn with replacement so many times; draws without any class are left out."""
    rng, n = np.random.default_rng(seed), len(labels)
    draws = (rng.integers(0, n, n) for _ in range(times))
    return (rows for rows in draws if (labels[rows] == 1).any())


def _middle(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
