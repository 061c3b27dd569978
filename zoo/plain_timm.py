"""Any repository of timm's as an encoder: its network, its mean and std, its image size."""

import json
from pathlib import Path
from typing import Any

import timm

from zoo.card import Weights
from zoo.encoder import Encoder
from zoo.errors import CorruptFile, ZooError
from zoo.release import PIN, fingerprint, read_config

OURS = {"interpolation": "bicubic", "crop_mode": "center"}  # of `zoo.pixels`; another would be another embedding


def timm_encoder(folder: Path) -> Encoder:
    """The encoder in a fetched folder of plain timm, files verified, classifier dropped.

    Raises CorruptFile; ZooError if the network was trained with a preprocessing that this package does not do.
    """
    for pin in json.loads((folder / PIN).read_bytes()):
        if fingerprint(folder / pin["file"]) != Weights(**pin):
            raise CorruptFile(f"{folder / pin['file']} is not as it was fetched. Delete {folder} and load again")
    settings: dict[str, Any] = read_config(folder).get("pretrained_cfg", {})
    channels, height, width = settings["input_size"]
    wanted = {key: settings.get(key, value) for key, value in OURS.items()}
    if wanted != OURS or channels != 3 or height != width:
        raise ZooError(
            f"{folder.parent.name} wants {wanted}, input {settings['input_size']}; zoo.load only does {OURS} on square "
            "RGB images. Use timm.create_model with timm's own transform"
        )
    network = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    return Encoder(
        network, mean=settings["mean"], std=settings["std"], image_size=height, crop=settings["crop_pct"]
    ).eval()
