"""Views: a pure function of images, seed, step and row, within their limits."""

import math
import struct

import pytest
import torch
import torchvision.transforms.functional as F
from torch import Tensor
from view_fixtures import EVERYTHING, MODES, OFF, all_off, pixels

from train.view_pixels import make_view, resized_crop
from train.views import ViewPolicy, Views, draw, seeded

# ---------------------------------------------------------------------------------------------------- determinism


def test_same_seed_and_step_are_the_same_bits_and_no_other_key_is() -> None:
    images = pixels(16, 32, 32)
    make = {seed: Views(EVERYTHING, EVERYTHING, size=32, seed=seed) for seed in (1, 2)}
    first = make[1](images, 2)
    torch.manual_seed(123)  # the global generator has no say
    again = Views(EVERYTHING, EVERYTHING, size=32, seed=1)(images, 2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    for other in (make[1](images, 3), make[2](images, 2), make[2](images, 1)):
        assert (first[0] - other[0]).abs().amax(dim=(1, 2, 3)).gt(0.01).float().mean() > 0.9
    assert (first[0] - first[1]).abs().amax(dim=(1, 2, 3)).gt(0.01).float().mean() > 0.9


@pytest.mark.parametrize("world", [2, 4])
def test_processes_make_the_rows_one_process_makes(world: int) -> None:
    images, make = pixels(64, 32, 32), Views(EVERYTHING, ViewPolicy(), size=32, seed=5)
    whole = make(images, 9)
    parts = [make(part, 9, rank, world) for rank, part in enumerate(images.chunk(world))]
    assert torch.equal(whole[0], torch.cat([view1 for view1, _ in parts]))
    assert torch.equal(whole[1], torch.cat([view2 for _, view2 in parts]))


@pytest.mark.parametrize("size", [16, 32, 40])
@pytest.mark.parametrize("policies", [(EVERYTHING, EVERYTHING), (EVERYTHING, ViewPolicy(interpolation="bilinear"))])
def test_blocks_change_no_bit(policies, size, monkeypatch) -> None:
    """All at once, blocks with a rest, image by image; of whole images and of crops that are cut already."""
    make, images = Views(*policies, size=size, seed=5), pixels(75, 36, 24)
    crops = pixels(75, size, size), pixels(75, size, size)
    found = []
    for most in (2**30, 2**17, 11 * 40 * 40, 1):
        monkeypatch.setattr("train.views.BLOCK_PIXELS", most)
        found.append([*make(images, 9), *make(crops, 9)])
    for views in zip(*found, strict=True):
        assert all(torch.equal(views[0], other) for other in views[1:])


def test_the_size_may_follow_the_step() -> None:
    images, growing = pixels(4, 32, 32), Views(EVERYTHING, ViewPolicy(), sizes=lambda step: [16 + 8 * step] * 2, seed=5)
    for step in (0, 2):
        fixed = Views(EVERYTHING, ViewPolicy(), size=16 + 8 * step, seed=5)
        assert all(map(torch.equal, growing(images, step), fixed(images, step)))


def test_a_view_does_not_depend_on_the_other_policy() -> None:
    images = pixels(8, 32, 32)
    view1, view2 = Views(EVERYTHING, ViewPolicy(), size=32, seed=5)(images, 0)
    assert torch.equal(view1, Views(EVERYTHING, OFF, size=32, seed=5)(images, 0)[0])
    assert torch.equal(view2, Views(OFF, ViewPolicy(), size=32, seed=5)(images, 0)[1])


def test_consecutive_steps_are_uncorrelated() -> None:
    u = torch.stack([torch.rand(500, generator=seeded(0, step, 0)) for step in range(40)])
    correlation = torch.corrcoef(u) - torch.eye(40)
    assert correlation.abs().max() < 5 / math.sqrt(500)


def test_the_first_draws_never_change() -> None:
    """A run resumed under a later version must see the same views: this is the recorded start of the stream."""
    drawn = draw(ViewPolicy(), seeded(1, 2, 0), 2, 32, 32)
    assert drawn.box.tolist() == [[1, 3, 27, 21], [9, 19, 9, 12]]
    assert struct.pack("<4f", *drawn.factors[0]).hex() == "148a6a3f8526273f75b3b03f6b044f3d"
    assert drawn.order.tolist() == [[3, 2, 0, 1], [0, 3, 2, 1]]


# ------------------------------------------------------------------------------------------------- limits and bad input


def test_everything_off_is_the_image_over_255() -> None:
    images = pixels(8, 32, 32)
    for view in Views(OFF, OFF, size=32, seed=0)(images, 0):
        assert torch.equal(view, images / 255)
    for interpolation in MODES:
        box, flip = torch.tensor([[0, 0, 40, 28]]), torch.tensor([False])
        wide = resized_crop(pixels(1, 40, 28), box, flip, size=28, interpolation=interpolation)
        theirs = F.resize(pixels(1, 40, 28) / 255, [28, 28], MODES[interpolation], antialias=True).clamp(0, 1)
        torch.testing.assert_close(wide, theirs, rtol=0, atol=1e-5)


def test_strengths_of_zero_change_nothing() -> None:
    images = pixels(8, 32, 32)
    policy = all_off(jitter=1.0, brightness=0, contrast=0, saturation=0, hue=0)
    assert torch.equal(Views(policy, OFF, size=32, seed=0)(images, 0)[0], images / 255)


@pytest.mark.parametrize(("n", "height", "width", "size"), [(1, 1, 1, 1), (1, 1, 1, 8), (1, 32, 32, 1), (2, 1, 40, 6)])
def test_the_smallest_images_and_batches_work(n: int, height: int, width: int, size: int) -> None:
    always = ViewPolicy(flip=1, jitter=1, grey=1, blur=1, solarize=1)
    for view in Views(always, EVERYTHING, size=size, seed=0)(pixels(n, height, width), 0):
        assert view.shape == (n, 3, size, size)
        assert view.dtype == torch.float32
        assert view.isfinite().all()
        assert view.min() >= 0
        assert view.max() <= 1


def test_views_are_contiguous_in_0_1_and_leave_the_images_alone() -> None:
    images = pixels(200, 24, 36)
    kept = images.clone()
    strong = ViewPolicy(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.5, blur=0.5, solarize=0.5)
    for view in Views(strong, EVERYTHING, size=32, seed=0)(images, 0):
        assert view.is_contiguous()
        assert view.min() >= 0
        assert view.max() <= 1
    assert torch.equal(images, kept)


def test_autocast_and_memory_format_change_no_pixel() -> None:
    images, make = pixels(8, 32, 32), Views(EVERYTHING, EVERYTHING, size=32, seed=0)
    plain = make(images, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(make(images, 0)[0], plain[0])
    torch.testing.assert_close(make(images.to(memory_format=torch.channels_last), 0)[1], plain[1], rtol=0, atol=1e-6)


def test_no_pixel_is_read_back_by_the_host() -> None:
    """Tensors on the meta device have no values: what would wait for CUDA is an error there."""
    images, drawn = pixels(32, 24, 36).to("meta"), draw(EVERYTHING, seeded(0), 32, 24, 36)
    view = make_view(images, drawn, size=32, interpolation="bicubic", blur_radius=6)
    assert view.shape == (32, 3, 32, 32)
    assert view.device.type == "meta"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("crop_area", (0.5, 0.2), "0 < least <= most <= 1"),
        ("crop_area", (0.0, 1.0), "0 < least"),
        ("crop_area", (0.5, 1.1), "most <= 1"),
        ("crop_area", (0.5,), "least, most"),
        ("crop_ratio", (2.0, 0.5), "least <= most"),
        ("crop_ratio", (-1.0, 1.0), "0 < least"),
        ("blur_sigma", (0.0, 2.0), "0 < least"),
        ("blur_sigma", (math.nan, 2.0), "0 < least"),
        ("hue", 0.6, r"\[0, 0.5\]"),
        ("hue", -0.1, r"\[0, 0.5\]"),
        ("brightness", -0.1, ">= 0"),
        ("contrast", math.inf, "finite"),
        ("saturation", math.nan, "finite"),
        ("flip", 1.1, "probability"),
        ("jitter", -0.1, "probability"),
        ("grey", 2, "probability"),
        ("blur", math.nan, "probability"),
        ("solarize", -1, "probability"),
        ("interpolation", "nearest", "bicubic or bilinear"),
    ],
)
def test_a_policy_outside_its_range_says_what_came_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} = .*allowed: .*{allowed}"):
        ViewPolicy(**{field: value})


@pytest.mark.parametrize(
    "images",
    [
        torch.rand(2, 3, 8, 8),
        torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(0, 3, 8, 8, dtype=torch.uint8),
    ],
    ids=["float", "channels last", "one image", "empty"],
)
def test_images_of_another_type_or_shape_are_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^images = .*allowed: \(B, 3, H, W\) and torch.uint8"):
        Views(OFF, OFF, size=8, seed=0)(images, 0)


def test_ranks_outside_the_world_and_views_without_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rank = 2; allowed: 0 .. world - 1, and world = 2"):
        Views(OFF, OFF, size=8, seed=0)(pixels(1, 8, 8), 0, 2, 2)
    with pytest.raises(ValueError, match="size = 0; allowed: pixels >= 1"):
        Views(OFF, OFF, size=0, seed=0)
