"""A tiny real encoder in a run folder, and pictures of every kind."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from zoo.model.card import Card
from zoo.model.encoder import Encoder, new_encoder, save_encoder

NAME = "simco-r20-digits"
OTHER = "simclr-r20-digits"


def make_run(folder: Path, *, seed: int, name: str = NAME) -> Path:
    """A run folder with a random encoder whose BatchNorms are no identities: an export could lose them."""
    torch.manual_seed(seed)
    encoder = new_encoder(name)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    save_encoder(encoder, folder, card_of(encoder, name))
    return folder


def card_of(encoder: Encoder, name: str = NAME) -> Card:
    mean, std = (tuple(values.flatten().tolist()) for values in (encoder.mean, encoder.std))
    return Card(
        name=name,
        paper="Zhang et al. 2022",
        image_size=encoder.image_size,
        mean=mean,
        std=std,
        dim=encoder.dim,
        expects="none published",
    )


def noise(height: int, width: int, channels: int, *, seed: int = 0) -> np.ndarray:
    """(height, width, channels) uint8 with large and small structure."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, channels), np.uint8).squeeze())
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).reshape(height, width, channels)
    return np.clip(smooth + rng.integers(-30, 31, smooth.shape), 0, 255).astype(np.uint8)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(seed: int = 0, *, height: int = 9, width: int = 12) -> bytes:
    return encode(Image.fromarray(noise(height, width, 3, seed=seed)), "PNG")


def pictures() -> dict[str, bytes]:
    """One file of every kind that has a way of being decoded wrongly."""
    rgb = Image.fromarray(noise(21, 30, 3, seed=1))
    rotated = Image.Exif()
    rotated[0x0112] = 6  # orientation: turn by 90 degrees
    deep = Image.fromarray(noise(15, 11, 1, seed=2).squeeze().astype(np.uint16) * 257)
    return {
        "rgb.png": encode(rgb, "PNG"),
        "exact size.png": encode(Image.fromarray(noise(8, 8, 3, seed=3)), "PNG"),
        "grey.png": encode(rgb.convert("L"), "PNG"),
        "palette.png": encode(rgb.quantize(17), "PNG"),
        "palette with a hole.png": encode(rgb.quantize(17), "PNG", transparency=3),
        "rgba.png": encode(Image.fromarray(noise(21, 30, 4, seed=4)), "PNG"),
        "16 bit.png": encode(deep, "PNG"),
        "one bit.png": encode(rgb.convert("1"), "PNG"),
        "turned.jpg": encode(rgb, "JPEG", exif=rotated),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG"),
        "lossy.webp": encode(rgb, "WEBP"),
        "один 像素 🙂.png": encode(rgb.crop((0, 0, 1, 1)), "PNG"),
    }


def gap(found: Any, expected: np.ndarray) -> float:
    """Largest difference over largest value; infinite for another shape."""
    found = np.asarray(found)
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())
