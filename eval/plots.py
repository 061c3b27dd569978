"""What one encoder does on one data set, to look at: each function makes one PNG from a task and its predictions."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from eval.features import labelled
from eval.geometry import spectrum
from eval.metrics import confusion, per_class
from eval.task import Task
from zoo.embedding import unit_rows

MAPPED = 500  # images on the map
THUMBNAILS = 120
PANELS, NEIGHBOURS = 8, 8
NAMED = 30  # classes; more of them would print over each other


def confusion_png(predicted: np.ndarray, task: Task) -> bytes:
    """Rows: true classes; columns: predicted ones; colour: share of the row."""
    matrix = confusion(predicted, task.queries.labels, classes=task.classes).astype(float)
    matrix /= np.maximum(matrix.sum(1, keepdims=True), 1)
    figure, axis = _canvas(6, 5.4, "true class in rows, predicted class in columns")
    image = axis.imshow(matrix, cmap="viridis", vmin=0, vmax=1)
    figure.colorbar(image, ax=axis, label="share of the true class")
    _name_classes(axis, task)
    return _png(figure)


def per_class_png(predicted: np.ndarray, task: Task) -> bytes:
    """Accuracy of each class, falling."""
    shares = per_class(confusion(predicted, task.queries.labels, classes=task.classes))
    known = np.flatnonzero(np.isfinite(shares))
    order = known[np.argsort(-shares[known], kind="stable")]
    figure, axis = _canvas(8, 3.2, f"accuracy of each class; mean {100 * shares[known].mean():.2f} %")
    axis.bar(range(len(order)), 100 * shares[order], width=1 if len(order) > NAMED else 0.8)
    axis.set_ylabel("%")
    axis.set_ylim(0, 100)
    if len(order) <= NAMED:
        axis.set_xticks(range(len(order)), [task.test.classes[c] for c in order], rotation=60, ha="right")
    return _png(figure)


def map_png(task: Task) -> bytes:
    """t-SNE of unit features, after PCA to 50 dimensions; some points show their image."""
    index = np.sort(np.random.default_rng(0).permutation(len(task.queries))[:MAPPED])
    rows = unit_rows(task.queries.rows[index])
    reduced = PCA(min(50, *rows.shape), random_state=0).fit_transform(rows) if min(rows.shape) > 2 else rows
    perplexity = min(30, (len(rows) - 1) / 3)
    places = TSNE(2, init="random", random_state=0, perplexity=perplexity).fit_transform(reduced)
    figure, axis = _canvas(7, 7, f"t-SNE of {len(rows)} {task.test.split} images (seed 0; distances mean little)")
    axis.scatter(places[:, 0], places[:, 1], c=task.queries.labels[index], cmap="tab20", s=12)
    shown = labelled(task.test)[index]
    for place, image in list(zip(places, shown, strict=True))[:THUMBNAILS]:
        picture = OffsetImage(task.test.pixels[image], zoom=18 / task.test.pixels.shape[1])
        axis.add_artist(AnnotationBbox(picture, place, frameon=False))
    axis.set_axis_off()
    return _png(figure)


def neighbours_png(task: Task) -> bytes:
    """Some test images and their nearest train images by cosine; green titles share the class."""
    picks = np.sort(np.random.default_rng(0).permutation(len(task.queries))[:PANELS])
    similarity = unit_rows(task.queries.rows[picks]) @ unit_rows(task.bank.rows).T
    nearest = np.argsort(-similarity, axis=1)[:, :NEIGHBOURS]
    train, test = labelled(task.train), labelled(task.test)
    figure = Figure(figsize=(NEIGHBOURS + 1.5, 1.25 * len(picks)), layout="constrained")
    axes = figure.subplots(len(picks), NEIGHBOURS + 1, squeeze=False)
    for line, pick, found in zip(axes, picks, nearest, strict=True):
        label = task.queries.labels[pick]
        _picture(line[0], task.test.pixels[test[pick]], f"? {task.test.classes[label]}", "black")
        for axis, other in zip(line[1:], found, strict=False):
            right = task.bank.labels[other] == label
            name = task.train.classes[task.bank.labels[other]]
            _picture(axis, task.train.pixels[train[other]], name, "tab:green" if right else "tab:red")
        for axis in line[1 + len(found) :]:
            axis.set_axis_off()
    return _png(figure)


def spectrum_png(task: Task) -> bytes:
    """Singular values of the centred test features, relative to the largest: a steep fall is dimensional collapse."""
    rows = task.queries.rows
    values = spectrum(rows - rows.mean(0))
    figure, axis = _canvas(5, 3.2, "spectrum of the centred test features")
    axis.semilogy(range(1, len(values) + 1), np.maximum(values / max(values[0], 1e-30), 1e-8))
    axis.set_xlabel("rank")
    axis.set_ylabel("singular value / largest")
    return _png(figure)


def _canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    return figure, axis


def _name_classes(axis: Axes, task: Task) -> None:
    if task.classes > NAMED or len(task.test.classes) != task.classes:
        return
    axis.set_xticks(range(task.classes), task.test.classes, rotation=60, ha="right")
    axis.set_yticks(range(task.classes), task.test.classes)


def _picture(axis: Axes, pixels: np.ndarray, title: str, colour: str) -> None:
    axis.imshow(pixels, interpolation="nearest")
    axis.set_title(title, color=colour, fontsize=8)
    axis.set_axis_off()


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    return content.getvalue()
