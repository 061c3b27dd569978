"""Starting a training run from existing weights rather than random ones."""

import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from train.method import Method
from train.momentum import MomentumEncoder
from zoo.errors import BadData, UnknownName
from zoo.hub.load import load_encoder
from zoo.hub.resolve import locate
from zoo.hub.store import HEAD
from zoo.names import split_name

NAMED = 3  # tensors that are named in a line
LEAST_SHARED = 0.5  # share of the encoder's parameters that must fit


class Start(NamedTuple):
    """What a run started from."""

    name: str
    sha256: str  # of the weights file


def start_from(method: Method, source: str, *, name: str, main: bool) -> Start:
    """Load the weights of a model into a fresh method; momentum encoders become copies of them.

    The normalization, mean and std, comes along. Projector and predictor do where both were trained by the same
    method and their shapes agree. The main process reports what was left out, and why.

    Args:
        method: As its recipe made it.
        source: A name of the zoo, a run folder, or an address on the Hub; as `zoo.load` takes them.
        name: Of the model in training.
        main: Whether this is the main process.

    Raises:
        BadData: If the weights are of another backbone.
        UnknownName, NoWeights, CorruptFile, Unreachable, AccessDenied: See `zoo.hub.resolve.locate`.
    """
    found = load_encoder(source)
    card = found.card
    assert card is not None
    lines = [_load(method.encoder, found.state_dict(), f"the encoder of {card.name}")]
    own, theirs = method.encoder.state_dict(), found.state_dict()
    shared = sum(value.numel() for key, value in own.items() if key in theirs and theirs[key].shape == value.shape)
    if shared < LEAST_SHARED * sum(value.numel() for value in own.values()):
        raise BadData(
            f"--start {source} is another network than {split_name(name).backbone}: {lines[0]}. Train a recipe of the "
            "same backbone, or start from other weights"
        )
    head = locate(source) / HEAD
    if not head.is_file():
        lines.append("projector and predictor start at random: there are none beside the weights")
    elif _method_of(card.name) != split_name(name).method:
        lines.append(f"projector and predictor start at random: those of {card.name} are of another method")
    else:
        for part, state in _parts(load_file(head)).items():
            if isinstance(module := getattr(method, part, None), torch.nn.Module):
                lines.append(_load(module, state, f"the {part} of {card.name}"))
    for module in method.modules():
        if isinstance(module, MomentumEncoder):
            module.restart()
    if main:
        print(*(f"start: {line}" for line in lines), sep="\n", file=sys.stderr)
    return Start(card.name, card.weights.sha256 if card.weights else "")


def _method_of(name: str) -> str:
    """The method in a model's name; nothing for a repository of plain timm."""
    try:
        return split_name(name).method
    except UnknownName:
        return ""


def _parts(head: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of projector and predictor, under their own names."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in head.items():
        part, _, rest = key.partition(".")
        found.setdefault(part, {})[rest] = value
    return found


def _load(module: torch.nn.Module, theirs: Mapping[str, Tensor], what: str) -> str:
    """Copy the tensors whose names and shapes agree; a line on what came and what did not."""
    own = module.state_dict()
    missing = [key for key in own if key not in theirs]
    unequal = [key for key in own if key in theirs and theirs[key].shape != own[key].shape]
    unused = [key for key in theirs if key not in own]
    module.load_state_dict(
        {key: theirs[key].to(value) if key in theirs and key not in unequal else value for key, value in own.items()}
    )
    came = len(own) - len(missing) - len(unequal)
    reasons = {"not there": missing, "of another shape": unequal, "without a place": unused}
    left = "".join(f"; {why}: {_some(keys)}" for why, keys in reasons.items() if keys)
    return f"{came} of {len(own)} tensors from {what}{left}"


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(keys[:NAMED]) + more
