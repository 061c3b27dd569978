"""The folder of one evaluation: results as they are measured, predictions beside them, tables of all."""

import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from eval.card_results import writable
from eval.result import Result
from eval.tables import csv_text, markdown
from zoo.errors import CorruptFile, ZooError
from zoo.files import make_folder, write_bytes


class Results:
    """`rows/` one file for each encoder, data set and protocol; `predictions/`; `plots/`; `results.{json,csv,md}`.

    Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def make_ready(self) -> None:
        """The folder, empty if it was not there. Raises ZooError if nothing can be written into it."""
        if self.folder is not None:
            make_folder(self.folder / "rows")
            if not writable(self.folder / "rows"):
                raise ZooError(f"cannot write into {self.folder}; give another folder with --out")

    def once(self, key: list[Any], measure: Callable[[], list[Result]]) -> list[Result]:
        """The results of `key`: from an earlier run if it got that far, else measured and kept.

        If another process has measured the same meanwhile, its results are taken.
        """
        if self.folder is None:
            return measure()
        path = self.folder / "rows" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
        if path.is_file():
            return read_results(path)
        found = measure()
        if not path.is_file():
            write_bytes(path, _json(found).encode())
        return read_results(path)

    def once_file(self, name: str, make: Callable[[], bytes]) -> None:
        """Write the file `name` of the folder, unless an earlier run has."""
        if self.folder is not None and not (self.folder / name).is_file():
            write_bytes(self.folder / name, make())

    def keep_predictions(self, result: Result, predicted: np.ndarray, labels: np.ndarray) -> None:
        """The classes (n_test,) predicted and true, for `eval.compare` and the plots."""
        if self.folder is None:
            return
        content = io.BytesIO()
        np.savez(content, predicted=predicted, labels=labels, data_sha256=np.array(result.data.sha256))
        write_bytes(self._predictions_path(result), content.getvalue())

    def predictions(self, result: Result) -> np.ndarray | None:
        """The classes (n_test,) that were predicted; None for a protocol that predicts none."""
        path = self._predictions_path(result)
        if not path.is_file():
            return None
        return read_predictions(path)["predicted"]

    def answers(self, result: Result) -> tuple[np.ndarray, np.ndarray] | None:
        """Predicted and true classes (n_test,), or scores and labels (n_test, C); None where none were kept."""
        path = self._predictions_path(result)
        if not path.is_file():
            return None
        found = read_predictions(path)
        return found["predicted"], found["labels"]

    def _predictions_path(self, result: Result) -> Path:
        assert self.folder is not None
        return self.folder / "predictions" / f"{file_stem(result, result.key)}.npz"

    def with_earlier(self, results: list[Result]) -> list[Result]:
        """`results`, then those of other calls that the folder keeps, by key. Raises CorruptFile."""
        paths = sorted((self.folder / "rows").glob("*.json")) if self.folder is not None else []
        earlier = [one for path in paths for one in read_results(path) if one not in results]
        return results + sorted(earlier, key=lambda one: (one.key, one.provenance.date))

    def write_tables(self, results: list[Result]) -> None:
        """results.json, results.csv and results.md, of the same results."""
        if self.folder is None:
            return
        write_bytes(self.folder / "results.json", (_json(results) + "\n").encode())
        write_bytes(self.folder / "results.csv", csv_text(results).encode())
        write_bytes(self.folder / "results.md", (markdown(results) + "\n").encode())

    def pictures(self) -> dict[str, bytes]:
        """The PNGs below plots/ by name."""
        paths = sorted((self.folder / "plots").glob("*.png")) if self.folder is not None else []
        return {path.name: path.read_bytes() for path in paths}


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """`predicted` and `labels`, of one shape, `data_sha256`, as `Results.keep_predictions` wrote them.

    Raises CorruptFile.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("predicted", "labels", "data_sha256")}
        shape = found["labels"].shape
        if not all(shape) or not shape or found["predicted"].shape != shape:
            raise ValueError(f"{found['predicted'].shape} predictions and {shape} labels")
        if not np.isfinite(found["predicted"]).all():
            raise ValueError("some are not finite")
        return found
    except (ValueError, TypeError, KeyError, EOFError, OSError, BadZipFile) as error:
        raise CorruptFile(f"{path}: not predictions of eval.score ({error}). Delete it, and measure again") from error


def file_stem(result: Result, text: str) -> str:
    """A file name made of `text`, unique to the encoder and the images of a result."""
    name = re.sub(r"[^a-zA-Z0-9.@-]+", "_", text)
    images = hashlib.sha256(" ".join(result.data.sha256).encode()).hexdigest()[:6]
    return f"{name}-{result.encoder.sha256[:8] or result.encoder.image_size}-{images}"


def read_results(path: Path) -> list[Result]:
    """Results written by `eval.score`. Raises CorruptFile."""
    try:
        rows = json.loads(path.read_text())
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("no list of results")
        return [Result.from_row(row, where=path) for row in rows]
    except CorruptFile as error:
        raise CorruptFile(f"{error}: delete {path.name}") from error
    except (ValueError, TypeError) as error:
        raise CorruptFile(f"{path}: not results ({error}). Delete it, and measure again") from error


def _json(results: list[Result]) -> str:
    return json.dumps([one.to_row() for one in results], indent=1, allow_nan=False)
