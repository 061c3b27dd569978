"""Classification metrics, all from one confusion matrix."""

import numpy as np


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal entries, [0, 1]."""
    return float((predicted == labels).mean())


def confusion(predicted: np.ndarray, labels: np.ndarray, *, classes: int) -> np.ndarray:
    """(C, C) counts: a row for each true class, a column for each predicted one."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def per_class(matrix: np.ndarray) -> np.ndarray:
    """Share of each class that was found, (C,); NaN for a class without images."""
    counts = matrix.sum(1)
    with np.errstate(invalid="ignore"):
        return np.diag(matrix) / counts


def mean_per_class(predicted: np.ndarray, labels: np.ndarray, *, classes: int) -> float:
    """Accuracy averaged over the classes that have images; a class only ever predicted does not count."""
    return float(np.nanmean(per_class(confusion(predicted, labels, classes=classes))))
