"""What the views are made of: pixels and drawn parameters in, pixels out, many images at once, on their device.

Definitions are torchvision's on float tensors. Which rows an operation touches is settled on the CPU, so nothing waits
for CUDA.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

NEUTRAL = (1.0, 1.0, 1.0, 0.0)  # the brightness, contrast, saturation and hue that change nothing
SOLARIZE_THRESHOLD = 128 / 255  # pixels from here on are inverted


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


def make_view(images: Tensor, drawn: Parameters, *, size: int, interpolation: str, blur_radius: int) -> Tensor:
    """(B, 3, H, W) uint8 and B drawn rows -> (B, 3, size, size) in [0, 1]: crop and flip (the flip commutes with the
    rest), jitter, grey, blur, solarize: MoCo v2's order."""
    x = resized_crop(images, drawn.box, drawn.flip, size=size, interpolation=interpolation)
    return recolour(x, drawn, blur_radius=blur_radius)


def finish_crops(crops: Tensor, drawn: Parameters, *, blur_radius: int) -> Tensor:
    """(B, 3, S, S) uint8, cut and resized already, and B drawn rows -> (B, 3, S, S) in [0, 1]."""
    there = drawn.flip.to(crops.device, non_blocking=True)[:, None, None, None]
    x = crops.float().div_(255)
    return recolour(torch.where(there, x.flip(3), x), drawn, blur_radius=blur_radius)


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
        values = [argument.index_select(0, rows).to(x.device, non_blocking=True) for argument in arguments]
        x.index_copy_(0, there, change(x.index_select(0, there), *values))


def resized_crop(images: Tensor, box: Tensor, flip: Tensor, *, size: int, interpolation: str) -> Tensor:
    """The boxes of (B, 3, H, W) uint8 images, resized with antialiasing and flipped: (B, 3, size, size) in [0, 1]."""
    top, left, height, width = box.to(images.device, torch.float32, non_blocking=True)[:, :, None, None].unbind(dim=1)
    straight = torch.arange(size, device=images.device)[:, None]
    mirrored = torch.where(flip.to(images.device, non_blocking=True)[:, None, None], size - 1 - straight, straight)
    rows = _resize_matrix(straight, top, height, images.shape[2], interpolation)  # (B, size, H)
    columns = _resize_matrix(mirrored, left, width, images.shape[3], interpolation)  # (B, size, W)
    return _separable(images.float(), rows, columns).div_(255).clamp_(0, 1)


def _resize_matrix(place: Tensor, start: Tensor, length: Tensor, side: int, interpolation: str) -> Tensor:
    """(B, size, side): what each source pixel weighs in the output pixel at each place ([B, ]size, 1) of 0 .. size - 1,
    for start and length (B, 1, 1) in pixels. Pillow's resampling: the filter widens as the image shrinks, is cut at the
    box's border and sums to 1."""
    scale = length / place.shape[-2]  # source pixels per output pixel
    pixel = torch.arange(side, device=start.device) - start  # (B, 1, side), 0 is the box's first
    centre = (place + 0.5) * scale  # (B, size, 1)
    weights = FILTERS[interpolation](((pixel + 0.5) - centre).div_(scale.clamp_min(1)).abs_())
    weights.mul_((pixel >= 0) & (pixel < length))
    return weights.div_(weights.sum(dim=2, keepdim=True))


def _bicubic(distance: Tensor) -> Tensor:
    """Keys' cubic convolution (1981) with a = -0.5: 1.5 d^3 - 2.5 d^2 + 1 up to d = 1, -0.5 d^3 + 2.5 d^2 - 4 d + 2 up
    to 2. Both parts are 0 where they end, so their sum needs no choice. Overwrites distance."""
    near, far = distance.clamp_max(1), distance.clamp_(1, 2)
    inner = (1.5 * near).sub_(2.5).mul_(near).mul_(near).add_(1)
    outer = (2.5 - 0.5 * far).mul_(far).sub_(4).mul_(far)
    return inner.add_(outer).add_(2)


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
    luma = grey(x)
    mean = luma.mean(dim=(2, 3), keepdim=True).expand_as(luma).contiguous()  # as pixels: lerp is then vectorised
    return torch.lerp(mean, x, factor[:, None, None, None]).clamp_(0, 1)


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
    sixths = (red - green).div_(unit).add_(4)
    sixths.lerp_((blue - red).div_(unit).add_(2), (most == green).to(x.dtype))  # a choice, twice as fast as where
    sixths.lerp_((green - blue).div_(unit), (most == red).to(x.dtype)).add_(6 * shift[:, None, None])
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
