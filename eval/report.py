"""`report.html`: all tables and pictures of an evaluation in one file that needs no other."""

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np

from eval.intervals import LEVEL, compare_predictions, holm
from eval.plots import confusion_png, map_png, neighbours_png, per_class_png, spectrum_png
from eval.report_page import SCRIPT, STYLE
from eval.result import Result
from eval.results import Results, file_stem
from eval.tables import column, details, grouped, line, notes, sections
from eval.task import Task
from zoo.model.card import ACCURACY

Answers = Callable[[Result], tuple[np.ndarray, np.ndarray] | None]  # predicted and true classes of a result

FEWEST_MAPPED = 5  # images; t-SNE of fewer says nothing
CAPTIONS = {  # in the order of the page
    "classes": "accuracy of each class",
    "confusion": "confusion matrix",
    "neighbours": "nearest neighbours",
    "map": "map of the test images",
    "spectrum": "spectrum of the features",
}
LEGEND = (
    "\u2605 marks the best of a column, \u2248 those that no difference from it can be told of (McNemar's exact test "
    "on the same images, adjusted for several by Holm). A click on a head sorts. Another training run may differ."
)


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


def html(results: Sequence[Result], pictures: Mapping[str, bytes], answers: Answers = lambda _: None) -> str:
    """The page: contents, sortable tables, notes, commands, pictures of each encoder, and of any two side by side.

    pictures: PNGs by the name that `draw` gave them. answers: what was predicted, to tell whether encoders differ.
    """
    tables = [
        (f"table-{number}", title, _table(cells, _marks(group, answers)))
        for number, ((title, cells), group) in enumerate(zip(sections(results), grouped(results).values(), strict=True))
    ]
    drawn = _drawn(results, pictures)
    contents = [(anchor, title) for anchor, title, _ in tables] + [("notes", "Notes"), ("commands", "Commands")]
    contents += [("beside", "Side by side")] * (len(drawn) > 1) + [(anchor, title) for anchor, title, _ in drawn]
    links = (f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title in contents)
    parts = [f"<nav><ul>{''.join(links)}</ul></nav>"]
    parts += [f'<h2 id="{anchor}">{escape(title)}</h2>{table}' for anchor, title, table in tables]
    parts += [f"<p>{LEGEND}</p>", f'<h2 id="notes">Notes</h2>{_list(notes(results))}']
    if remarks := details(results):
        parts.append(f"<details><summary>Remarks</summary>{_list(remarks)}</details>")
    parts += [f'<h2 id="commands">Commands</h2>{_commands(results)}', _beside(drawn) if len(drawn) > 1 else ""]
    parts += [f'<section id="{anchor}"><h2>{escape(title)}</h2>{figures}</section>' for anchor, title, figures in drawn]
    made = results[0].provenance
    origin = f"<p>{escape(made.date)} · {escape(made.hardware)}</p>"
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluation</title>'
    head += f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return f"{head}<h1>Evaluation</h1>{origin}{''.join(parts)}<script>{SCRIPT}</script></html>\n"


def _drawn(results: Sequence[Result], pictures: Mapping[str, bytes]) -> list[tuple[str, str, str]]:
    """Anchor, title and figures of each encoder on each data set that has pictures."""
    found: list[tuple[str, str, str]] = []
    for stem, one in {picture_stem(one): one for one in results}.items():
        mine = {name: png for name, png in pictures.items() if name.startswith(f"{stem}-")}
        kinds = {name.removeprefix(f"{stem}-").removesuffix(".png"): png for name, png in mine.items()}
        figures = "".join(_figure(caption, kinds[kind]) for kind, caption in CAPTIONS.items() if kind in kinds)
        if figures:
            found.append((f"encoder-{len(found)}", f"{one.encoder.name} on {one.data.name}", figures))
    return found


def _marks(group: Sequence[Result], answers: Answers) -> dict[tuple[str, int], str]:
    """Class of the cell at each line and position: "best", or "tie" where no difference from the best can be told.

    McNemar's exact test against the best, adjusted for the encoders of a column; only of accuracies of one prediction.
    """
    marks: dict[tuple[str, int], str] = {}
    columns = list(dict.fromkeys(map(column, group)))
    for position, where in enumerate(columns, 2):
        values = {line(one, group): one for one in group if column(one) == where and one.value is not None}
        if len(values) < 2 or group[0].unit != "share":
            continue
        best = max(values, key=lambda name: values[name].value or 0.0)
        marks[best, position] = "best"
        tested = {name: answers(one) for name, one in values.items() if one.metric == ACCURACY and one.interval}
        known = {name: found for name, found in tested.items() if found is not None and name != best}
        if (first := tested.get(best)) is None or not known:
            continue
        ps = [compare_predictions(first[0], found[0], found[1]).p or 0.0 for found in known.values()]
        ties = (name for name, p in zip(known, holm(ps), strict=True) if p >= LEVEL)
        marks |= {(name, position): "tie" for name in ties}
    return marks


def _table(cells: Sequence[Sequence[str]], marks: Mapping[tuple[str, int], str]) -> str:
    heads = "".join(f'<th scope="col"><button type="button">{escape(cell)}</button></th>' for cell in cells[0])
    lines = [f"<tr>{heads}</tr>"]
    for name, *values in cells[1:]:
        classes = (marks.get((name, position), "") for position in range(1, len(values) + 1))
        attributes = (f' class="{mark}"' if mark else "" for mark in classes)
        body = "".join(f"<td{a}>{escape(value)}</td>" for a, value in zip(attributes, values, strict=True))
        lines.append(f"<tr><td>{escape(name)}</td>{body}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _commands(results: Sequence[Result]) -> str:
    """The command of every number, each command once."""
    rows: dict[str, list[str]] = {}
    for one in results:
        rows.setdefault(one.provenance.command, []).append(
            f"{one.encoder.name} on {one.data.name}, {one.protocol.split(',')[0]}, {one.metric}"
        )
    parts = (
        f"<details><summary><code>{escape(command)}</code></summary>{_list(list(dict.fromkeys(subjects)))}</details>"
        for command, subjects in rows.items()
    )
    return "".join(parts)


def _beside(drawn: Sequence[tuple[str, str, str]]) -> str:
    """Two choices, below which the script shows the pictures of each: the same queries, both galleries."""
    options = "".join(f'<option value="{anchor}">{escape(title)}</option>' for anchor, title, _ in drawn)
    sides = "".join(
        f'<div><select aria-label="{side} encoder"><option value="">{side} encoder</option>{options}</select></div>'
        for side in ("first", "second")
    )
    return f'<section id="beside"><h2>Side by side</h2>{sides}<div><div></div><div></div></div></section>'


def _list(lines: Sequence[str]) -> str:
    return "".join(["<ul>", *(f"<li>{escape(line.removeprefix('- '))}</li>" for line in lines), "</ul>"])


def _figure(caption: str, png: bytes) -> str:
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<figure><figcaption>{caption}</figcaption><img alt="{caption}" src="{source}"></figure>'
