"""The encoder: the only thing that travels. train makes it, zoo keeps it, eval measures it, serve answers with it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import zoo.resnet
from zoo.backbone import SMALL_IMAGE, backbone_row
from zoo.card import Card, Weights
from zoo.dataset import dataset_row
from zoo.errors import CorruptFile
from zoo.files import new_file, sha256, write_bytes
from zoo.names import parse_name
from zoo.pixels import Picture, preprocess
from zoo.store import CARD, WEIGHTS, checked_weights, locate, read_card


def build_backbone(name: str, *, image_size: int) -> nn.Module:
    """A fresh network (B, 3, H, W) -> (B, D) of the row `name`; ResNets get the CIFAR stem below 64 px."""
    row = backbone_row(name)
    if not row.cifar_stem:
        return timm.create_model(row.architecture, num_classes=0)
    network = timm.create_model(row.architecture, num_classes=0, zero_init_last=False)  # as torchvision's default
    return zoo.resnet.cifar_stem(network) if image_size < SMALL_IMAGE else network


class Encoder(nn.Module):
    """Normalisation, backbone and pooling: pixels in [0, 1] in, features out.

    mean, std: of RGB in [0, 1]; they are buffers, so the weights file holds them.
    card: what is known about the weights; None for an encoder in training.
    """

    mean: Tensor  # (3, 1, 1)
    std: Tensor  # (3, 1, 1)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int,
        crop: float = 1.0,
        card: Card | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.image_size = image_size
        self.crop = crop
        self.card = card
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, 3, H, W) in [0, 1], any H and W the backbone takes -> features (B, D). Differentiable."""
        if x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise ValueError(
                f"expected float pixels (B, 3, H, W) in [0, 1], got {x.dtype} {tuple(x.shape)}; pictures go to embed()"
            )
        return self.backbone((x - self.mean) / self.std)

    @property
    def dim(self) -> int:
        """Length of an embedding, D."""
        return int(self.backbone.num_features)  # type: ignore[arg-type]  # every timm model has it

    def embed(self, pictures: Sequence[Picture], *, normalize: bool = False, batch_size: int = 64) -> np.ndarray:
        """(n, D) float32 embeddings of pictures of any size and mode: paths, bytes, PIL images, uint8 arrays.

        normalize: scale every row to unit L2 norm.
        Raises BadImage and its kinds, FileNotFoundError.
        """
        if isinstance(pictures, str | bytes | Path):
            raise TypeError(
                f"embed takes a list of pictures; got one {type(pictures).__name__}. Write embed([picture])"
            )
        rows = [np.zeros((0, self.dim), np.float32)]
        for start in range(0, len(pictures), batch_size):
            chunk = pictures[start : start + batch_size]
            pixels = [preprocess(picture, image_size=self.image_size, crop=self.crop) for picture in chunk]
            rows.append(self.embed_pixels(np.stack(pixels)))
        features = np.concatenate(rows)
        return l2_normalize(features) if normalize else features

    @torch.inference_mode()
    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, D) float32, in evaluation mode whatever the current mode is."""
        was_training = self.training
        self.eval()
        x = torch.from_numpy(np.array(pixels)).to(self.mean.device).permute(0, 3, 1, 2)
        features = self((x / 255).contiguous())
        self.train(was_training)
        return features.float().cpu().numpy()


def l2_normalize(features: np.ndarray) -> np.ndarray:
    """Rows of unit L2 norm; a zero row stays zero."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def new_encoder(name: str) -> Encoder:
    """A randomly initialised encoder for the model `name`, from the backbone's and the data set's rows."""
    parts = parse_name(name)
    row = dataset_row(parts.dataset)
    backbone = build_backbone(parts.backbone, image_size=row.image_size)
    return Encoder(backbone, mean=row.mean, std=row.std, image_size=row.image_size)


def save_encoder(encoder: Encoder, folder: Path, card: Card) -> Card:
    """Write `model.safetensors`, then `card.json`, into `folder`. Returns the card with the weights' hash.

    Each file appears whole or not at all; a kill between the two is found by `load_encoder`.
    """
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in encoder.state_dict().items()}
    with new_file(folder / WEIGHTS) as aside:
        save_file(tensors, aside, metadata={"format": "pt"})
        size, digest = aside.stat().st_size, sha256(aside)
    card = replace(card, weights=Weights(file=WEIGHTS, sha256=digest, bytes=size))
    write_bytes(folder / CARD, card.to_json().encode())
    return card


def load_encoder(name_or_path: str | Path, *, device: str | torch.device = "cpu") -> Encoder:
    """The encoder of a kept model or a run folder, verified, in evaluation mode.

    Raises UnknownName, NoWeights, CorruptFile.
    """
    folder = locate(name_or_path)
    card = read_card(folder)
    path = checked_weights(folder, card)
    try:
        tensors = load_file(path)
        encoder = new_encoder(card.name)
        encoder.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"{path} does not hold the weights of {card.name}: {error}") from error
    encoder.card, encoder.crop = card, card.crop
    return encoder.to(device).eval()
