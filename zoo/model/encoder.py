"""The encoder: the only thing that travels. train makes it, zoo keeps it, eval measures it, serve answers with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm
import torch
from PIL.Image import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models.resnet import ResNet
from torch import Tensor, nn

import zoo.model.resnet
from zoo.errors import CorruptFile, ZooError
from zoo.files import locked, new_file, sha256, write_bytes
from zoo.hub.store import CARD, GOLDEN, HEAD, WEIGHTS, checked_weights
from zoo.images.dataset import dataset_row
from zoo.images.pixels import Picture, preprocess
from zoo.model.backbone import Backbone, backbone_row
from zoo.model.card import Card, Weights
from zoo.model.embedding import unit_rows
from zoo.model.tensors import disk_errors
from zoo.names import parse_name


def build_network(row: Backbone, *, image_size: int, stem_padding: int = 1) -> nn.Module:
    """Build the randomly initialised network of a backbone's row.

    Args:
        row: The backbone. ResNets get the CIFAR stem for images below 64 px.
        image_size: Side of the images in pixels; transformers take images of this size alone.
        stem_padding: Padding of the CIFAR stem in pixels; see `zoo.model.resnet.cifar_stem`.

    Returns:
        A module from pixels (B, 3, H, W) to features (B, D).

    Raises:
        BadNumber: The backbone does not take images of that size.
    """
    network = timm.create_model(row.architecture, num_classes=0, **row.initial, **row.arguments(image_size))
    if isinstance(network, ResNet) and row.small_stem(image_size):
        return zoo.model.resnet.cifar_stem(network, padding=stem_padding)
    return network


def build_backbone(name: str, *, image_size: int) -> nn.Module:
    """Build the randomly initialised network of the backbone called `name`; see `build_network`."""
    return build_network(backbone_row(name), image_size=image_size)


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
        """Compute features; differentiable.

        Args:
            x: (B, 3, H, W) in [0, 1], any H and W that the backbone takes. Converted to the backbone's precision.

        Returns:
            (B, D) in the backbone's precision.
        """
        if x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise ValueError(
                f"expected float pixels (B, 3, H, W) in [0, 1], got {x.dtype} {tuple(x.shape)}; pictures go to embed()"
            )
        return self.backbone(((x - self.mean) / self.std).to(self.dtype))

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which the backbone computes: float32, or what `.half()`, `.bfloat16()` and the like made it."""
        return next((p.dtype for p in self.backbone.parameters() if p.is_floating_point()), self.mean.dtype)

    @property
    def dim(self) -> int:
        """Length of an embedding, D."""
        dim = getattr(self.backbone, "head_hidden_size", None) or self.backbone.num_features  # as timm has it
        return int(dim)  # type: ignore[arg-type]

    def embed(self, pictures: Sequence[Picture], *, normalize: bool = False, batch_size: int = 64) -> np.ndarray:
        """(n, D) float32 embeddings of pictures of any size and mode: paths, bytes, PIL images, uint8 arrays.

        normalize: scale every row to unit L2 norm.
        Raises BadImage and its kinds, FileNotFoundError.
        """
        if isinstance(pictures, str | bytes | Path | Image) or (isinstance(pictures, np.ndarray) and pictures.ndim < 4):
            raise TypeError(
                f"embed takes a list of pictures; got one {type(pictures).__name__}. Write embed([picture])"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}; at least 1 picture is needed in a batch")
        rows = [np.zeros((0, self.dim), np.float32)]
        for start in range(0, len(pictures), batch_size):
            pixels = [self.pixels(picture) for picture in pictures[start : start + batch_size]]
            rows.append(self.embed_pixels(np.stack(pixels)))
        features = np.concatenate(rows)
        return unit_rows(features) if normalize else features

    def pixels(self, picture: Picture) -> np.ndarray:
        """(S, S, 3) uint8: a picture brought to this encoder's image size."""
        return preprocess(picture, image_size=self.image_size, crop=self.crop)

    @torch.inference_mode()
    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, H, W, 3) uint8 -> (B, D) float32, in evaluation mode whatever the current mode is."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3:
            raise ValueError(f"expected uint8 pixels (B, H, W, 3), got {pixels.dtype} {pixels.shape}")
        x = torch.from_numpy(np.array(pixels)).to(self.mean.device).permute(0, 3, 1, 2)
        with _evaluating(self):
            features = self((x / 255).contiguous())
        return np.ascontiguousarray(features.float().cpu().numpy())  # the class token of a ViT is a strided view


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode for the block; afterwards each module is in the mode it was in, frozen ones too."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def new_encoder(name: str) -> Encoder:
    """A randomly initialised encoder for the model `name`, from the backbone's and the data set's rows."""
    parts = parse_name(name)
    row = dataset_row(parts.dataset)
    backbone = build_backbone(parts.backbone, image_size=row.image_size)
    return Encoder(backbone, mean=row.mean, std=row.std, image_size=row.image_size)


def save_encoder(encoder: Encoder, folder: Path, card: Card) -> Card:
    """Write `model.safetensors`, then `card.json`, into `folder`. Returns the card with the weights' hash.

    Each file appears whole or not at all; a kill between the two is found by `open_encoder`.
    """
    wrong = _disagreements(encoder, card)
    if wrong:
        raise ValueError(f"the card of {card.name} says something else than the encoder in: {', '.join(wrong)}")
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in encoder.state_dict().items()}
    broken = [key for key, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise ZooError(f"{broken[0]} of {card.name} is not finite; the weights in {folder}, if any, stay as they were")
    with locked(folder):  # an evaluation that writes into the card waits, or comes first
        with new_file(folder / WEIGHTS) as aside:
            with disk_errors():
                save_file(tensors, aside, metadata={"format": "pt"})
            weights = Weights(file=WEIGHTS, sha256=sha256(aside), bytes=aside.stat().st_size)
            card = replace(card, weights=weights, parameters=sum(p.numel() for p in encoder.parameters()))
            text = card.to_json()  # raises before the weights replace earlier ones
        write_bytes(folder / CARD, text.encode())
        (folder / GOLDEN).unlink(missing_ok=True)  # the embeddings of earlier weights
    return card


def save_head(method: nn.Module, folder: Path, card: Card) -> None:
    """Write `head.safetensors`: the projector and, where there is one, the predictor that `card`'s weights had."""
    parts = [name for name, _ in method.named_children() if name in ("projector", "predictor")]
    state = {f"{part}.{key}": value for part in parts for key, value in getattr(method, part).state_dict().items()}
    write_head(state, folder, card)


def write_head(head: Mapping[str, Tensor], folder: Path, card: Card) -> None:
    """Write `head.safetensors`, marked as that of `card`'s weights; nothing for an empty head."""
    if head and card.weights:
        tensors = {key: value.detach().cpu().contiguous().clone() for key, value in head.items()}
        with new_file(folder / HEAD) as aside, disk_errors():
            save_file(tensors, aside, metadata={"format": "pt", "weights_sha256": card.weights.sha256})


def _disagreements(encoder: Encoder, card: Card) -> list[str]:
    """Entries of the card that say something else than the encoder itself."""
    same = {
        "mean": encoder.mean.flatten().tolist() == torch.tensor(card.mean).tolist(),
        "std": encoder.std.flatten().tolist() == torch.tensor(card.std).tolist(),
        "image_size": encoder.image_size == card.image_size,
        "crop": encoder.crop == card.crop,
        "dim": encoder.dim == card.dim,
    }
    return [entry for entry, agrees in same.items() if not agrees]


def _empty(card: Card) -> Encoder:
    """The encoder of `card` without its weights."""
    backbone = build_network(card.backbone_row, image_size=card.image_size, stem_padding=card.stem_padding)
    return Encoder(backbone, mean=card.mean, std=card.std, image_size=card.image_size, crop=card.crop, card=card)


def open_encoder(folder: Path, card: Card, *, device: str | torch.device = "cpu") -> Encoder:
    """The encoder of a model folder, its weights verified against `card`, in evaluation mode.

    Raises:
        NoWeights: The weights file is missing.
        CorruptFile: It is damaged, or is not what the card describes.
    """
    path = checked_weights(folder, card)
    try:
        tensors = {key: v.float() if v.is_floating_point() else v for key, v in load_file(path).items()}
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
            encoder = _empty(card)
        encoder.load_state_dict(tensors, assign=True)
        if any(buffer.is_meta for buffer in encoder.buffers()):  # tables that are in no weights file, as of Swin
            encoder = _empty(card)
            encoder.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"{path} does not hold the weights of {card.name}: {error}") from error
    wrong = _disagreements(encoder, card)
    if wrong:
        raise CorruptFile(f"{folder / CARD} says something else than {path.name} in: {', '.join(wrong)}")
    return encoder.to(device).eval()


def accelerator_name(device: str | torch.device) -> str:
    """What `zoo.provenance.hardware` should call the device: the GPU's name, or "" for a CPU."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else ""
