"""A model by name, path or address, as an encoder."""

from pathlib import Path

import torch

from zoo.hub.resolve import locate
from zoo.hub.store import HEAD, read_card
from zoo.model.encoder import Encoder, open_encoder
from zoo.model.head import read_head


def load_encoder(
    model: str | Path, *, device: str | torch.device = "cpu", exact: bool = False, head: bool = False
) -> Encoder:
    """The encoder of a model in evaluation mode, fetched if needed, every file verified.

    Args:
        model: A name of the zoo, `NAME@VERSION`, the path of a model folder, or an address on the Hub.
        device: Where its tensors are placed.
        exact: Refuse the weights of a variant in place of the name's own.
        head: Load the projector, too, as `encoder.projector`, and the predictor where there is one.

    Raises:
        UnknownName, NoWeights, CorruptFile, Unreachable, AccessDenied: See `zoo.hub.resolve.locate`.
    """
    folder = locate(model, exact=exact, extras=(HEAD,) if head else ())
    card = read_card(folder)
    if card.is_plain_timm:
        from zoo.hub.plain_timm import timm_encoder

        encoder = timm_encoder(folder, card)
    else:
        encoder = open_encoder(folder, card)
    if head:
        for part, network in read_head(folder, card).items():
            setattr(encoder, part, network)
    return encoder.to(device)
