"""`report.html`: all tables and pictures of an evaluation in one file that needs no other."""

import base64
from collections.abc import Mapping, Sequence
from html import escape

from eval.plots import confusion_png, map_png, neighbours_png, per_class_png, spectrum_png
from eval.result import Result
from eval.results import Results, file_stem
from eval.tables import details, notes, sections
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


def draw(found: Sequence[Result], task: Task, results: Results) -> None:
    """Pictures of one encoder on one data set, into `plots/`; those of classes show the first protocol with answers.

    Where an image may be of several classes, there is no map of them, and none is taken for another.
    """
    if results.folder is None or not found:
        return
    stem = picture_stem(found[0])
    answered = ((one, classes) for one in found if (classes := results.predictions(one)) is not None)
    first, predicted = next(answered, (found[0], None))
    by = first.protocol.split(",")[0]
    results.once_file(f"plots/{stem}-neighbours.png", lambda: neighbours_png(task))
    one_class = task.queries.labels.ndim == 1
    if one_class and len(task.queries) >= FEWEST_MAPPED:
        results.once_file(f"plots/{stem}-map.png", lambda: map_png(task))
    results.once_file(f"plots/{stem}-spectrum.png", lambda: spectrum_png(task))
    if predicted is not None and one_class:
        results.once_file(f"plots/{stem}-confusion.png", lambda: confusion_png(predicted, task, by=by))
    if predicted is not None:
        results.once_file(f"plots/{stem}-classes.png", lambda: per_class_png(predicted, task, by=by))


def picture_stem(result: Result) -> str:
    """What the pictures of a result's encoder and data are called, before the kind of picture."""
    return file_stem(result, f"{result.data.name}/{result.encoder.name}")


def html(results: Sequence[Result], pictures: Mapping[str, bytes]) -> str:
    """The page. pictures: PNGs by the name that `draw` gave them."""
    parts = [f"<h2>{escape(title)}</h2>{_table(cells)}" for title, cells in sections(results)]
    parts.append(_list(notes(results)))
    if remarks := details(results):
        parts.append(f"<details><summary>Remarks</summary>{_list(remarks)}</details>")
    for stem, one in {picture_stem(one): one for one in results}.items():
        mine = {name: png for name, png in pictures.items() if name.startswith(f"{stem}-")}
        if mine:
            parts.append(f"<h2>{escape(one.encoder.name)} on {escape(one.data.name)}</h2>")
            kinds = {name.removeprefix(f"{stem}-").removesuffix(".png"): png for name, png in mine.items()}
            parts += [_figure(caption, kinds[kind]) for kind, caption in CAPTIONS.items() if kind in kinds]
    made = results[0].provenance
    origin = f"<p>{escape(made.date)} · {escape(made.hardware)} · <code>{escape(made.command)}</code></p>"
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluation</title>'
    head += f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return f"{head}<h1>Evaluation</h1>{origin}{''.join(parts)}</html>\n"


def _list(lines: Sequence[str]) -> str:
    return "".join(["<ul>", *(f"<li>{escape(line.removeprefix('- '))}</li>" for line in lines), "</ul>"])


def _table(cells: Sequence[Sequence[str]]) -> str:
    head, *body = ["".join(f"<t{{0}}>{escape(cell)}</t{{0}}>" for cell in line) for line in cells]
    lines = [head.replace("{0}", "h"), *(line.replace("{0}", "d") for line in body)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _figure(caption: str, png: bytes) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<figure><figcaption>{caption}</figcaption><img alt="{caption}" src="{source}"></figure>'
