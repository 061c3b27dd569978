"""The encoder: the only thing that travels. train makes it, zoo keeps it, eval measures it, serve answers with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import timm
import torch
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
from zoo.model.head import linear_classifier
from zoo.model.layers import feature_maps, patch_tokens, resize_backbone
from zoo.model.pictures import Pictures, as_pictures, autocast, batches_of, progress
from zoo.model.tensors import disk_errors
from zoo.names import parse_name

if TYPE_CHECKING:
    from zoo.model.transforms import Preprocessing


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
        return self.backbone(self._normalized(x))

    def _normalized(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise ValueError(
                f"expected float pixels (B, 3, H, W) in [0, 1], got {x.dtype} {tuple(x.shape)}; pictures go to embed()"
            )
        return ((x - self.mean) / self.std).to(self.dtype)

    def features(self, x: Tensor, layers: int | Sequence[int]) -> list[Tensor]:
        """Feature maps of intermediate layers; differentiable.

        Args:
            x: As for `forward`.
            layers: Indices of stages (ResNets, 0 is the stem; Swin) or blocks (ViT), negative ones from the end; a
                number n alone means the last n.

        Returns:
            One (B, C, h, w) for each layer, in the order of the network.
        """
        return feature_maps(self.backbone, self._normalized(x), layers)

    def patch_tokens(self, x: Tensor) -> Tensor:
        """A transformer's last tokens (B, N, C) of the patches, without the class token. x: as for `forward`."""
        return patch_tokens(self.backbone, self._normalized(x))

    def classifier(self, n_classes: int) -> nn.Sequential:
        """This encoder, set to training mode, and a linear head that starts at zero: logits (B, n_classes)."""
        return linear_classifier(self.train(), self.dim, n_classes)

    def at(self, image_size: int) -> "Encoder":
        """A copy for images of another size; a transformer's positions are interpolated.

        Raises:
            BadNumber: The backbone cannot take that size.
        """
        other = deepcopy(self)
        resize_backbone(other.backbone, image_size)
        other.image_size = image_size
        return other

    @property
    def transform(self) -> "Preprocessing":
        """The preprocessing of `embed` as a torchvision transform; `transform(train=True)` is one for fine-tuning."""
        from zoo.model.transforms import Preprocessing  # late: torchvision takes as long to import as torch

        return Preprocessing(image_size=self.image_size, crop=self.crop)

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which the backbone computes: float32, or what `.half()`, `.bfloat16()` and the like made it."""
        return next((p.dtype for p in self.backbone.parameters() if p.is_floating_point()), self.mean.dtype)

    @property
    def dim(self) -> int:
        """Length of an embedding, D."""
        dim = getattr(self.backbone, "head_hidden_size", None) or self.backbone.num_features  # as timm has it
        return int(dim)  # type: ignore[arg-type]

    def embed(
        self,
        pictures: Pictures,
        *,
        normalize: bool = False,
        batch_size: int = 64,
        precision: torch.dtype | None = None,
    ) -> np.ndarray:
        """Embed pictures of any size and mode; a progress bar appears on a terminal when it takes long.

        Args:
            pictures: Paths, encoded bytes, PIL images or uint8 arrays, in a list, an array or any iterable; a folder,
                whose images are taken in the order of their paths; a tensor (n, C, H, W), uint8 pictures or float32
                pixels in [0, 1].
            normalize: Scale every row to unit L2 norm.
            batch_size: Pictures at a time.
            precision: Compute in it by autocast, such as torch.bfloat16 on a GPU; by default the encoder's own.

        Returns:
            (n, D) float32.

        Raises:
            BadImage, FileNotFoundError: A picture cannot be read.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}; at least 1 picture is needed in a batch")
        several = as_pictures(pictures)
        rows = [np.zeros((0, self.dim), np.float32)]
        with autocast(self.mean.device, precision):
            for batch in progress(batches_of(several, batch_size), several, batch_size):
                rows.append(self.embed_pixels(np.stack([self.pixels(picture) for picture in batch])))
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


def untrained_encoder(card: Card) -> Encoder:
    """The encoder that `card` describes, randomly initialized."""
    backbone = build_network(card.backbone_row, image_size=card.image_size, stem_padding=card.stem_padding)
    return Encoder(backbone, mean=card.mean, std=card.std, image_size=card.image_size, crop=card.crop, card=card)


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
            encoder = untrained_encoder(card)
        encoder.load_state_dict(tensors, assign=True)
        if any(buffer.is_meta for buffer in encoder.buffers()):  # tables that are in no weights file, as of Swin
            encoder = untrained_encoder(card)
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
