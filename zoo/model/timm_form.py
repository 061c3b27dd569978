"""The weights as plain timm and transformers open them without this package, and back again, bit for bit.

timm's ResNets begin with a 7x7 convolution of stride 2 and a pool of stride 2; ours for small images begin with a 3x3
convolution of stride 1. On an image whose every pixel is repeated 4 x 4 times the first can compute the second:
pixel i lies at 4i..4i+3, and output 2i+1 of the 7x7 convolution has taps 0, 2, 5 on the pixels i-1, i, i+1. A 3x3
convolution of stride 2 in the pool's place, one at its last tap and zero elsewhere, keeps the outputs 2i+1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from zoo.errors import CorruptFile
from zoo.model.card import Card

Tensors = dict[str, np.ndarray]

REPEAT = 4  # times each pixel, in both directions
TAPS = [0, 2, 5]  # of the 7x7 kernel, where the 3x3 kernel goes
STEM = 64  # channels of timm's first convolution, whatever the stages have
EPS = 1e-5  # of batch normalisation
# A stage without blocks is the identity, so timm's four stages can be three.
RESNET20 = {"layers": [3, 3, 3, 0], "channels": [16, 32, 64, 64]}


def small_stem(card: Card) -> bool:
    """Whether the network begins with a 3x3 convolution of stride 1 and no pool."""
    return card.backbone_row.small_stem(card.image_size)


def stem_border(card: Card) -> int:
    """Pixels of zeros around the normalised image that the published network needs for a stem padded by 2."""
    return card.stem_padding - 1 if small_stem(card) else 0


def published_input(card: Card, pixels: np.ndarray) -> np.ndarray:
    """Pixels as the published network takes them: normalised and, for a small stem, with a border and repeated.

    Args:
        card: Whose mean, std and stem are meant.
        pixels: (B, S, S, 3) uint8, as `Encoder.pixels` gives them.

    Returns:
        (B, 3, S', S') float32.
    """
    mean, std = (np.array(values, np.float32) for values in (card.mean, card.std))
    x = ((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)
    border, repeat = stem_border(card), REPEAT if small_stem(card) else 1
    x = np.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))
    return np.ascontiguousarray(x.repeat(repeat, 2).repeat(repeat, 3))


def architecture(card: Card) -> tuple[str, dict[str, Any]]:
    """timm's name of the published network, and the arguments it needs."""
    row, stem = card.backbone_row, {"replace_stem_pool": True} if small_stem(card) else {}
    if row.architecture == "resnet20_cifar":
        return "resnet18", RESNET20 | stem
    return row.architecture, row.arguments(card.image_size) | stem


def timm_config(card: Card) -> dict[str, Any]:
    """`config.json`: the network, and every key of the preprocessing, since a missing one is a silent wrong answer.

    Never `model_args.num_classes`, which transformers passes a second time.
    """
    name, arguments = architecture(card)
    row, small = card.backbone_row, small_stem(card)
    border = stem_border(card)  # timm's transform fills it with the mean colour, rounded to 8 bits
    side = (card.image_size + 2 * border) * (REPEAT if small else 1)
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": card.dim,
        "global_pool": row.pool,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, side, side],
            "fixed_input_size": row.fixed_size,  # True makes timm hand img_size to the network; a ResNet refuses it
            "interpolation": "nearest" if small else "bicubic",
            "crop_pct": card.crop * (card.image_size + 2 * border) / card.image_size,
            "crop_mode": "border" if border else "center",
            "mean": list(card.mean),
            "std": list(card.std),
            "num_classes": 0,
            "first_conv": row.first_conv,
            "classifier": row.classifier,
            "license": card.licence.lower() or "apache-2.0",
        },
    }


def to_timm(card: Card, native: Mapping[str, np.ndarray]) -> Tensors:
    """timm's tensors of the encoder's own: `backbone.conv1.weight` becomes `conv1.weight`, a small stem a large one."""
    tensors = {key.removeprefix("backbone."): value for key, value in native.items() if key.startswith("backbone.")}
    if not small_stem(card):
        return tensors
    if card.backbone_row.architecture == "resnet20_cifar":
        tensors = _resnet20_to_timm(tensors)
    tensors["conv1.weight"] = _seven(tensors["conv1.weight"])
    last_tap = np.zeros((STEM, STEM, 3, 3), np.float32)
    last_tap[:, :, 2, 2] = np.eye(STEM)
    return tensors | {"maxpool.0.weight": last_tap} | _no_norm("maxpool.1", STEM)


def from_timm(card: Card, published: Mapping[str, np.ndarray]) -> Tensors:
    """The encoder's own tensors, mean and std among them: the inverse of `to_timm`.

    Raises CorruptFile if `to_timm` cannot have made them, as after a fine-tuning of the published form.
    """
    tensors = dict(published)
    try:
        if small_stem(card):
            tensors = {key: value for key, value in tensors.items() if not key.startswith("maxpool.")}
            tensors["conv1.weight"] = np.ascontiguousarray(tensors["conv1.weight"][:, :, TAPS][:, :, :, TAPS])
            if card.backbone_row.architecture == "resnet20_cifar":
                tensors = _resnet20_from_timm(tensors)
        native = {f"backbone.{key}": value for key, value in tensors.items()}
        native["mean"], native["std"] = (np.array(v, np.float32).reshape(3, 1, 1) for v in (card.mean, card.std))
        again = to_timm(card, native)
        if again.keys() != published.keys() or not all(np.array_equal(again[key], published[key]) for key in again):
            raise ValueError("the stem is not a re-parameterised one; was the published form fine-tuned?")
    except (KeyError, IndexError, ValueError) as error:
        raise CorruptFile(f"these are not published weights of {card.name}: {error}. Fetch them again") from error
    return native


def _seven(three: np.ndarray) -> np.ndarray:
    """(C, 3, 3, 3) -> (C, 3, 7, 7): the kernel at the taps that see the pixels i-1, i, i+1."""
    seven = np.zeros((*three.shape[:2], 7, 7), three.dtype)
    seven[np.ix_(range(len(three)), range(three.shape[1]), TAPS, TAPS)] = three
    return seven


def _no_norm(name: str, channels: int) -> Tensors:
    """A batch normalisation that in evaluation mode changes nothing: variance + eps = 1."""
    return {
        f"{name}.weight": np.ones(channels, np.float32),
        f"{name}.bias": np.zeros(channels, np.float32),
        f"{name}.running_mean": np.zeros(channels, np.float32),
        f"{name}.running_var": np.full(channels, 1 - EPS, np.float32),
        f"{name}.num_batches_tracked": np.array(0, np.int64),
    }


def _resnet20_to_timm(tensors: Tensors) -> Tensors:
    """16 stem channels become 64, of which 48 are silent; shortcuts without parameters become 1x1 convolutions."""
    new = dict(tensors)
    for key, axis in (("conv1.weight", 0), ("layer1.0.conv1.weight", 1)):
        new[key] = _widened(tensors[key], axis, 0)
    for part, fill in (("weight", 0), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
        new[f"bn1.{part}"] = _widened(tensors[f"bn1.{part}"], 0, fill)
    for stage, inside, outside, first in ((1, STEM, 16, 0), (2, 16, 32, 8), (3, 32, 64, 16)):
        kept = min(inside, outside)  # option A: channel c goes to c + first, the others are zero
        choice = np.zeros((outside, inside, 1, 1), np.float32)
        choice[first + np.arange(kept), np.arange(kept)] = 1
        name = f"layer{stage}.0.downsample"
        new |= {f"{name}.0.weight": choice} | _no_norm(f"{name}.1", outside)
    return new


def _resnet20_from_timm(tensors: Tensors) -> Tensors:
    new = {key: value for key, value in tensors.items() if ".downsample." not in key}
    for key in ("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"):
        new[key] = new[key][:16]
    new["layer1.0.conv1.weight"] = np.ascontiguousarray(new["layer1.0.conv1.weight"][:, :16])
    return new


def _widened(values: np.ndarray, axis: int, fill: float) -> np.ndarray:
    """`values` with STEM entries along `axis`, the new ones `fill`."""
    wide = np.full([STEM if i == axis else n for i, n in enumerate(values.shape)], fill, values.dtype)
    wide[tuple(slice(n) for n in values.shape)] = values
    return wide
