"""Results as tables. Numbers that were not made in the same way are never in one column."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eval.result import Result

CSV = ("encoder", "dataset", "protocol", "protocol_version", "metric", "unit", "value", "low", "high", "std",
       "n_train", "n_test", "dim", "image_size", "skipped", "unlabelled", "unseen", "duplicates", "collapsed",
       "encoder_sha256", "date", "failure")  # fmt: skip

Column = tuple[str, int, int, str]  # data set, train and test images, their hashes


def markdown(results: Sequence[Result]) -> str:
    """The tables of `sections`, then the notes."""
    parts = [f"**{title}**\n\n{pipes(cells)}" for title, cells in sections(results)]
    return "\n\n".join(parts + (["\n".join(notes(results))] if notes(results) else []))


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """Lines of cells, heads first, as a Markdown table; numbers are aligned to the right."""
    rule = ["---"] + ["--:"] * (len(cells[0]) - 1)
    safe = ([cell.replace("|", r"\|") for cell in line] for line in [cells[0], rule, *cells[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in safe)


def notes(results: Sequence[Result]) -> list[str]:
    """What a reader has to know to trust the numbers, each once."""
    found = [note for result in results for note in _notes(result)]
    return list(dict.fromkeys(found))


def details(results: Sequence[Result]) -> list[str]:
    """Further remarks, each once; too many for a table."""
    return list(dict.fromkeys(f"- {_subject(one)}: {detail}" for one in results for detail in one.details))


def sections(results: Sequence[Result]) -> list[tuple[str, list[list[str]]]]:
    """A titled table for each protocol and metric: a line for each encoder, a column for each data set (and sample).

    The first line holds the heads. Of several encoders on several data sets the mean ranks are added.
    """
    return [_section(title, group) for title, group in grouped(results).items()]


def grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by all that has to be equal for them to be compared: protocol, its version, metric."""
    groups: dict[str, list[Result]] = {}
    for one in results:
        groups.setdefault(f"{one.protocol}, v{one.version}: {one.metric}", []).append(one)
    return groups


def column(result: Result) -> Column:
    """Which images a result was measured on; the hashes tell two samples of equal size apart."""
    return result.data.name, result.data.n_train, result.data.n_test, " ".join(result.data.sha256)


def line(result: Result, results: Sequence[Result]) -> str:
    """The encoder of a result, told apart from another one of the same name among `results`.

    Baselines, which no card names, are normalised and sized as each data set asks: only two on the same images are two.
    """
    encoder = result.encoder
    same = [other for other in results if other.encoder.name == encoder.name]
    if not any(other.encoder.weights_sha256 for other in same):
        same = [other for other in same if column(other) == column(result)]
    twins = {(other.encoder.sha256, other.encoder.image_size) for other in same}
    return f"{encoder.name} ({encoder.sha256[:8] or encoder.image_size})" if len(twins) > 1 else encoder.name


def _section(title: str, results: Sequence[Result]) -> tuple[str, list[list[str]]]:
    columns = list(dict.fromkeys(map(column, results)))
    lines = list(dict.fromkeys(line(one, results) for one in results))
    cells = _cells(results)
    further = dict.fromkeys(head for one in results for head in one.columns) if len(columns) == 1 else {}
    ranked = min(len(columns), len(lines)) > 1 and results[0].unit == "share"
    ranks = mean_ranks(results) if ranked else {}
    heads = ["encoder", "D", *(f"{name}, {train:,} / {test:,}" for name, train, test, _ in columns)]
    heads += [*further] + (["mean rank"] if ranks else [])
    body = []
    for name in lines:
        mine = [cells.get((name, where)) for where in columns]
        widths = dict.fromkeys(str(one.encoder.dim) for one in mine if one)
        first = next(one for one in mine if one)
        values = [name, " / ".join(widths), *(cell(one) if one else "" for one in mine)]
        values += [f"{_scale(first) * first.columns[head]:.2f}" if head in first.columns else "" for head in further]
        body.append(values + ([f"{ranks[name]:.1f}" if name in ranks else ""] if ranks else []))
    unit = " (%, train / test images)" if results[0].unit == "share" else " (train / test images)"
    return title + unit, [heads, *body]


def _cells(results: Sequence[Result]) -> dict[tuple[str, Column], Result]:
    """The result of each cell of a table; several training runs share a cell, each seed once."""
    places: dict[tuple[str, Column], list[Result]] = {}
    for one in results:
        places.setdefault((line(one, results), column(one)), []).append(one)
    return {place: _in_one_cell(found) for place, found in places.items()}


def _in_one_cell(results: Sequence[Result]) -> Result:
    """The last of them, or, of training runs, the mean over seeds of the last of each."""
    of_seed = {one.extras.get("seed"): one for one in results}
    return over_seeds(list(of_seed.values())) if "seed" in results[-1].extras else results[-1]


def over_seeds(results: Sequence[Result]) -> Result:
    """Mean and standard deviation (n - 1) of the values of training runs that differ in their seed alone.

    A run that diverged, its value None, is only counted: `trained` of `started` in the extras.
    """
    values = [one.value for one in results if one.value is not None]
    std = {"std": statistics.stdev(values)} if len(values) > 1 else {}
    extras = dict(results[-1].extras) | std | {"trained": len(values), "started": len(results)}
    return replace(results[-1], value=statistics.fmean(values) if values else None, extras=extras)


def trainings(result: Result) -> str:
    """`5 trainings`, or `4 of 5 trainings`, of a result that `over_seeds` made."""
    some, all_of_them = result.extras["trained"], result.extras["started"]
    whole = f"{all_of_them} training{'s' if all_of_them > 1 else ''}"
    return whole if some == all_of_them else f"{some} of {whole}"


def cell(result: Result) -> str:
    """The value with its 95 % interval, or with its standard deviation over seeds."""
    if result.value is None:
        return f"({trainings(result)})" if "trained" in result.extras else "failed"
    scale, std = _scale(result), result.extras.get("std")
    text = f"{scale * result.value:.2f}"
    if result.interval:
        low, high = result.interval
        text += f" [{scale * low:.2f}, {scale * high:.2f}]"
    elif std is not None:
        text += f" ± {scale * std:.2f}"
    return f"{text} ({trainings(result)})" if "trained" in result.extras else text


def _scale(result: Result) -> int:
    return 100 if result.unit == "share" else 1


def mean_ranks(results: Sequence[Result]) -> dict[str, float]:
    """The mean over columns of each encoder's rank, 1 the best, equals sharing theirs; only encoders in all columns."""
    columns: dict[Column, dict[str, float]] = {}
    for (name, where), one in _cells(results).items():
        columns.setdefault(where, {}).update({name: one.value} if one.value is not None else {})
    everywhere = set.intersection(*(set(values) for values in columns.values()))
    ranks: dict[str, list[float]] = {name: [] for name in everywhere}
    for values in columns.values():
        for name in everywhere:
            above = sum(values[other] > values[name] for other in everywhere)
            equal = sum(values[other] == values[name] for other in everywhere)
            ranks[name].append(above + (equal + 1) / 2)
    return {name: sum(found) / len(found) for name, found in ranks.items()}


def _notes(result: Result) -> list[str]:
    failed = [f"failed: {result.failure}"] if result.failure else []
    of_number = [f"- {_subject(result)}: {note}" for note in (*failed, *result.notes)]
    return of_number + [f"- {result.data.name}: {note}" for note in result.data.notes]


def _subject(result: Result) -> str:
    return f"{result.encoder.name} on {result.data.name}, {result.protocol.split(',')[0]}"


def csv_text(results: Sequence[Result]) -> str:
    """One line a result, values as fractions."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV, extrasaction="ignore")
    writer.writeheader()
    for one in results:
        low, high = one.interval or ("", "")
        row: Mapping[str, Any] = one.to_row() | {"low": low, "high": high}
        writer.writerow(row)
    return text.getvalue()
