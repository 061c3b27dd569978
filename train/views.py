"""Random views of every image: uint8 pixels in, float32 in [0, 1] out, a whole batch at once on the batch's device.

SimCLR (Chen et al. 2020, section 3, appendix A), MoCo v2 (Chen et al. 2020, section 3): random resized crop, jitter,
grey, blur, solarize (BYOL, Grill et al. 2020, appendix B), flip. Distributions are torchvision's. `draw` turns a
generator into parameters, on the CPU; `train.view_pixels` turns them and the pixels into views.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from train.view_pixels import FILTERS, NEUTRAL, Parameters, finish_crops, make_view
from zoo.errors import BadNumber

TRIES = 10  # crop boxes tried per view before the central one, as torchvision's RandomResizedCrop
BLOCK_PIXELS = 2**20  # 12 MiB of views; malloc maps tensors above 32 MiB anew each time, which takes half the speed


@dataclass(frozen=True)
class ViewPolicy:
    """The distribution of one view. The defaults are what the dual-temperature paper's code does on CIFAR."""

    crop_area: tuple[float, float] = (0.08, 1.0)  # least and most, share of the image's area, in (0, 1]
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # least and most width / height of the crop, > 0
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"  # both antialiased, as Pillow
    flip: float = 0.5  # probability, as are jitter, grey, blur and solarize
    jitter: float = 0.8  # probability of the next four, which then come in random order
    brightness: float = 0.4  # factor uniform in [max(0, 1 - this), 1 + this]; this >= 0
    contrast: float = 0.4  # as brightness
    saturation: float = 0.4  # as brightness
    hue: float = 0.1  # shift uniform in [-this, this] turns of the colour circle; this in [0, 0.5]
    grey: float = 0.2
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # least and most, pixels of the view, > 0
    solarize: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "jitter", "grey", "blur", "solarize"):
            value = getattr(self, name)
            _check(name, value, 0 <= value <= 1, "a probability in [0, 1]")
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            _check(name, value, 0 <= value < math.inf, "a finite number >= 0")
        _check("hue", self.hue, 0 <= self.hue <= 0.5, "turns in [0, 0.5]")
        for name, top in (("crop_area", 1), ("crop_ratio", 1000), ("blur_sigma", 1000)):
            pair = getattr(self, name)
            fine = len(pair) == 2 and 0 < pair[0] <= pair[1] <= top
            _check(name, pair, fine, f"(least, most) with 0 < least <= most <= {top}")
        _check("interpolation", self.interpolation, self.interpolation in FILTERS, " or ".join(FILTERS))


@final
class Views:
    """The views of a batch: a pure function of the images, the seed, the step and the row in the global batch.

    They are made in one pass where all policies interpolate, blur and resize alike, as those of the recipes here do.
    Two processes with 32 images each see what one with 64 sees, and a view does not depend on another one's policy.
    Autocast is off inside. TF32, where it is on, moves a pixel by half a grey level at most.
    """

    def __init__(
        self, *policies: ViewPolicy, seed: int, size: int = 0, sizes: Callable[[int], Sequence[int]] | None = None
    ) -> None:
        """policies: one for each view. size: side of all views, pixels. sizes: function from the step to the side of
        each view, in place of size."""
        if sizes is None:
            _check("size", size, size >= 1, "pixels >= 1")
        self.policies, self.seed = policies, seed
        self._sizes_at = sizes or (lambda step: [size] * len(policies))

    def __call__(
        self, images: Tensor | tuple[Tensor, ...], step: int, rank: int = 0, world: int = 1
    ) -> tuple[Tensor, ...]:
        """Views (B, 3, size, size) in [0, 1], one for each policy.

        Args:
            images: (B, 3, H, W) uint8, rows rank * B .. rank * B + B of the global batch; or the crops that `cut` has
                made of them, (B, 3, size, size) uint8 for each policy.
            step: Optimizer updates done before this batch.
            rank: This process.
            world: Number of processes.
        """
        sizes, cut = self._sizes_at(step), isinstance(images, tuple)
        each = images if isinstance(images, tuple) else (images,) * len(self.policies)
        for size, pixels in zip(sizes, each, strict=True):
            fine = pixels.dtype == torch.uint8 and pixels.numel() > 0 and pixels.shape[1] == 3 == pixels.ndim - 1
            fine = fine and (not cut or pixels.shape[2:] == (size, size))
            _check(
                "images", (tuple(pixels.shape), pixels.dtype), fine, "(B, 3, H, W) and torch.uint8, with B, H, W >= 1"
            )
        _check("rank", rank, 0 <= rank < world, f"0 .. world - 1, and world = {world}")
        drawn = [self._mine(index, pixels, step, rank, world) for index, pixels in enumerate(each)]
        with torch.autocast(each[0].device.type, enabled=False):
            if len({(self._how(index), size) for index, size in enumerate(sizes)}) > 1:
                parts = zip(range(len(each)), each, drawn, sizes, strict=True)
                return tuple(self._pass(index, pixels, mine, size, cut) for index, pixels, mine, size in parts)
            together = Parameters(*map(torch.cat, zip(*drawn, strict=True)))
            return self._pass(0, torch.cat(each), together, sizes[0], cut).chunk(len(each))

    def _mine(self, index: int, images: Tensor, step: int, rank: int, world: int) -> Parameters:
        """What was drawn for one view of the rows of this process."""
        n, (height, width) = len(images), images.shape[-2:]
        drawn = draw(self.policies[index], seeded(self.seed, step, index), n * world, height, width)
        return Parameters(*(column[rank * n : rank * n + n] for column in drawn))

    def _how(self, index: int) -> tuple[str, int]:
        """Interpolation and blur radius, pixels: what all rows of one pass have in common."""
        policy = self.policies[index]
        return policy.interpolation, math.ceil(3 * policy.blur_sigma[1])

    def _pass(self, index: int, images: Tensor, drawn: Parameters, size: int, cut: bool) -> Tensor:
        """The views of all rows of images. On a CPU in blocks, which changes no bit of them."""
        interpolation, radius = self._how(index)
        block = max(1, BLOCK_PIXELS // max(images.shape[-2] * images.shape[-1], size**2))
        if images.device.type != "cpu":
            block = len(images)
        found = []
        for rows, *columns in zip(images.split(block), *(column.split(block) for column in drawn), strict=True):
            mine = Parameters(*columns)
            if cut:
                found.append(finish_crops(rows, mine, blur_radius=radius))
            else:
                found.append(make_view(rows, mine, size=size, interpolation=interpolation, blur_radius=radius))
        return found[0] if len(found) == 1 else torch.cat(found)

    def cut(self, image: Image.Image, step: int, row: int, batch_size: int) -> list[np.ndarray]:
        """The crop (3, size, size) uint8 of each view of one RGB image, row `row` of the global batch.

        The boxes are those that the views of a tensor of that size have. Pillow cuts and resizes: its own rounding.
        """
        crops = []
        for index, (policy, size) in enumerate(zip(self.policies, self._sizes_at(step), strict=True)):
            tries, places = (u[row : row + 1] for u in _box_draws(self.seed, step, index, batch_size))
            ((top, left, height, width),) = _boxes(policy, tries, places, image.height, image.width).tolist()
            kind = Image.Resampling[policy.interpolation.upper()]
            crop = image.crop((left, top, left + width, top + height))  # resize(box=) would look beyond it
            crops.append(np.asarray(crop.resize((size, size), kind)).transpose(2, 0, 1))
        return crops


@lru_cache(maxsize=16)  # the readers of one batch ask for it once an image
def _box_draws(seed: int, step: int, index: int, n: int) -> tuple[Tensor, Tensor]:
    crop, place, *_ = _uniform(seeded(seed, step, index), n)
    return crop, place


def seeded(*key: int) -> torch.Generator:
    """A CPU generator for each key. The key is hashed, so that (1, 2) and (2, 1) have nothing in common."""
    digest = hashlib.blake2b(repr([int(part) for part in key]).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def draw(policy: ViewPolicy, generator: torch.Generator, n: int, height: int, width: int) -> Parameters:
    """The parameters of n views of (height, width) images. Every number is drawn whatever the policy says:
    switching one operation off leaves the others' draws as they were."""
    crop, place, jitter, order, factors, sigma, coins = _uniform(generator, n)
    box = _boxes(policy, crop, place, height, width)
    flip, grey, blur, solarize = (coins < crop.new_tensor([policy.flip, policy.grey, policy.blur, policy.solarize])).T
    neutral = crop.new_tensor(NEUTRAL)
    strength = crop.new_tensor([policy.brightness, policy.contrast, policy.saturation, policy.hue])
    least = torch.maximum(neutral - strength, crop.new_tensor([0.0, 0.0, 0.0, -0.5]))
    factors = torch.where(jitter < policy.jitter, least + factors * (neutral + strength - least), neutral).float()
    low, high = policy.blur_sigma
    sigma = (low + sigma[:, 0] * (high - low)).float()
    return Parameters(box, flip, factors, order.argsort(dim=1), grey, blur, sigma, solarize)


def _uniform(generator: torch.Generator, n: int) -> tuple[Tensor, ...]:
    """(n, 36) numbers in [0, 1), by what they decide: crop, place, jitter, order, factors, sigma, coins."""
    u = torch.rand(n, 2 * TRIES + 16, generator=generator, dtype=torch.float64)
    return u.split((2 * TRIES, 2, 1, 4, 4, 1, 4), dim=1)


def _boxes(policy: ViewPolicy, crop: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Crop boxes (n, 4) from uniform numbers, crop (n, 2 * TRIES) and place (n, 2).

    Area uniform, ratio log-uniform, the first try that fits the image, anywhere in it; else the largest central box of
    an allowed ratio (torchvision's RandomResizedCrop; Szegedy et al. 2015, section 6).
    """
    (small, large), (narrow, wide) = policy.crop_area, policy.crop_ratio
    area = height * width * (small + crop[:, :TRIES] * (large - small))  # (n, TRIES) pixels
    ratio = (math.log(narrow) + crop[:, TRIES:] * math.log(wide / narrow)).exp()  # (n, TRIES)
    tries = torch.stack(((area / ratio).sqrt(), (area * ratio).sqrt()), dim=2).round().long()  # (n, TRIES, 2)
    image = torch.tensor([height, width])
    fits = ((tries > 0) & (tries <= image)).all(dim=2)  # (n, TRIES)
    found = fits.any(dim=1, keepdim=True)
    first = tries[torch.arange(len(tries)), fits.int().argmax(dim=1)]
    largest = torch.tensor([min(height, round(width / narrow)), min(width, round(height * wide))]).clamp_min(1)
    sides = torch.where(found, first, largest)  # (n, 2)
    corner = torch.where(found, (place * (image - sides + 1)).long(), (image - sides) // 2)
    return torch.cat((corner, sides), dim=1)


def _check(name: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise BadNumber(f"{name} = {value!r}; allowed: {allowed}")
