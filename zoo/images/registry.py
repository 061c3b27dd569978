"""Data sets of the user's own: what was found out about each is kept in `$ZOO_HOME/datasets/NAME.json`.

A name that is kept here works wherever a row of `zoo.images.dataset` does.
"""

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from zoo.errors import BadData, CorruptFile, UnknownName
from zoo.files import write_bytes, zoo_home
from zoo.images.dataset import DATASETS, ELEVEN_POINT, Dataset

FORMAT = 1


@dataclass(frozen=True)
class Facts:
    """What `zoo.images.survey.survey` found in a data set, and what its owner said of it."""

    name: str
    place: str  # an absolute path, or hf://ORG/NAME[@REVISION]
    classes: tuple[str, ...]  # empty where images have no labels
    image_size: int  # pixels, H = W, that images are brought to by default
    mean: tuple[float, float, float]  # of RGB in [0, 1], over the readable images of train
    std: tuple[float, float, float]
    several_labels: bool = False  # whether an image may be of several classes
    image_column: str = ""  # "" where it was found
    label_column: str = ""
    licence: str = ""
    source: str = ""
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)  # images, per_class, unlabelled, unreadable, digest
    drawn: str = ""  # how a missing split is drawn; "" where none is
    sizes: dict[str, list[int]] = field(default_factory=dict)  # smallest, median and largest: width, height
    modes: dict[str, int] = field(default_factory=dict)  # images of each of Pillow's modes
    duplicates: dict[str, int] = field(default_factory=dict)  # exact ones, within each split and "across"
    others: dict[str, int] = field(default_factory=dict)  # files that are no images, by suffix
    warnings: tuple[str, ...] = ()
    date: str = ""

    def row(self) -> Dataset:
        """As a row of `zoo.images.dataset`."""
        metric = ELEVEN_POINT if self.several_labels else "top-1 accuracy"
        hub = self.place.removeprefix(HUB) if self.place.startswith(HUB) else ""
        return Dataset(
            hub=hub,
            classes=max(1, len(self.classes)),
            image_size=self.image_size,
            mean=self.mean,
            std=self.std,
            licence=self.licence or "not recorded",
            label=self.label_column,
            metric=metric,
            place=self.place,
            image=self.image_column,
            names=self.classes,
        )


HUB = "hf://"  # before the id of a data set on the Hugging Face Hub


def facts_file(name: str) -> Path:
    return zoo_home() / "datasets" / f"{name}.json"


def kept_names() -> list[str]:
    """The names of all data sets that are kept, in the order of the alphabet."""
    return sorted(path.stem for path in (zoo_home() / "datasets").glob("*.json"))


def keep_facts(facts: Facts) -> Path:
    """Write the facts; the file. Raises BadData for a name that cannot be one."""
    check_name(facts.name)
    path = facts_file(facts.name)
    write_bytes(path, (json.dumps({"format": FORMAT} | asdict(facts), indent=1) + "\n").encode())
    return path


def read_facts(name: str) -> Facts:
    """Raises UnknownName if no such data set is kept, CorruptFile if its file is damaged."""
    path = facts_file(name)
    if not re.fullmatch("[a-z0-9]+", name) or not path.is_file():
        raise UnknownName(f"no data set {name!r} is kept; `zoo data {name} PATH` looks at its images and keeps it")
    try:
        found = json.loads(path.read_text())
        if found.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        known = {each.name for each in fields(Facts)}
        found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
        return Facts(**{key: value for key, value in found.items() if key in known})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptFile(f"{path}: damaged ({error}). Delete it, and look at the data set again: zoo data") from error


def check_name(name: str) -> None:
    """Raises BadData for a name that a data set of one's own cannot have."""
    if name in DATASETS:
        raise BadData(f"{name} is a data set of this package; give yours another name")
    if not re.fullmatch("[a-z0-9]+", name):
        near = re.sub("[^a-z0-9]", "", name.lower())
        hint = f", such as {near}" if near and near not in DATASETS else ""
        raise BadData(f"{name!r} cannot be the name of a data set: lower-case letters and digits alone{hint}")
