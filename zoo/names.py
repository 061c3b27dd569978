"""One name everywhere: `<method>-<backbone>-<data set>[-<variant>]`, such as `simco-r18-cifar100`.

The name of a recipe is the name of its run folder, card, ONNX file and served model.
"""

import re
from typing import NamedTuple

from zoo.errors import UnknownName
from zoo.images.dataset import DATASETS, dataset_row
from zoo.model.backbone import BACKBONES, backbone_row


class Name(NamedTuple):
    """The parts of a model's name."""

    method: str
    backbone: str
    dataset: str
    variant: str = ""


def parse_name(text: str) -> Name:
    """Split the name of a model of this zoo's backbones and data sets into its parts.

    Raises UnknownName if it is not of the grammar, or names a backbone or data set no table has.
    """
    name = split_name(text)
    backbone_row(name.backbone)
    dataset_row(name.dataset)
    return name


def split_name(text: str) -> Name:
    """Split a model name into its parts, whatever backbone and data set it names. Raises UnknownName."""
    parts = text.split("-")
    if len(parts) not in (3, 4) or not all(re.fullmatch("[a-z0-9]+", part) for part in parts):
        raise UnknownName(
            f"{text!r} is not a model name. A name is <method>-<backbone>-<data set>[-<variant>] in lower case, such "
            f"as simco-r18-cifar100; backbones: {', '.join(BACKBONES)}; data sets: {', '.join(DATASETS)}"
        )
    return Name(*parts)


def natural_order(text: str) -> list[tuple[int, str]]:
    """Sort key under which r18 stands before r101, and cifar10 before cifar100."""
    return [(int(run), "") if run.isdecimal() else (-1, run) for run in re.split(r"(\d+)", text) if run]
