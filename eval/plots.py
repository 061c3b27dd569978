"""What one encoder does on one data set, to look at: each function makes one PNG from a task and its predictions."""

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from eval.features import labelled
from eval.geometry import spectrum
from eval.metrics import by_class, confusion
from eval.task import Task
from zoo.images.image_set import ImageSet
from zoo.model.embedding import unit_rows

MAPPED = 500  # images on the map
THUMBNAILS = 120
PANELS, NEIGHBOURS = 8, 8
NAMED = 120  # classes named on one axis; of more, every second, third, ... one
COLOURS = [matplotlib.colormaps["tab20"](index) for index in range(20)]
ROOM = 0.12  # inches for the name of a class


def confusion_png(predicted: np.ndarray, task: Task, *, by: str) -> bytes:
    """Confusion matrix of the classes that occur, as the share of each true class; see `confusion_figure`."""
    return _png(confusion_figure(predicted, task, by=by))


def confusion_figure(predicted: np.ndarray, task: Task, *, by: str) -> Figure:
    """Rows: true classes that have images. Columns: those and every class predicted `by` a protocol."""
    matrix = confusion(predicted, task.queries.labels, classes=task.classes).astype(float)
    rows = np.flatnonzero(matrix.any(1))
    columns = np.union1d(rows, np.flatnonzero(matrix.any(0)))
    matrix = (matrix / np.maximum(matrix.sum(1, keepdims=True), 1))[np.ix_(rows, columns)]
    side = _room(len(columns), at_least=5.4)
    figure, axis = _canvas(side + 0.6, side, f"{by}: which class is taken for which")
    image = axis.imshow(matrix, cmap="viridis", vmin=0, vmax=1)
    figure.colorbar(image, ax=axis, label="share of the true class", shrink=0.5)
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    _name_ticks(axis.xaxis, [class_name(task, int(c)) for c in columns])
    _name_ticks(axis.yaxis, [class_name(task, int(c)) for c in rows])
    return figure


def per_class_png(predicted: np.ndarray, task: Task, *, by: str) -> bytes:
    """Accuracy of each class that has images, falling; see `per_class_figure`."""
    return _png(per_class_figure(predicted, task, by=by))


def per_class_figure(predicted: np.ndarray, task: Task, *, by: str) -> Figure:
    """A bar for each class that has images: its accuracy, or its average precision where an image may be of several."""
    shares = by_class(predicted, task.queries.labels, classes=task.classes)
    what = "average precision" if task.queries.labels.ndim > 1 else "accuracy"
    known = np.flatnonzero(np.isfinite(shares))
    order = known[np.argsort(-shares[known], kind="stable")]
    title = f"{by}: {what} of each class; mean {100 * shares[known].mean():.2f} %"
    figure, axis = _canvas(_room(len(order), at_least=8), 3.6, title)
    axis.bar(range(len(order)), 100 * shares[order], width=0.8 if len(order) <= NAMED else 1)
    axis.set_xlabel("class")
    axis.set_ylabel(f"{what}, %")
    axis.set_ylim(0, 100)
    axis.margins(x=0.01)
    _name_ticks(axis.xaxis, [class_name(task, int(c)) for c in order])
    return figure


def map_png(task: Task) -> bytes:
    """t-SNE of unit features, after PCA to 50 dimensions; some points are their image, framed by class."""
    index = np.sort(np.random.default_rng(0).permutation(len(task.queries))[:MAPPED])
    places = _places(unit_rows(task.queries.rows[index]))
    labels = task.queries.labels[index]
    figure, axis = _canvas(7, 7, f"t-SNE of {len(index)} {task.test.split} images (seed 0; distances mean little)")
    colour = {label: COLOURS[rank % len(COLOURS)] for rank, label in enumerate(np.unique(labels).tolist())}
    for label in colour:
        x, y = places[labels == label].T
        axis.scatter(x, y, color=colour[label], s=12, label=class_name(task, label))
    for place, label, image in list(zip(places, labels, labelled(task.test)[index], strict=True))[:THUMBNAILS]:
        picture = OffsetImage(task.test.pixels()[image], zoom=18 / task.test.size)
        frame = {"edgecolor": colour[int(label)], "linewidth": 1.5}
        axis.add_artist(AnnotationBbox(picture, place, pad=0.05, bboxprops=frame))
    axis.set_axis_off()
    if len(np.unique(labels)) <= len(COLOURS):
        figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    else:
        note = f"{len(COLOURS)} colours for {len(np.unique(labels))} classes: several classes share one"
        axis.text(0.5, 0, note, transform=axis.transAxes, ha="center", fontsize=8)
    return _png(figure)


def _places(rows: np.ndarray) -> np.ndarray:
    """(n, 2) of rows (n, D)."""
    reduced = PCA(min(50, *rows.shape), random_state=0).fit_transform(rows) if min(rows.shape) > 2 else rows
    perplexity = min(30, (len(rows) - 1) / 3)
    return TSNE(2, init="random", random_state=0, perplexity=perplexity).fit_transform(reduced)


def neighbours_png(task: Task) -> bytes:
    """Some test images and their nearest train images by cosine; a green title with a tick shares a class."""
    picks = np.sort(np.random.default_rng(0).permutation(len(task.queries))[:PANELS])
    similarity = unit_rows(task.queries.rows[picks]) @ unit_rows(task.bank.rows).T
    nearest = np.argsort(-similarity, axis=1)[:, :NEIGHBOURS]
    train, test = labelled(task.train), labelled(task.test)
    figure = Figure(figsize=(NEIGHBOURS + 1.5, 1.25 * len(picks) + 0.3), layout="constrained")
    figure.suptitle("test images (?) and their nearest train images by cosine, from left to right", fontsize=10)
    axes = figure.subplots(len(picks), NEIGHBOURS + 1, squeeze=False)
    for line, pick, found in zip(axes, picks, nearest, strict=True):
        label = task.queries.labels[pick]
        _picture(line[0], task.test.pixels()[test[pick]], f"? {_named(label, task.test)}", "black")
        for axis, other in zip(line[1:], found, strict=False):
            name = _named(task.bank.labels[other], task.train)
            right = bool(_classes_of(task.bank.labels[other]) & _classes_of(label))
            title, colour = (f"\u2713 {name}", "tab:green") if right else (name, "tab:red")
            _picture(axis, task.train.pixels()[train[other]], title, colour)
        for axis in line[1 + len(found) :]:
            axis.set_axis_off()
    return _png(figure)


def _classes_of(label: np.ndarray) -> set[int]:
    """Of one image: its class, or, of labels (C,), all that are 1."""
    return set(np.flatnonzero(label == 1).tolist()) if label.ndim else {int(label)}


def _named(label: np.ndarray, split: ImageSet) -> str:
    names = dict(enumerate(split.classes))
    return ", ".join(names.get(index, str(index)) for index in sorted(_classes_of(label)))


def spectrum_png(task: Task) -> bytes:
    """Singular values of the centred test features, relative to the largest: a steep fall is dimensional collapse."""
    rows = task.queries.rows
    values = spectrum(rows, centred=True)
    figure, axis = _canvas(5, 3.6, f"spectrum of {len(rows):,} centred {task.test.split} features")
    axis.semilogy(range(1, len(values) + 1), np.maximum(values / max(values[0], 1e-30), 1e-8))
    axis.set_xlabel("rank")
    axis.set_ylabel("singular value / largest")
    return _png(figure)


def _canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.set_title(title, fontsize=10)
    return figure, axis


def _room(classes: int, *, at_least: float) -> float:
    """Length in inches of an axis that shows this many classes."""
    return max(at_least, ROOM * min(classes, NAMED))


def class_name(task: Task, label: int) -> str:
    """Name of a class; its number where the data gives no name, "none" for the answer of a network that diverged."""
    if label >= task.classes:
        return "none"
    return task.test.classes[label] if label < len(task.test.classes) else str(label)


def _name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Label position i of an axis names[i]; of more than NAMED names every second, third, ... one."""
    step = -(-len(names) // NAMED)
    many = len(names) > 30
    axis.set_ticks(range(0, len(names), step), names[::step], fontsize=6 if many else 9)
    if isinstance(axis, XAxis):
        axis.set_tick_params(rotation=90 if many else 60)
        for label in axis.get_ticklabels():
            label.set_horizontalalignment("center" if many else "right")


def _picture(axis: Axes, pixels: np.ndarray, title: str, colour: str) -> None:
    axis.imshow(pixels, interpolation="nearest")
    axis.set_title(title, color=colour, fontsize=8)
    axis.set_axis_off()


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    return content.getvalue()
