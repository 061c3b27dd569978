"""A model by name, path or address, as an encoder."""

from pathlib import Path

import torch

from zoo.hub.resolve import locate
from zoo.hub.store import read_card
from zoo.model.encoder import Encoder, open_encoder


def load_encoder(model: str | Path, *, device: str | torch.device = "cpu", exact: bool = False) -> Encoder:
    """The encoder of a model in evaluation mode, fetched if needed, every file verified.

    Args:
        model: A name of the zoo, `NAME@VERSION`, the path of a model folder, or an address on the Hub.
        device: Where its tensors are placed.
        exact: Refuse the weights of a variant in place of the name's own.

    Raises:
        UnknownName, NoWeights, CorruptFile, Unreachable, AccessDenied: See `zoo.hub.resolve.locate`.
    """
    folder = locate(model, exact=exact)
    card = read_card(folder)
    if card.foreign:
        from zoo.hub.plain_timm import timm_encoder

        return timm_encoder(folder, card).to(device)
    return open_encoder(folder, card, device=device)
