"""Any repository of timm's as an encoder: its network, its mean and std, its image size."""

from dataclasses import replace
from pathlib import Path

import timm

from zoo.card import Card
from zoo.encoder import Encoder
from zoo.errors import CorruptFile
from zoo.release import CONFIG, fingerprint
from zoo.store import checked_weights


def timm_encoder(folder: Path, card: Card) -> Encoder:
    """The encoder in a fetched folder of plain timm, files verified, classifier dropped. Raises CorruptFile."""
    checked_weights(folder, card)
    if card.published is None or fingerprint(folder / CONFIG) not in card.published.files:
        raise CorruptFile(f"{folder / CONFIG} is not as it was fetched. Delete {folder} and load again")
    network = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    encoder = Encoder(network, mean=card.mean, std=card.std, image_size=card.image_size, crop=card.crop)
    encoder.card = replace(card, dim=encoder.dim, parameters=sum(p.numel() for p in network.parameters()))
    return encoder.eval()
