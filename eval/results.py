"""The folder of one evaluation: rows as they are measured, predictions beside them, tables last."""

import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eval.tables import Row, csv_text, markdown
from zoo.errors import CorruptFile
from zoo.files import write_bytes


class Results:
    """`rows/` one file for each encoder, data set and protocol; `predictions/`; `results.{json,csv,md}`.

    Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def once(self, key: list[Any], measure: Callable[[], list[Row]]) -> list[Row]:
        """The rows of `key`: from an earlier run if it got that far, else measured and kept."""
        if self.folder is None:
            return measure()
        path = self.folder / "rows" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
        if path.is_file():
            return read_rows(path)
        rows = measure()
        write_bytes(path, json.dumps(rows, indent=1, allow_nan=False).encode())
        return rows

    def keep_predictions(self, row: Row, predicted: np.ndarray, labels: np.ndarray) -> None:
        """The classes (n_test,) predicted and true, for `eval.compare` and the plots."""
        if self.folder is None:
            return
        content = io.BytesIO()
        np.savez(content, predicted=predicted, labels=labels, data_sha256=np.array(row["data_sha256"]))
        write_bytes(self.folder / "predictions" / predictions_name(row), content.getvalue())

    def write_tables(self, rows: list[Row]) -> None:
        """results.json, results.csv and results.md, of the same rows."""
        if self.folder is None:
            return
        write_bytes(self.folder / "results.json", (json.dumps(rows, indent=1, allow_nan=False) + "\n").encode())
        write_bytes(self.folder / "results.csv", csv_text(rows).encode())
        write_bytes(self.folder / "results.md", (markdown(rows) + "\n").encode())


def predictions_name(row: Row) -> str:
    """The file name of a row's predictions."""
    return f"{re.sub(r'[^a-zA-Z0-9.@-]+', '_', row['key'])}-{row['encoder_sha256'][:8] or row['image_size']}.npz"


def read_rows(path: Path) -> list[Row]:
    """Rows written by `eval.score`. Raises CorruptFile."""
    try:
        rows = json.loads(path.read_text())
        if not all(isinstance(row, dict) and "key" in row for row in rows):
            raise ValueError("no list of rows")
        return rows
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"{path}: not results ({error}). Delete it, and measure again") from error
