"""Any repository of timm's as an encoder: its network, its mean and std, its image size."""

from dataclasses import replace
from pathlib import Path

import timm

from zoo.errors import CorruptFile, ZooError
from zoo.hub.published import CONFIG, fingerprint
from zoo.hub.store import checked_weights
from zoo.model.card import Card
from zoo.model.encoder import Encoder


def timm_encoder(folder: Path, card: Card) -> Encoder:
    """The encoder in a fetched folder of plain timm, files verified, classifier dropped.

    Raises CorruptFile; ZooError if the timm that is installed cannot build it.
    """
    checked_weights(folder, card)
    if card.published is None or fingerprint(folder / CONFIG) not in card.published.files:
        raise CorruptFile(f"{folder / CONFIG} is not as it was fetched. Delete {folder} and load again")
    try:
        network = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    except Exception as error:  # timm has no class for what it does not know, and its networks raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ZooError(
            f"timm {timm.__version__} cannot open {card.name} ({reason}). Upgrade timm, or load another revision"
        ) from error
    encoder = Encoder(network, mean=card.mean, std=card.std, image_size=card.image_size, crop=card.crop)
    encoder.card = replace(card, dim=encoder.dim, parameters=sum(p.numel() for p in network.parameters()))
    return encoder.eval()
