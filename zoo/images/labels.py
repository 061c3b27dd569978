"""Labels as a format has them, class indices or names, become class indices."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from zoo.errors import BadData

# Columns and fields that hold the class of an image, the likeliest first.
LABEL_NAMES = ("label", "labels", "target", "class", "cls", "category", "class_name", "class_id", "y")


def label_name(names: Sequence[str], preferred: str = "") -> str | None:
    """The likeliest of `names` to hold labels: `preferred`, then those of LABEL_NAMES; None if none does."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in (preferred.lower(), *LABEL_NAMES) if name and name in lower), None)


def class_names(values: Iterable[Any]) -> tuple[str, ...]:
    """The classes where labels are names: each once, in the order of the alphabet, or of their numbers; else ()."""
    names = {value for value in values if isinstance(value, str)}
    if names and all(re.fullmatch(r"\d+", name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def class_indices(values: Sequence[Any], classes: Sequence[str], where: str) -> np.ndarray:
    """(n,) int64, -1 for None. Raises BadData for what is neither a class index nor one of the classes."""
    number = {name: index for index, name in enumerate(classes)}
    found = [-1 if value is None else number.get(value, value) for value in values]
    wrong = next((value for value in found if not isinstance(value, int)), None)
    if wrong is not None:
        raise BadData(f"{where}: there is a label {wrong!r}; a label is a class index (an integer) or a class's name")
    try:
        return np.asarray(found, np.int64)
    except OverflowError as error:
        raise BadData(f"{where}: labels {min(found)}..{max(found)}; a label is a class index") from error
