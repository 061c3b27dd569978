"""How far a number can be trusted: an interval for one accuracy, a test for two, over images or over trainings."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, t

from eval.average_precision import mean_average_precision, paired_bootstrap
from zoo.errors import BadData

RESAMPLES = 1000


def wilson(share: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a share of n trials (Wilson 1927)."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over draws; 0 of one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


class Comparison(NamedTuple):
    """A against B on the same images."""

    n: int
    a: float  # accuracy, or 11-point mAP, [0, 1]
    b: float
    difference: float  # a - b
    low: float  # 95 % interval of the difference, paired bootstrap
    high: float
    only_a: int = 0  # images that A alone has right
    only_b: int = 0
    p: float | None = None  # McNemar's exact test of "neither is better"; none for an mAP


def compare(a: np.ndarray, b: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> Comparison:
    """Predictions a and b (n,) of the same images: paired bootstrap (1,000 resamples) and McNemar's exact test.

    Images are resampled, not runs: the interval says nothing about another training seed. Raises BadData if the
    numbers of images differ, or there is none.
    """
    if not len(a) == len(b) == len(labels) > 0:
        raise BadData(f"{len(a)}, {len(b)} predictions and {len(labels)} labels; a comparison needs the same images")
    right_a, right_b = a == labels, b == labels
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    n = len(labels)
    # Resampling n images is drawing how many of them fall into each of three groups.
    shares = np.array([only_a, only_b, n - only_a - only_b]) / n
    draws = np.random.default_rng(seed).multinomial(n, shares, size=RESAMPLES)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, [0.025, 0.975])
    p = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    difference = (only_a - only_b) / n
    return Comparison(
        n, float(right_a.mean()), float(right_b.mean()), difference, float(low), float(high), only_a, only_b, float(p)
    )


def compare_scores(a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> Comparison:
    """As `compare`, for scores a and b and labels (n, C) of images that are of several classes: the 11-point mAP."""
    first, second = (mean_average_precision(scores, labels) for scores in (a, b))
    return Comparison(len(labels), first, second, first - second, *paired_bootstrap(a, b, labels))


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """95 % interval of mean(a) - mean(b), each of two independent trainings or more (Welch 1947).

    The same seed on both sides, as in the zoo, shares the crops: where that makes their values alike, the interval is
    wider than it had to be. If all of a and all of b are equal, nothing tells their spread: -inf to inf.
    Raises BadData for fewer than two on a side.
    """
    if min(len(a), len(b)) < 2:
        raise BadData(f"{len(a)} and {len(b)} trainings; an interval over seeds needs two of each at least")
    of_a, of_b = variance(a) / len(a), variance(b) / len(b)  # of the means
    if not of_a + of_b:
        return -math.inf, math.inf
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    half = float(t.ppf(0.975, freedom)) * math.sqrt(of_a + of_b)
    return fmean(a) - fmean(b) - half, fmean(a) - fmean(b) + half
