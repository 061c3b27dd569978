"""The pixel operations of the views: exactly torchvision's for given parameters."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.functional as F
from torch import Tensor
from view_fixtures import MODES, OFF, RANGES, all_off, pixels

from train import view_pixels
from train.view_pixels import Parameters, make_view, resized_crop
from train.views import ViewPolicy, Views, draw, seeded

TORCHVISION = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def colours(n: int = 12, side: int = 9) -> Tensor:
    """(n, 3, side, side) in [0, 1] with what breaks HSV: grey, black, white, primaries, equal channels, nearly grey."""
    x = torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(1))
    x[:, :, 0] = x[:, :1, 0]
    x[:, :, 1, 0], x[:, :, 1, 1] = 0, 1
    corners = list(itertools.product((0.0, 1.0), repeat=3))
    x[:, :, 2, :8] = torch.tensor(corners).T
    x[:, 1, 3], x[:, 2, 4], x[:, 0, 5] = x[:, 0, 3], x[:, 1, 4], x[:, 2, 5]
    x[:, 1:, 6] = x[:, :1, 6] + 1e-6
    return x.clamp(0, 1)


def parameters(n: int, **given: Tensor) -> Parameters:
    """n rows that leave 8 x 8 images alone, but for what is given."""
    nothing = torch.zeros(n, dtype=torch.bool)
    still = Parameters(
        box=torch.tensor([0, 0, 8, 8]).repeat(n, 1),
        flip=nothing,
        factors=torch.tensor(view_pixels.NEUTRAL).repeat(n, 1),
        order=torch.arange(4).repeat(n, 1),
        grey=nothing,
        blur=nothing,
        sigma=torch.ones(n),
        solarize=nothing,
    )
    return still._replace(**given)


# ---------------------------------------------------------------------------------------------- crop, resize, flip


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (40, 23, 16), (17, 90, 24), (8, 8, 33), (5, 64, 1)]
)
def test_resized_crop_is_torchvisions_for_any_box(interpolation: str, height: int, width: int, size: int) -> None:
    generator = torch.Generator().manual_seed(height)
    tall = torch.randint(1, height + 1, (60,), generator=generator)
    wide = torch.randint(1, width + 1, (60,), generator=generator)
    tall[:10], wide[5:15], tall[15:20], wide[18:22] = 1, 1, height, width  # slivers, single pixels, whole sides
    u = torch.rand(2, 60, generator=generator)
    box = torch.stack([(u[0] * (height - tall + 1)).long(), (u[1] * (width - wide + 1)).long(), tall, wide], dim=1)
    images, flip = pixels(60, height, width), torch.rand(60, generator=generator) < 0.5

    ours = resized_crop(images, box, flip, size=size, interpolation=interpolation)

    for image, (top, left, h, w), mirrored, view in zip(images, box.tolist(), flip, ours, strict=True):
        theirs = F.resized_crop(image / 255, top, left, h, w, [size, size], MODES[interpolation], antialias=True)
        theirs = F.hflip(theirs) if mirrored else theirs
        torch.testing.assert_close(view, theirs.clamp(0, 1), rtol=0, atol=1e-5)


def test_bicubic_overshoot_is_clamped_to_pixels() -> None:
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    view = resized_crop(edge, torch.tensor([[0, 0, 8, 8]]), torch.tensor([False]), size=32, interpolation="bicubic")
    assert view.min() == 0
    assert view.max() == 1


def test_a_box_never_sees_pixels_outside_itself() -> None:
    images, box = pixels(1, 16, 16), torch.tensor([[4, 5, 6, 7]])
    outside = torch.ones(16, 16, dtype=torch.bool)
    outside[4:10, 5:12] = False
    crops = [
        resized_crop(x, box, torch.tensor([True]), size=9, interpolation="bicubic")
        for x in (images, images.masked_fill(outside, 255))
    ]
    assert torch.equal(*crops)


def test_flip_mirrors_the_finished_view() -> None:
    drawn, images = draw(ViewPolicy(blur=0.5), seeded(3), 64, 20, 14), pixels(64, 20, 14)
    straight, mirrored = (
        make_view(images, drawn._replace(flip=torch.full((64,), f)), size=16, interpolation="bicubic", blur_radius=6)
        for f in (False, True)
    )
    torch.testing.assert_close(mirrored, straight.flip(3), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- colour


@pytest.mark.parametrize("column", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_a_colour_operation_is_torchvisions(column: int) -> None:
    x = colours()
    ends = (0.0, 0.3, 1.0, 1.7, 3.0) if column < 3 else (-0.5, -0.13, 0.0, 0.21, 0.5)
    factors = torch.tensor([*ends, *torch.linspace(ends[0], ends[-1], len(x) - len(ends)).tolist()])
    change: Callable[[Tensor, Tensor], Tensor] = (
        view_pixels.brightness,
        view_pixels.contrast,
        view_pixels.saturation,
        view_pixels.hue,
    )[column]
    kept = x.clone()
    theirs = torch.stack(
        [TORCHVISION[column](image, factor) for image, factor in zip(x, factors.tolist(), strict=True)]
    )
    torch.testing.assert_close(change(x, factors), theirs, rtol=0, atol=1e-5)
    assert torch.equal(x, kept)


def test_hue_leaves_grey_alone_and_turns_red_into_green_and_blue() -> None:
    grey = torch.linspace(0, 1, 50).reshape(1, 1, 5, 10).expand(1, 3, 5, 10)
    assert torch.equal(view_pixels.hue(grey, torch.tensor([0.37])), grey)
    red = torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1).repeat(2, 1, 1, 1)
    turned = view_pixels.hue(red, torch.tensor([1 / 3, -1 / 3]))[:, :, 0, 0]
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1, 0], [0, 0, 1]]), rtol=0, atol=1e-6)


def test_all_24_orders_of_the_jitter_are_torchvisions() -> None:
    order = torch.tensor(list(itertools.permutations(range(4))))
    factors = torch.stack(
        [torch.empty(24).uniform_(a, b, generator=seeded(i)) for i, (a, b) in enumerate(RANGES)], dim=1
    )
    images = pixels(24, 8, 8)
    drawn = parameters(24, order=order, factors=factors)
    ours = make_view(images, drawn, size=8, interpolation="bicubic", blur_radius=1)
    for image, columns, factor, view in zip(images, order.tolist(), factors.tolist(), ours, strict=True):
        theirs = image / 255
        for column in columns:
            theirs = TORCHVISION[column](theirs, factor[column])
        torch.testing.assert_close(view, theirs, rtol=0, atol=1e-5)


def test_grey_is_torchvisions_and_touches_only_its_rows() -> None:
    images, grey = pixels(6, 8, 8), torch.tensor([True, False, True, True, False, False])
    ours = make_view(images, parameters(6, grey=grey), size=8, interpolation="bicubic", blur_radius=1)
    torch.testing.assert_close(ours[grey], F.rgb_to_grayscale(images[grey] / 255, 3), rtol=0, atol=1e-6)
    assert torch.equal(ours[~grey], images[~grey] / 255)


# ---------------------------------------------------------------------------------------------- blur and solarize


@pytest.mark.parametrize(("side", "radius"), [(7, 6), (24, 6), (24, 2), (40, 11)])
def test_blur_is_torchvisions_with_the_same_kernel_size(side: int, radius: int) -> None:
    x, sigma = colours(5, max(side, 9))[:, :, :side, :side], torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0])
    ours = view_pixels.blur(x, sigma, radius=radius)
    for image, width, view in zip(x, sigma.tolist(), ours, strict=True):
        theirs = F.gaussian_blur(image, [2 * radius + 1] * 2, [width, width])
        torch.testing.assert_close(view, theirs, rtol=0, atol=1e-5)


def test_blur_reaches_beyond_a_small_image_and_keeps_a_flat_one() -> None:
    for side in (1, 2, 3):
        flat = torch.full((2, 3, side, side), 0.25)
        torch.testing.assert_close(view_pixels.blur(flat, torch.tensor([0.1, 2.0]), radius=6), flat, rtol=0, atol=1e-6)


def test_views_blur_with_three_of_the_widest_sigmas() -> None:
    policy, images = all_off(blur=1.0, blur_sigma=(0.5, 1.5)), pixels(4, 16, 16)
    view, _ = Views(policy, OFF, size=16, seed=0)(images, 0)
    sigma = draw(policy, seeded(0, 0, 0), 4, 16, 16).sigma.tolist()
    theirs = torch.stack([F.gaussian_blur(x / 255, [11, 11], [s, s]) for x, s in zip(images, sigma, strict=True)])
    torch.testing.assert_close(view, theirs, rtol=0, atol=1e-5)


def test_solarize_inverts_128_and_above() -> None:
    images = torch.arange(192, dtype=torch.uint8).reshape(1, 3, 8, 8)
    view = make_view(
        images, parameters(1, solarize=torch.tensor([True])), size=8, interpolation="bicubic", blur_radius=1
    )
    torch.testing.assert_close(view, F.solarize(images, 128) / 255, rtol=0, atol=1e-6)


def test_the_order_is_jitter_grey_blur_solarize() -> None:
    images, yes = pixels(4, 8, 8), torch.ones(4, dtype=torch.bool)
    factors = torch.tensor([[1.3, 0.7, 1.2, 0.08]]).repeat(4, 1)
    drawn = parameters(4, factors=factors, grey=yes, blur=yes, sigma=torch.full((4,), 0.8), solarize=yes)
    ours = make_view(images, drawn, size=8, interpolation="bicubic", blur_radius=3)
    x = images / 255
    for change, factor in zip(TORCHVISION, factors[0].tolist(), strict=True):
        x = change(x, factor)
    x = F.gaussian_blur(F.rgb_to_grayscale(x, 3), [7, 7], [0.8, 0.8])
    near = (x - view_pixels.SOLARIZE_THRESHOLD).abs() < 1e-5  # which side they fall on is a matter of rounding
    torch.testing.assert_close(ours[~near], F.solarize(x, view_pixels.SOLARIZE_THRESHOLD)[~near], rtol=0, atol=1e-5)
