"""`report.html`: all tables and pictures of an evaluation in one file that needs no other."""

import base64
from collections.abc import Mapping, Sequence
from html import escape

from eval.plots import confusion_png, map_png, neighbours_png, per_class_png, spectrum_png
from eval.results import Results
from eval.tables import Row, notes, sections
from eval.task import Task

FEWEST_MAPPED = 5  # images; t-SNE of fewer says nothing
CAPTIONS = {  # in the order of the page
    "classes": "accuracy of each class",
    "confusion": "confusion matrix",
    "neighbours": "nearest neighbours",
    "map": "map of the test images",
    "spectrum": "spectrum of the features",
}
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
h2 { font-size: 1.15rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .7rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; vertical-align: top } figure { display: inline-block; margin: 0 1rem 1rem 0 }
"""


def draw(rows: Sequence[Row], task: Task, results: Results) -> None:
    """Pictures of one encoder on one data set, into `plots/`; those of classes show the first protocol with answers.

    Where an image may be of several classes, there is no map of them, and none is taken for another.
    """
    if results.folder is None or not rows:
        return
    stem = picture_stem(rows[0])
    answered = ((row, found) for row in rows if (found := results.predictions(row)) is not None)
    row, predicted = next(answered, (rows[0], None))
    by = row["protocol"].split(",")[0]
    results.once_file(f"plots/{stem}-neighbours.png", lambda: neighbours_png(task))
    one_class = task.queries.labels.ndim == 1
    if one_class and len(task.queries) >= FEWEST_MAPPED:
        results.once_file(f"plots/{stem}-map.png", lambda: map_png(task))
    results.once_file(f"plots/{stem}-spectrum.png", lambda: spectrum_png(task))
    if predicted is not None and one_class:
        results.once_file(f"plots/{stem}-confusion.png", lambda: confusion_png(predicted, task, by=by))
    if predicted is not None:
        results.once_file(f"plots/{stem}-classes.png", lambda: per_class_png(predicted, task, by=by))


def picture_stem(row: Row) -> str:
    """What the pictures of a row's encoder and data are called, before the kind of picture."""
    return Results.file_stem(row | {"key": f"{row['dataset']}/{row['encoder']}"})


def html(rows: Sequence[Row], pictures: Mapping[str, bytes]) -> str:
    """The page. pictures: PNGs by the name that `draw` gave them."""
    parts = [f"<h2>{escape(title)}</h2>{_table(cells)}" for title, cells in sections(rows)]
    parts += ["<ul>", *(f"<li>{escape(note.removeprefix('- '))}</li>" for note in notes(rows)), "</ul>"]
    for stem, row in {picture_stem(row): row for row in rows}.items():
        mine = {name: png for name, png in pictures.items() if name.startswith(f"{stem}-")}
        if mine:
            parts.append(f"<h2>{escape(row['encoder'])} on {escape(row['dataset'])}</h2>")
            kinds = {name.removeprefix(f"{stem}-").removesuffix(".png"): png for name, png in mine.items()}
            parts += [_figure(caption, kinds[kind]) for kind, caption in CAPTIONS.items() if kind in kinds]
    made = (
        f"<p>{escape(rows[0]['date'])} · {escape(rows[0]['hardware'])} · <code>{escape(rows[0]['command'])}</code></p>"
    )
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluation</title>'
    head += f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return f"{head}<h1>Evaluation</h1>{made}{''.join(parts)}</html>\n"


def _table(cells: Sequence[Sequence[str]]) -> str:
    head, *body = ["".join(f"<t{{0}}>{escape(cell)}</t{{0}}>" for cell in line) for line in cells]
    lines = [head.replace("{0}", "h"), *(line.replace("{0}", "d") for line in body)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _figure(caption: str, png: bytes) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<figure><figcaption>{caption}</figcaption><img alt="{caption}" src="{source}"></figure>'
