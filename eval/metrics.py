"""The metrics that data sets are measured by, and the interval of each."""

import numpy as np

from eval.average_precision import average_precisions, bootstrap, mean_average_precision
from eval.intervals import wilson
from zoo.images.dataset import ELEVEN_POINT, Metric

BINS = 15  # of the calibration error


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries, [0, 1]."""
    return float((predicted == labels).mean())


def top_k(scores: np.ndarray, labels: np.ndarray, *, k: int) -> float:
    """Share of images whose class is among the k of the highest scores (n, C) >= 0, and has any score at all.

    A class beyond C was not learnt, and is never among them.
    """
    padded = np.hstack([scores, np.zeros((len(scores), max(0, labels.max() + 1 - scores.shape[1])), scores.dtype)])
    own = padded[np.arange(len(labels)), labels]
    return float((((padded > own[:, None]).sum(1) < k) & (own > 0)).mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error of probabilities (n, C), [0, 1]: Guo et al. 2017, equation 3, BINS equal bins.

    The mean over images of |accuracy - confidence| of their bin, the confidence being the highest probability.
    """
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error  # a second, of training too

    found = multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(labels), num_classes=probabilities.shape[1], n_bins=BINS
    )
    return float(found)


def confusion(predicted: np.ndarray, labels: np.ndarray, *, classes: int) -> np.ndarray:
    """(C, C) counts: a row for each true class, a column for each predicted one.

    One more column if some are predicted as no class (-1), as by a network that has diverged.
    """
    columns = classes + int((predicted < 0).any())
    placed = np.where(predicted < 0, classes, predicted)
    return np.bincount(labels * columns + placed, minlength=classes * columns).reshape(classes, columns)


def per_class(matrix: np.ndarray) -> np.ndarray:
    """Share of each class that was found, (C,); NaN for a class without images."""
    counts = matrix.sum(1)
    with np.errstate(invalid="ignore"):
        return np.diag(matrix) / counts


def mean_per_class(predicted: np.ndarray, labels: np.ndarray, *, classes: int) -> float:
    """Accuracy averaged over the classes that have images; a class only ever predicted does not count."""
    return float(np.nanmean(per_class(confusion(predicted, labels, classes=classes))))


def by_class(predicted: np.ndarray, labels: np.ndarray, *, classes: int) -> np.ndarray:
    """(C,): the share of each class that was found; of scores (n, C), its average precision. NaN without images."""
    if labels.ndim > 1:
        return average_precisions(predicted, labels)
    return per_class(confusion(predicted, labels, classes=classes))


def grade(
    predicted: np.ndarray, labels: np.ndarray, *, metric: Metric, classes: int
) -> tuple[float, tuple[float, float]]:
    """The value of a data set's metric, [0, 1], and its 95 % interval (Wilson; of an mAP, by bootstrap).

    predicted (n,) classes; for an mAP scores (n, C), and labels (n, C).
    A mean over classes has the interval of as many images as would have its variance, were all classes equally hard:
    C^2 / sum(1 / n_c), which is n where the classes are of one size.
    """
    if metric == ELEVEN_POINT:
        return mean_average_precision(predicted, labels), bootstrap(predicted, labels)
    if metric == "top-1 accuracy":
        value = accuracy(predicted, labels)
        return value, wilson(value, len(labels))
    value, counts = mean_per_class(predicted, labels, classes=classes), np.bincount(labels)
    counts = counts[counts > 0]
    return value, wilson(value, len(counts) ** 2 / (1 / counts).sum())
