"""The projector that training put on the encoder, read back from its weights, and a linear head for fine-tuning."""

import re
from collections import defaultdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.hub.store import HEAD
from zoo.model.card import Card


def read_head(folder: Path, card: Card) -> dict[str, nn.Sequential]:
    """The projector and, where there is one, the predictor that belong to a model's weights, in evaluation mode.

    Raises:
        NoWeights: The model has none.
        CorruptFile: The file is damaged or belongs to other weights.
        ZooError: It is of a kind that this package does not build, such as DINO's or VISSL's classifiers.
    """
    path = folder / HEAD
    if not path.is_file():
        raise NoWeights(f"{card.name} came without its projector ({path} is missing); load it without head=True")
    try:
        with safe_open(path, "pt") as file:
            belongs_to = (file.metadata() or {}).get("weights_sha256")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise CorruptFile(f"{path}: not safetensors ({error}). Fetch or train the model again") from error
    if card.weights is None or belongs_to not in (None, card.weights.sha256):
        raise CorruptFile(f"{path} belongs to other weights than those of {card.name}. Run the training command again")
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, value in tensors.items():
        part, _, rest = key.partition(".")
        parts[part][rest] = value
    _refuse_other_heads(tensors, card)
    return {part: layers_of(state, where=f"{path}: {part}") for part, state in parts.items()}


def _refuse_other_heads(tensors: dict[str, Tensor], card: Card) -> None:
    """Raises ZooError for a head that is no plain sequence: between its layers there may be more than ReLUs."""
    others = [key for key in tensors if not re.fullmatch(r"\w+\.\d+\.\w+", key)]
    if others:
        source = str(card.training.get("source", "another code base")).partition(":")[0]
        raise ZooError(
            f"the head of {card.name}, from {source}, is no sequence of linear maps, batch norms and ReLUs but has "
            f"{others[0]}; it is kept as {HEAD}, but not built. Load the model without head=True"
        )


def layers_of(state: dict[str, Tensor], *, where: str) -> nn.Sequential:
    """The layers that `state` (`0.weight`, ...) is of: linear maps, batch norms, ReLU at the indices between."""
    found: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in state.items():
        index, _, name = key.partition(".")
        if not index.isdecimal():
            raise CorruptFile(f"{where}.{key} is no layer of a projector that this package trains")
        found[int(index)][name] = value
    layers = [_layer(found[index]) if index in found else nn.ReLU() for index in range(max(found) + 1)]
    network = nn.Sequential(*layers)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise CorruptFile(f"{where} is no projector that this package trains: {error}") from error
    return network.eval()


def _layer(tensors: dict[str, Tensor]) -> nn.Module:
    if "running_mean" not in tensors:
        outside, inside = tensors["weight"].shape
        return nn.Linear(inside, outside, bias="bias" in tensors)
    norm = nn.BatchNorm1d(len(tensors["running_mean"]), affine="weight" in tensors)
    if "weight" in tensors and "bias" not in tensors:
        norm.register_parameter("bias", None)
    return norm


def linear_classifier(encoder: nn.Module, dim: int, n_classes: int) -> nn.Sequential:
    """The encoder and a linear map that starts at zero: pixels (B, 3, S, S) in [0, 1] to logits (B, n_classes)."""
    head = nn.Linear(dim, n_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(encoder, head)
