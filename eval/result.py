"""One number with everything that belongs beside it, and its form in JSON.

A result is kept as one flat JSON object, called a row, in cards, in `rows/` and in results.json. ROW says which entry
of a row is which attribute; entries that it does not list are `extras`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any

from eval.notes import notes_of_earlier_versions
from zoo.errors import CorruptFile

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class MeasuredEncoder:
    """Which features were measured."""

    name: str
    sha256: str  # of all that decides its features; "" for raw pixels, and for a mean over several training runs
    weights_sha256: str  # of the weights file that its card names; "" for none
    feature: str  # which layer
    image_size: int  # pixels
    dim: int  # D


@dataclass(frozen=True, kw_only=True)
class MeasuredData:
    """On which images, and what about them could harm or flatter a number."""

    name: str
    sha256: tuple[str, str]  # of train and test
    n_train: int
    n_test: int
    skipped: int  # could not be decoded
    unlabelled: int  # have no label and are left out
    difficult: int = 0  # times a class is left out of an image that may be of several
    unseen: int  # test images of a class that train lacks: they are kept
    duplicates: int  # test images that train holds, too, pixel for pixel
    different: str = ""  # where the images are not those of the published data set, as half a sentence

    @property
    def notes(self) -> list[str]:
        """What a reader has to know about the images, in sentences."""
        known = {
            "{} test images of classes that train lacks: nothing learns those.": self.unseen,
            "{} images without a label left out.": self.unlabelled,
            "{} times an image has but difficult objects of a class; it is left out of that class.": self.difficult,
            "{} images could not be decoded and are left out.": self.skipped,
            "{} test images are in train, too.": self.duplicates,
        }
        notes = [f"not the published data set: {self.different}."] if self.different else []
        return notes + [sentence.format(number) for sentence, number in known.items() if number]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a number came about."""

    hardware: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    cpu_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number. Two belong in one column only if `protocol`, `version` and `metric` are equal, and the images are."""

    key: str  # a later result of the same key replaces this one in a card
    protocol: str  # all that has to be equal for two numbers to be compared
    version: int  # raised when the same words come to mean another computation
    metric: str
    unit: str  # "share" for a number in [0, 1] that is shown in percent
    value: float | None  # None for a failure, and for a training run that diverged
    interval: tuple[float, float] | None  # 95 %
    encoder: MeasuredEncoder
    data: MeasuredData
    collapsed: bool | None  # whether the features are (nearly) one point; None where nobody looked
    columns: Mapping[str, float] = field(default_factory=dict)  # further values of the same unit, by their heading
    notes: tuple[str, ...] = ()  # what a reader has to know to trust the number
    details: tuple[str, ...] = ()  # further remarks, for the report alone
    failure: str = ""  # why there is no value
    provenance: Provenance = Provenance()
    extras: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters selected, further metrics

    def to_row(self) -> Row:
        """The result as a flat JSON object."""
        row = {entry: _plain(reduce(getattr, path.split("."), self)) for entry, path in ROW.items()}
        kept = {entry: value for entry, value in row.items() if entry in REQUIRED or value not in (None, "", [], {})}
        return kept | dict(self.extras)

    @classmethod
    def from_row(cls, row: Row, *, where: object) -> "Result":
        """The result that `row` holds, also as written by earlier versions.

        Raises CorruptFile, naming `where`, if entries are missing.
        """
        if missing := sorted(REQUIRED - row.keys()):
            raise CorruptFile(
                f"{where}: {row.get('key', 'a result')} lacks {', '.join(missing)}; another version wrote it. "
                "Measure again"
            )
        parts: dict[str, dict[str, Any]] = {"": {}, "encoder": {}, "data": {}, "provenance": {}}
        for entry, path in ROW.items():
            if entry in row:
                part, _, name = path.rpartition(".")
                parts[part][name] = tuple(row[entry]) if isinstance(row[entry], list) else row[entry]
        own = parts.pop("")
        extras = {entry: value for entry, value in row.items() if entry not in ROW}
        return cls(
            **_of_earlier_versions(row) | own,
            encoder=MeasuredEncoder(**parts["encoder"]),
            data=MeasuredData(**parts["data"]),
            provenance=Provenance(**parts["provenance"]),
            extras=extras,
        )


# Entries of a row, in their order: the attribute of a result that each one is.
ROW = {
    "key": "key",
    "protocol": "protocol",
    "protocol_version": "version",
    "encoder": "encoder.name",
    "encoder_sha256": "encoder.sha256",
    "weights_sha256": "encoder.weights_sha256",
    "feature": "encoder.feature",
    "image_size": "encoder.image_size",
    "dim": "encoder.dim",
    "collapsed": "collapsed",
    "dataset": "data.name",
    "metric": "metric",
    "unit": "unit",
    "value": "value",
    "ci95": "interval",
    "n_train": "data.n_train",
    "n_test": "data.n_test",
    "skipped": "data.skipped",
    "unlabelled": "data.unlabelled",
    "difficult": "data.difficult",
    "unseen": "data.unseen",
    "duplicates": "data.duplicates",
    "data_sha256": "data.sha256",
    "different": "data.different",
    "columns": "columns",
    "notes": "notes",
    "details": "details",
    "failure": "failure",
    "cpu_seconds": "provenance.cpu_seconds",
    "hardware": "provenance.hardware",
    "date": "provenance.date",
    "versions": "provenance.versions",
    "command": "provenance.command",
}
OPTIONAL = {"difficult", "different", "columns", "notes", "details", "failure", *(f.name for f in fields(Provenance))}
REQUIRED = ROW.keys() - OPTIONAL


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _of_earlier_versions(row: Row) -> dict[str, Any]:
    """Columns and notes that earlier versions left to the tables to write."""
    columns = {f"k = {k}": value for k, value in row.get("by_k", {}).items()}
    return {"columns": columns, "notes": notes_of_earlier_versions(row)}
