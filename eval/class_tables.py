"""Which classes are found and which are taken for others, as CSV and as text, beside the predictions they come from."""

import csv
import io
from collections.abc import Sequence

import numpy as np

from eval.metrics import confusion
from eval.plots import class_name
from eval.result import Result
from eval.results import Results, file_stem
from eval.task import Task

HEADS = ("class", "images", "found", "accuracy", "most often taken for", "times")


def keep_class_tables(results: Results, result: Result, predicted: np.ndarray, task: Task) -> None:
    """Write `classes/*.csv`, `classes/*.txt`, `confusion/*.csv`; nothing where an image may be of several classes."""
    if task.queries.labels.ndim > 1:
        return
    matrix = confusion(predicted, task.queries.labels, classes=task.classes)
    names = [class_name(task, label) for label in range(matrix.shape[1])]
    lines, stem = class_lines(matrix, names), file_stem(result, result.key)
    results.once_file(f"classes/{stem}.csv", lambda: csv_of([HEADS, *lines]))
    results.once_file(f"classes/{stem}.txt", lambda: aligned([HEADS, *lines]))
    seen = np.flatnonzero(matrix.any(1))
    cells = [["true class", *names], *([names[row], *map(str, matrix[row].tolist())] for row in seen)]
    results.once_file(f"confusion/{stem}.csv", lambda: csv_of(cells))


def class_lines(matrix: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """HEADS of each class that has images, the worst found first. matrix: as `eval.metrics.confusion`."""
    found = np.diag(matrix) / np.maximum(matrix.sum(1), 1)
    order = [row for row in np.argsort(found, kind="stable") if matrix[row].any()]
    lines = []
    for row in order:
        wrong = matrix[row].copy()
        wrong[row] = 0
        other = [names[wrong.argmax()], str(wrong.max())] if wrong.any() else ["", ""]
        lines.append([names[row], str(matrix[row].sum()), str(matrix[row, row]), f"{found[row]:.4f}", *other])
    return lines


def csv_of(cells: Sequence[Sequence[str]]) -> bytes:
    """Lines of cells as CSV."""
    text = io.StringIO()
    csv.writer(text).writerows(cells)
    return text.getvalue().encode()


def aligned(cells: Sequence[Sequence[str]]) -> bytes:
    """Lines of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)
    return ("\n".join(lines) + "\n").encode()
