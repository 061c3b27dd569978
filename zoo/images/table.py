"""A CSV or Parquet table beside the images: a file and a label in each row."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.errors import BadData
from zoo.images.index import Index, index_of_files
from zoo.images.labels import class_indices, class_names, label_name
from zoo.images.walk import find_images

FILE_COLUMNS = ("file_name", "filename", "file", "path", "image_path", "image", "img", "name", "id")
SPLIT_COLUMNS = ("split", "set", "subset", "fold", "partition")
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)


class _Row(NamedTuple):
    file: str
    labels: list[Any]  # one for each label column
    split: str


def table_splits(table: Path, *, file_column: str = "", label_column: str = "") -> dict[str, Index]:
    """The splits of a table; "all" where it has no column of splits.

    Files are named relative to the table's folder, or by their names alone, with or without suffix. Labels are one
    column of classes, of `a|b` where an image is of several, or several columns of 0 and 1. Images without a row, and
    rows without an image, are left out and named. Raises BadData.
    """
    rows, columns = _read(table, file_column, label_column)
    found = find_images(table.parent)
    by_name: dict[str, Path] = {}
    for path in found.paths:
        for key in (path.as_posix(), path.with_suffix("").as_posix(), path.name, path.stem):
            by_name.setdefault(key, path)
    skipped = dict(found.skipped)
    kept: list[tuple[Path, _Row]] = []
    seen: set[Path] = set()
    for row in rows:
        named = by_name.get(row.file.removeprefix("./"))
        if named is None:
            skipped[row.file] = f"{table.name} names it, but there is no such image"
        elif named in seen:
            raise BadData(f"{table}: {row.file} has two rows; one label column may hold `a|b`")
        else:
            seen.add(named)
            kept.append((named, row))
    skipped |= {path.as_posix(): f"has no row in {table.name}" for path in found.paths if path not in seen}
    if not kept:
        raise BadData(f"{table}: none of the {len(rows)} files that it names is an image below {table.parent}")
    kept.sort(key=lambda each: each[0].parts)
    labels, classes = _labels([row.labels for _, row in kept], columns, table)
    splits: dict[str, Index] = {}
    for split in dict.fromkeys(row.split for _, row in kept):
        mine = [i for i, (_, row) in enumerate(kept) if row.split == split]
        paths = [kept[i][0] for i in mine]
        splits[split] = index_of_files(table.parent, paths, labels[mine], classes, skipped=skipped, others=found.others)
        skipped = {}
    return splits


def _read(table: Path, file_column: str, label_column: str) -> tuple[list[_Row], list[str]]:
    """The rows, and the names of the label columns."""
    records = _records(table)
    names = list(records[0])
    lower = {name.lower(): name for name in names}
    file = file_column or next((lower[name] for name in FILE_COLUMNS if name in lower), "")
    if file not in names:
        raise BadData(f"{table}: no column {file or 'of file names'}; it has {', '.join(names)}. Name it `file`")
    split = next((lower[name] for name in SPLIT_COLUMNS if name in lower), "")
    rest = [name for name in names if name not in (file, split)]
    one = label_column or label_name(rest) or (rest[0] if len(rest) == 1 else "")
    if one and one not in names:
        raise BadData(f"{table}: no column {one}; it has {', '.join(names)}")
    columns = [one] if one else [name for name in rest if _is_flag([record[name] for record in records])]
    if not columns:
        raise BadData(f"{table}: which column is the label: {', '.join(rest) or 'none is left'}? Give its name")
    rows = []
    for record in records:
        word = str(record[split] or "").lower() if split else ""
        if split and word not in SPLIT_WORDS:
            raise BadData(f"{table}: {record[file]} is in the split {word!r}; allowed: train, test, val")
        rows.append(_Row(str(record[file]), [record[name] for name in columns], SPLIT_WORDS[word] if split else "all"))
    return rows, columns


def _records(table: Path) -> list[dict[str, Any]]:
    try:
        if table.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_table

            records = read_table(table).to_pylist()
        else:
            text = table.read_text("utf-8-sig")
            dialect: Any = "excel-tab" if table.suffix.lower() == ".tsv" else "excel"
            if dialect == "excel" and text.partition("\n")[0].count(";") > text.partition("\n")[0].count(","):
                records = list(csv.DictReader(text.splitlines(), delimiter=";"))
            else:
                records = list(csv.DictReader(text.splitlines(), dialect=dialect))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise BadData(f"{table}: cannot be read ({error}). Save it as CSV in UTF-8") from error
    if not records:
        raise BadData(f"{table}: no row in it")
    return records


def _is_flag(values: Sequence[Any]) -> bool:
    return all(str(value) in ("0", "1", "0.0", "1.0", "True", "False", "-1") for value in values)


def _labels(marks: Sequence[Sequence[Any]], columns: Sequence[str], table: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) or (n, C) int64 and the classes: those named, in order; numbers are names as well, so gaps do no harm."""
    if len(columns) > 1:
        values = {"0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1, "True": 1, "False": 0}
        return np.array([[values[str(mark)] for mark in row] for row in marks], np.int64), tuple(columns)
    cells = [None if row[0] is None or row[0] == "" else str(row[0]).strip() for row in marks]
    wrong = next((cell for cell in cells if cell and re.fullmatch(r"-?\d+\.\d*[1-9]\d*", cell)), None)
    if wrong:
        raise BadData(f"{table}: there is a label {wrong}; a label is a class index or a class's name")
    if not any(cell and "|" in cell for cell in cells):
        classes = class_names(cells)
        return class_indices(cells, classes, str(table)), classes
    several = [set() if cell is None else {part.strip() for part in cell.split("|") if part.strip()} for cell in cells]
    classes = class_names(name for names in several for name in names)
    return np.array([[int(name in names) for name in classes] for names in several], np.int64), classes
