"""Rows as tables. Numbers that were not made in the same way never stand in one column."""

import csv
import io
import math
import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
COLUMNS = ("encoder", "dataset", "protocol", "protocol_version", "metric", "unit", "value", "low", "high", "std")
MORE_COLUMNS = ("n_train", "n_test", "dim", "image_size", "skipped", "unlabelled", "unseen", "duplicates", "collapsed")


def markdown(rows: Sequence[Row]) -> str:
    """The tables of `sections`, then the notes."""
    parts = [f"**{title}**\n\n{pipes(cells)}" for title, cells in sections(rows)]
    return "\n\n".join(parts + (["\n".join(notes(rows))] if notes(rows) else []))


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """Lines of cells, heads first, as a Markdown table; numbers stand to the right."""
    rule = ["---"] + ["--:"] * (len(cells[0]) - 1)
    safe = ([cell.replace("|", r"\|") for cell in line] for line in [cells[0], rule, *cells[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in safe)


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader has to know to trust the numbers, each once."""
    return list(dict.fromkeys(note for row in rows for note in _notes(row)))


def sections(rows: Sequence[Row]) -> list[tuple[str, list[list[str]]]]:
    """A titled table for each protocol and metric: a line for each encoder, a column for each data set (and sample).

    The first line holds the heads. Of several encoders on several data sets the mean ranks are added.
    """
    return [_section(title, group) for title, group in grouped(rows).items()]


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by all that has to be equal for them to be compared: protocol, its version, metric."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['protocol']}, v{row['protocol_version']}: {row['metric']}", []).append(row)
    return groups


def column(row: Row) -> tuple[str, int, int, str]:
    """Which images a row was measured on; the hashes tell two samples of equal size apart."""
    return row["dataset"], row["n_train"], row["n_test"], " ".join(row["data_sha256"])


def line(row: Row, rows: Sequence[Row]) -> str:
    """The encoder of a row, told apart from another one of the same name among `rows`."""
    twins = {(other["encoder_sha256"], other["image_size"]) for other in rows if other["encoder"] == row["encoder"]}
    return f"{row['encoder']} ({row['encoder_sha256'][:8] or row['image_size']})" if len(twins) > 1 else row["encoder"]


def _section(title: str, rows: Sequence[Row]) -> tuple[str, list[list[str]]]:
    columns = list(dict.fromkeys(map(column, rows)))
    lines = list(dict.fromkeys(line(row, rows) for row in rows))
    cells = _cells(rows)
    ks = sorted({int(k) for row in rows for k in row.get("by_k", ())}) if len(columns) == 1 else []
    ranked = min(len(columns), len(lines)) > 1 and rows[0]["unit"] == "share"
    ranks = mean_ranks(rows) if ranked else {}
    heads = ["encoder", "D", *(f"{name}, {train:,} / {test:,}" for name, train, test, _ in columns)]
    heads += [f"k = {k}" for k in ks] + (["mean rank"] if ranks else [])
    body = []
    for name in lines:
        mine = [cells.get((name, where)) for where in columns]
        first = next(row for row in mine if row)
        values = [name, str(first["dim"]), *(cell(row) if row else "" for row in mine)]
        values += [f"{100 * first['by_k'][str(k)]:.2f}" if str(k) in first["by_k"] else "" for k in ks]
        body.append(values + ([f"{ranks[name]:.1f}" if name in ranks else ""] if ranks else []))
    unit = " (%, train / test images)" if rows[0]["unit"] == "share" else " (train / test images)"
    return title + unit, [heads, *body]


def _cells(rows: Sequence[Row]) -> dict[tuple[str, Any], Row]:
    """What stands where in a table; several trainings share a cell, each seed once."""
    places: dict[tuple[str, Any], list[Row]] = {}
    for row in rows:
        places.setdefault((line(row, rows), column(row)), []).append(row)
    return {place: _in_one_cell(found) for place, found in places.items()}


def _in_one_cell(rows: Sequence[Row]) -> Row:
    """The last of them, or, of trainings, the mean over seeds of the last of each."""
    of_seed = {row.get("seed"): row for row in rows}
    return over_seeds(list(of_seed.values())) if "seed" in rows[-1] else rows[-1]


def over_seeds(rows: Sequence[Row]) -> Row:
    """One row for trainings that differ in their `seed` alone: mean and standard deviation (n - 1) of their values.

    A training that diverged, its value None, is only counted: `trained` of `started`.
    """
    values = [row["value"] for row in rows if row["value"] is not None]
    std = {"std": statistics.stdev(values)} if len(values) > 1 else {}
    mean = statistics.fmean(values) if values else None
    return rows[-1] | std | {"value": mean, "trained": len(values), "started": len(rows)}


def trainings(row: Row) -> str:
    """`5 trainings`, or `4 of 5 trainings`, of a row that `over_seeds` made."""
    some, all_of_them = row["trained"], row["started"]
    whole = f"{all_of_them} training{'s' if all_of_them > 1 else ''}"
    return whole if some == all_of_them else f"{some} of {whole}"


def cell(row: Row) -> str:
    """The value with its 95 % interval, or with its standard deviation over seeds."""
    if row["value"] is None:
        return f"({trainings(row)})"
    scale = 100 if row["unit"] == "share" else 1
    text = f"{scale * row['value']:.2f}"
    if row["ci95"]:
        text += f" [{scale * row['ci95'][0]:.2f}, {scale * row['ci95'][1]:.2f}]"
    elif row.get("std") is not None:
        text += f" ± {scale * row['std']:.2f}"
    return f"{text} ({trainings(row)})" if "trained" in row else text


def mean_ranks(rows: Sequence[Row]) -> dict[str, float]:
    """The mean over columns of each encoder's rank, 1 the best, equals sharing theirs; only encoders in all columns."""
    columns: dict[Any, dict[str, float]] = {}
    for (name, where), row in _cells(rows).items():
        columns.setdefault(where, {}).update({name: row["value"]} if row["value"] is not None else {})
    everywhere = set.intersection(*(set(values) for values in columns.values()))
    ranks: dict[str, list[float]] = {name: [] for name in everywhere}
    for values in columns.values():
        for name in everywhere:
            above = sum(values[other] > values[name] for other in everywhere)
            equal = sum(values[other] == values[name] for other in everywhere)
            ranks[name].append(above + (equal + 1) / 2)
    return {name: sum(found) / len(found) for name, found in ranks.items()}


def _notes(row: Row) -> list[str]:
    where = f"{row['encoder']} on {row['dataset']}, {row['protocol'].split(',')[0]}"
    where += ", one training at least" if "trainings" in row else ""
    best = _best_of_knn(row)
    known = [
        (row["collapsed"], f"- {where}: the features are (nearly) one point; the encoder has collapsed."),
        (best, f"- {where}: {best}"),
        (row.get("grid_edge"), f"- {where}: the best setting lies at the edge of those tried."),
        (tie := _tie(row), f"- {where}: {tie}"),
        (row.get("converged") is False, f"- {where}: the last fit did not converge."),
        (row.get("diverged"), f"- {where}: the training {_divergence(row)}."),
        (more := _more_labels(row), f"- {where}: {more}"),
        (
            row["unseen"],
            f"- {row['dataset']}: {row['unseen']} test images of classes that train lacks: nothing learns those.",
        ),
        (row["unlabelled"], f"- {row['dataset']}: {row['unlabelled']} images without a label left out."),
        (
            row.get("difficult"),
            f"- {row['dataset']}: {row.get('difficult')} times an image has but difficult objects "
            "of a class; it is left out of that class.",
        ),
        (row["skipped"], f"- {row['dataset']}: {row['skipped']} images could not be decoded and are left out."),
        (row["duplicates"], f"- {row['dataset']}: {row['duplicates']} test images are in train, too."),
    ]
    return [note for holds, note in known if holds]


def _tie(row: Row) -> str:
    """Which settings were equally good where the setting was chosen; on the test images they may not be."""
    scores = row.get("held_out", {})
    best = [setting for setting, score in scores.items() if score == max(scores.values())]
    return f"the settings {' and '.join(best)} were equally good on the held-out images." if len(best) > 1 else ""


def _divergence(row: Row) -> str:
    return f"of seed {row['seed']} {row.get('diverged')}" if "seed" in row else "diverged"


def _more_labels(row: Row) -> str:
    """How many labels were used, where two of each class are far more than the share that was asked for."""
    if row.get("n_fit", 0) <= 1.2 * row.get("n_asked", math.inf):
        return ""
    return f"{row['n_fit']:,} labels were used, not {row['n_asked']:,}: of each class two at least."


def _best_of_knn(row: Row) -> str:
    """What k and T chosen on the test images would give, where that is more than the headline."""
    cells = {(t, k): value for t, by_k in row.get("by_temperature", {}).items() for k, value in by_k.items()}
    t, k = max(cells, key=cells.__getitem__, default=("", ""))
    if not cells or cells[t, k] <= row["value"]:
        return ""
    return f"at best {100 * cells[t, k]:.2f} % (k = {k}, T = {t}), but chosen on the test images."


def csv_text(rows: Sequence[Row]) -> str:
    """One line a row, values as fractions."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, *MORE_COLUMNS, "encoder_sha256", "date"], extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        low, high = row["ci95"] or ("", "")
        writer.writerow(row | {"low": low, "high": high})
    return text.getvalue()
