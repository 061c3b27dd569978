"""Two random views of every image: uint8 pixels in, float32 in [0, 1] out, a whole batch at once on the batch's device.

SimCLR (Chen et al. 2020, section 3, appendix A), MoCo v2 (Chen et al. 2020, section 3): random resized crop, jitter,
grey, blur, solarize (BYOL, Grill et al. 2020, appendix B), flip. Definitions and distributions are torchvision's on
float tensors. `draw` turns a generator into parameters, on the CPU; all else turns pixels and parameters into pixels.
Which rows an operation touches is settled on the CPU, so nothing waits for CUDA.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from zoo.errors import BadNumber

TRIES = 10  # crop boxes tried per view before the central one, as torchvision's RandomResizedCrop
NEUTRAL = (1.0, 1.0, 1.0, 0.0)  # the brightness, contrast, saturation and hue that change nothing
SOLARIZE_THRESHOLD = 128 / 255  # pixels from here on are inverted


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


class Parameters(NamedTuple):
    """What was drawn for n views, a row each; CPU tensors."""

    box: Tensor  # (n, 4) int64: top, left, height, width in pixels of the image
    flip: Tensor  # (n,) bool
    factors: Tensor  # (n, 4) float32: brightness, contrast, saturation, hue; NEUTRAL where there is no jitter
    order: Tensor  # (n, 4) int64: the columns of `factors`, first to last
    grey: Tensor  # (n,) bool
    blur: Tensor  # (n,) bool
    sigma: Tensor  # (n,) float32, pixels of the view
    solarize: Tensor  # (n,) bool


@final
class Views:
    """Both views of a batch: a pure function of the images, the seed, the step and the row in the global batch.

    They are made in one pass over 2B rows where the policies interpolate and blur alike, as all recipes' do.
    Two processes with 32 images each see what one with 64 sees, and a view does not depend on the other one's policy.
    Autocast is off inside. TF32, where it is on, moves a pixel by half a grey level at most.
    size: side of the views in pixels, or a function from the step to it.
    """

    def __init__(
        self, policy1: ViewPolicy, policy2: ViewPolicy, *, size: int | Callable[[int], int], seed: int
    ) -> None:
        if not callable(size):
            _check("size", size, size >= 1, "pixels >= 1")
        self.policies, self.seed = (policy1, policy2), seed
        self._size_at = size if callable(size) else lambda step: size

    def __call__(self, images: Tensor, step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) uint8, rows rank * B .. rank * B + B of the global batch -> two (B, 3, size, size) in [0, 1].

        (B, 2, 3, size, size) are two crops of every image that `cut` has made already.
        """
        size = self._size_at(step)
        cut = images.ndim == 5 and images.shape[1:] == (2, 3, size, size)
        fine = images.dtype == torch.uint8 and images.numel() > 0 and (cut or images.shape[1] == 3 == images.ndim - 1)
        _check("images", (tuple(images.shape), images.dtype), fine, "(B, 3, H, W) and torch.uint8, with B, H, W >= 1")
        _check("rank", rank, 0 <= rank < world, f"0 .. world - 1, and world = {world}")
        pair = images.unbind(dim=1) if cut else (images, images)
        drawn = [self._mine(index, images, step, rank, world) for index in (0, 1)]
        with torch.autocast(images.device.type, enabled=False):
            if self._how(0) != self._how(1):
                return self._pass(0, pair[0], drawn[0], size, cut), self._pass(1, pair[1], drawn[1], size, cut)
            both = Parameters(*map(torch.cat, zip(*drawn, strict=True)))
            view1, view2 = self._pass(0, torch.cat(pair), both, size, cut).chunk(2)
            return view1, view2

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
        interpolation, radius = self._how(index)
        if cut:
            there = drawn.flip.to(images.device, non_blocking=True)[:, None, None, None]
            x = images.float().div_(255)
            return recolour(torch.where(there, x.flip(3), x), drawn, blur_radius=radius)
        return make_view(images, drawn, size=size, interpolation=interpolation, blur_radius=radius)

    def cut(self, image: Image.Image, step: int, row: int, batch_size: int) -> np.ndarray:
        """(2, 3, size, size) uint8: the crops of both views of one RGB image, row `row` of the global batch.

        The boxes are those that the views of a tensor of that size have. Pillow cuts and resizes: its own rounding.
        """
        crops, size = [], self._size_at(step)
        for index, policy in enumerate(self.policies):
            tries, places = (u[row : row + 1] for u in _box_draws(self.seed, step, index, batch_size))
            ((top, left, height, width),) = _boxes(policy, tries, places, image.height, image.width).tolist()
            kind = Image.Resampling[policy.interpolation.upper()]
            crop = image.crop((left, top, left + width, top + height))  # resize(box=) would look beyond it
            crops.append(np.asarray(crop.resize((size, size), kind)).transpose(2, 0, 1))
        return np.stack(crops)


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


def make_view(images: Tensor, drawn: Parameters, *, size: int, interpolation: str, blur_radius: int) -> Tensor:
    """(B, 3, H, W) uint8 and B drawn rows -> (B, 3, size, size) in [0, 1]: crop and flip (the flip commutes with the
    rest), jitter, grey, blur, solarize: MoCo v2's order."""
    x = resized_crop(images, drawn.box, drawn.flip, size=size, interpolation=interpolation)
    return recolour(x, drawn, blur_radius=blur_radius)


def recolour(x: Tensor, drawn: Parameters, *, blur_radius: int) -> Tensor:
    """Jitter, grey, blur and solarize of (B, 3, S, S) in [0, 1], in place, with B drawn rows."""
    for columns in drawn.order.T:
        for column, change in enumerate((brightness, contrast, saturation, hue)):
            factor = drawn.factors[:, column]
            _on_rows(x, (columns == column) & (factor != NEUTRAL[column]), change, factor)
    _on_rows(x, drawn.grey, lambda rows: grey(rows).expand_as(rows))
    _on_rows(x, drawn.blur, lambda rows, sigma: blur(rows, sigma, radius=blur_radius), drawn.sigma)
    _on_rows(x, drawn.solarize, solarize)
    return x


def _on_rows(x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *arguments: Tensor) -> None:
    """Change the chosen rows of x in place; chosen (B,) bool and the arguments (B,) lie on the CPU."""
    rows = chosen.nonzero()[:, 0]
    if len(rows):
        there = rows.to(x.device, non_blocking=True)
        values = [argument[rows].to(x.device, non_blocking=True) for argument in arguments]
        x.index_copy_(0, there, change(x.index_select(0, there), *values))


def resized_crop(images: Tensor, box: Tensor, flip: Tensor, *, size: int, interpolation: str) -> Tensor:
    """The boxes of (B, 3, H, W) uint8 images, resized with antialiasing and flipped: (B, 3, size, size) in [0, 1]."""
    top, left, height, width = box.to(images.device, torch.float32, non_blocking=True)[:, :, None, None].unbind(dim=1)
    rows = _resize_matrix(top, height, images.shape[2], size, interpolation)  # (B, size, H)
    columns = _resize_matrix(left, width, images.shape[3], size, interpolation)  # (B, size, W)
    columns = torch.where(flip.to(images.device, non_blocking=True)[:, None, None], columns.flip(1), columns)
    return _separable(images.float(), rows, columns).div_(255).clamp_(0, 1)


def _resize_matrix(start: Tensor, length: Tensor, side: int, size: int, interpolation: str) -> Tensor:
    """(B, size, side): what each source pixel weighs in each output pixel, for start and length (B, 1, 1) in pixels.
    Pillow's resampling: the filter widens as the image shrinks, is cut at the box's border and sums to 1."""
    scale = length / size  # source pixels per output pixel
    pixel = torch.arange(side, device=start.device) - start  # (B, 1, side), 0 is the box's first
    centre = (torch.arange(size, device=start.device)[:, None] + 0.5) * scale  # (B, size, 1)
    weights = FILTERS[interpolation](((pixel + 0.5 - centre) / scale.clamp_min(1)).abs_())
    weights = weights * ((pixel >= 0) & (pixel < length))
    return weights / weights.sum(dim=2, keepdim=True)


def _bicubic(distance: Tensor) -> Tensor:
    """Keys' cubic convolution (1981) with a = -0.5. Both parts are 0 where they end, so their sum needs no choice."""
    near, far = distance.clamp_max(1), distance.clamp(1, 2)
    return ((1.5 * near - 2.5) * near * near + 1) + ((2.5 - 0.5 * far) * far - 4) * far + 2


FILTERS: dict[str, Callable[[Tensor], Tensor]] = {"bicubic": _bicubic, "bilinear": lambda x: (1 - x).clamp_min_(0)}


def _separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows @ channel @ columns^T for each channel of x (B, 3, H, W), as B products: 3 * B are five times slower."""
    x = torch.einsum("bhy,bcyx->bchx", rows, x)
    return torch.einsum("bwx,bchx->bchw", columns, x).contiguous()


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """From black towards x and past it, for x (B, 3, H, W) in [0, 1] and factor (B,) >= 0, as below."""
    return (x * factor[:, None, None, None]).clamp_(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """From the image's mean grey towards x and past it."""
    return torch.lerp(grey(x).mean(dim=(2, 3), keepdim=True), x, factor[:, None, None, None]).clamp_(0, 1)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """From each pixel's grey towards x and past it."""
    return torch.lerp(grey(x), x, factor[:, None, None, None]).clamp_(0, 1)


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by shift (B,) turns. A pixel's most and least stay, as value and saturation do: its hue, in
    sixths of the circle, says where each channel lies between the two. Grey pixels have no hue and stay."""
    red, green, blue = x.unbind(dim=1)  # (B, H, W)
    most, least = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    chroma = most - least
    unit = chroma.clamp_min(torch.finfo(x.dtype).tiny)  # grey: 0 / tiny = 0
    sixths = torch.where(most == green, (blue - red).div_(unit).add_(2), (red - green).div_(unit).add_(4))
    sixths = torch.where(most == red, (green - blue).div_(unit), sixths).add_(6 * shift[:, None, None])
    sixths.sub_((sixths / 6).floor_(), alpha=6)  # in [0, 6]
    shares = ((sixths - 3).abs_() - 1, 2 - (sixths - 2).abs_(), 2 - (sixths - 4).abs_())
    return torch.stack([share.clamp_(0, 1).mul_(chroma).add_(least) for share in shares], dim=1)


def grey(x: Tensor) -> Tensor:
    """The luma (B, 1, H, W) of (B, 3, H, W), ITU-R BT.601."""
    return (0.2989 * x[:, :1]).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:], alpha=0.114)


def blur(x: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
    """Gaussian blur of (B, 3, S, S), sigma (B,) pixels, 2 * radius + 1 taps, mirrored about the border pixels' centres:
    torchvision's `gaussian_blur` with that kernel size."""
    pixel, tap = torch.arange(x.shape[3], device=x.device), torch.arange(-radius, radius + 1, device=x.device)
    kernel = (-0.5 * (tap / sigma[:, None]) ** 2).softmax(dim=1)  # (B, taps)
    period = max(1, 2 * (len(pixel) - 1))
    source = (pixel[:, None] + tap) % period  # (S, taps)
    hits = torch.minimum(source, period - source)[:, :, None] == pixel  # (S, taps, S)
    matrix = torch.einsum("bt,its->bis", kernel, hits.to(x.dtype))
    return _separable(x, matrix, matrix).clamp_(0, 1)


def solarize(x: Tensor) -> Tensor:
    """Invert the pixels from SOLARIZE_THRESHOLD on (BYOL, appendix B)."""
    return torch.where(x >= SOLARIZE_THRESHOLD, 1 - x, x)


def _check(name: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise BadNumber(f"{name} = {value!r}; allowed: {allowed}")
