"""How far a number can be trusted: an interval for one accuracy, a test for two, over images or training runs."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, ttest_ind

from eval.average_precision import mean_average_precision, paired_bootstrap
from zoo.errors import BadData

RESAMPLES = 10_000
LEVEL = 0.05  # of every test


def wilson(share: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a share of n trials (Wilson 1927)."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over draws; 0 of one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


class ImageComparison(NamedTuple):
    """A against B on the same images.

    The verdict is that of one test: McNemar's exact test of accuracies, the bootstrap interval of an mAP.
    """

    n: int
    a: float  # accuracy, or 11-point mAP, [0, 1]
    b: float
    difference: float  # a - b
    low: float  # 95 % interval of the difference, paired bootstrap
    high: float
    only_a: int = 0  # images that A alone has right
    only_b: int = 0
    p: float | None = None  # McNemar's exact test of "neither is better"; none for an mAP

    @property
    def better(self) -> str:
        """ "a" or "b" if the test tells a difference at LEVEL, else ""."""
        told = self.p < LEVEL if self.p is not None else not self.low <= 0 <= self.high
        return ("a" if self.difference > 0 else "b") if told else ""


def compare_predictions(a: np.ndarray, b: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> ImageComparison:
    """Compare predictions a and b (n,) of the same images.

    Images are resampled, not training runs: neither the test nor the interval says anything about another seed.
    Raises BadData if the numbers of images differ, or there is none.
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
    return ImageComparison(
        n, float(right_a.mean()), float(right_b.mean()), difference, float(low), float(high), only_a, only_b, float(p)
    )


def compare_scores(a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> ImageComparison:
    """Compare scores a and b (n, C) by the 11-point mAP, for labels (n, C) of images that are of several classes."""
    first, second = (mean_average_precision(scores, labels) for scores in (a, b))
    return ImageComparison(len(labels), first, second, first - second, *paired_bootstrap(a, b, labels))


class MeanDifference(NamedTuple):
    """Difference of two means over training runs."""

    low: float  # 95 % interval
    high: float
    p: float  # of "they are equal"


def welch(a: Sequence[float], b: Sequence[float]) -> MeanDifference:
    """Welch's t-test of mean(a) - mean(b), each of two independent training runs or more (Welch 1947).

    The same seed on both sides, as in the zoo, shares the crops: where that makes their values alike, the interval is
    wider than it had to be. If all of a and all of b are equal, nothing tells their spread: -inf to inf, p = 1.
    Raises BadData for fewer than two on a side.
    """
    if min(len(a), len(b)) < 2:
        raise BadData(f"{len(a)} and {len(b)} training runs; an interval over seeds needs two of each at least")
    if len(set(a)) == len(set(b)) == 1:
        return MeanDifference(-math.inf, math.inf, 1.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # one side is constant: its variance is 0
        found = ttest_ind(a, b, equal_var=False)
    interval = found.confidence_interval()
    return MeanDifference(float(interval.low), float(interval.high), float(found.pvalue))


def holm(ps: Sequence[float]) -> list[float]:
    """p-values adjusted for being one of several tests: Holm 1979."""
    order = np.argsort(ps, kind="stable")
    steps = (len(ps) - np.arange(len(ps))) * np.asarray(ps, float)[order]
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted.tolist()
