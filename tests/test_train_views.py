"""Views: exact pixels and distributions against torchvision, and randomness that is a pure function of its key."""

import itertools
import math
import struct
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.functional as F
from scipy import stats
from torch import Tensor
from torchvision.transforms import ColorJitter, InterpolationMode, RandomResizedCrop

from train import views
from train.views import Parameters, ViewPolicy, Views, draw, make_view, resized_crop, seeded

OFF = ViewPolicy(crop_area=(1, 1), crop_ratio=(1, 1), flip=0, jitter=0, grey=0)
EVERYTHING = ViewPolicy(blur=0.5, solarize=0.2)
N = 10_000  # draws per distribution
MODES = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}
RANGES = [(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)]  # of brightness, contrast, saturation, hue by default
TORCHVISION = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def pixels(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


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
        factors=torch.tensor(views.NEUTRAL).repeat(n, 1),
        order=torch.arange(4).repeat(n, 1),
        grey=nothing,
        blur=nothing,
        sigma=torch.ones(n),
        solarize=nothing,
    )
    return still._replace(**given)


def all_off(**changed: float) -> ViewPolicy:
    return ViewPolicy(**{**vars(OFF), **changed})


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
    change: Callable[[Tensor, Tensor], Tensor] = (views.brightness, views.contrast, views.saturation, views.hue)[column]
    kept = x.clone()
    theirs = torch.stack(
        [TORCHVISION[column](image, factor) for image, factor in zip(x, factors.tolist(), strict=True)]
    )
    torch.testing.assert_close(change(x, factors), theirs, rtol=0, atol=1e-5)
    assert torch.equal(x, kept)


def test_hue_leaves_grey_alone_and_turns_red_into_green_and_blue() -> None:
    grey = torch.linspace(0, 1, 50).reshape(1, 1, 5, 10).expand(1, 3, 5, 10)
    assert torch.equal(views.hue(grey, torch.tensor([0.37])), grey)
    red = torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1).repeat(2, 1, 1, 1)
    turned = views.hue(red, torch.tensor([1 / 3, -1 / 3]))[:, :, 0, 0]
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
    ours = views.blur(x, sigma, radius=radius)
    for image, width, view in zip(x, sigma.tolist(), ours, strict=True):
        theirs = F.gaussian_blur(image, [2 * radius + 1] * 2, [width, width])
        torch.testing.assert_close(view, theirs, rtol=0, atol=1e-5)


def test_blur_reaches_beyond_a_small_image_and_keeps_a_flat_one() -> None:
    for side in (1, 2, 3):
        flat = torch.full((2, 3, side, side), 0.25)
        torch.testing.assert_close(views.blur(flat, torch.tensor([0.1, 2.0]), radius=6), flat, rtol=0, atol=1e-6)


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
    near = (x - views.SOLARIZE_THRESHOLD).abs() < 1e-5  # which side they fall on is a matter of rounding
    torch.testing.assert_close(ours[~near], F.solarize(x, views.SOLARIZE_THRESHOLD)[~near], rtol=0, atol=1e-5)


# --------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize(
    ("height", "width", "area", "ratio"),
    [
        (32, 32, (0.08, 1.0), (3 / 4, 4 / 3)),
        (224, 150, (0.2, 1.0), (3 / 4, 4 / 3)),
        (30, 90, (0.5, 0.9), (0.5, 2.0)),  # some rows fall back
        (20, 90, (0.9, 1.0), (0.8, 1.2)),  # all do
        (90, 20, (0.9, 1.0), (0.8, 1.2)),
    ],
)
def test_boxes_are_distributed_as_torchvisions(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float]
) -> None:
    ours = draw(ViewPolicy(crop_area=area, crop_ratio=ratio), seeded(7), N, height, width).box.double()
    image = torch.empty(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        drawn = [RandomResizedCrop.get_params(image, list(area), list(ratio)) for _ in range(N)]
    theirs = torch.tensor(drawn, dtype=torch.float64)
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, 2:] >= 1).all()
    assert (ours[:, :2] + ours[:, 2:] <= torch.tensor([height, width])).all()
    same_distribution(ours, theirs)
    same_distribution(*(torch.stack((b[:, 2] * b[:, 3], b[:, 3] / b[:, 2]), dim=1) for b in (ours, theirs)))


def same_distribution(ours: Tensor, theirs: Tensor) -> None:
    """Mean, variance and Kolmogorov-Smirnov distance of every column, within what chance exceeds once in 10,000."""
    for a, b in zip(ours.T, theirs.T, strict=True):
        spread = float(b.std())
        assert abs(float(a.mean() - b.mean())) <= 4 * spread * math.sqrt(2 / N)
        assert abs(float(a.var() - b.var())) <= 4 * spread**2 * math.sqrt(2 * 2 / N)  # excess kurtosis <= 0
        assert stats.ks_2samp(a.numpy(), b.numpy()).statistic < 2.23 * math.sqrt(2 / N)


def test_factors_are_distributed_as_torchvisions() -> None:
    ours = draw(ViewPolicy(jitter=1.0), seeded(8), N, 32, 32).factors.double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        drawn = [ColorJitter.get_params(*map(list, RANGES))[1:] for _ in range(N)]
    same_distribution(ours, torch.tensor(drawn, dtype=torch.float64))
    for column, (low, high) in zip(ours.T, RANGES, strict=True):
        assert column.min() >= low - 1e-6
        assert column.max() <= high + 1e-6


def test_strong_jitter_stops_at_factor_zero() -> None:
    drawn = draw(ViewPolicy(jitter=1.0, brightness=2.0), seeded(9), N, 32, 32)
    same_distribution(drawn.factors[:, :1].double(), 3 * torch.linspace(0, 1, N, dtype=torch.float64)[:, None])


def test_orders_are_uniform_over_the_24_permutations() -> None:
    order = draw(ViewPolicy(), seeded(10), N, 32, 32).order
    counts = torch.bincount(order @ torch.tensor([64, 16, 4, 1]), minlength=256)
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_probabilities_and_sigmas_are_the_policys_and_independent() -> None:
    policy = ViewPolicy(flip=0.5, jitter=0.8, grey=0.2, blur=0.4, solarize=0.1, blur_sigma=(0.1, 2.0))
    drawn = draw(policy, seeded(11), N, 32, 32)
    jittered = (drawn.factors != torch.tensor(views.NEUTRAL)).any(dim=1)
    coins = torch.stack([drawn.flip, jittered, drawn.grey, drawn.blur, drawn.solarize]).double()  # (5, N)
    wanted = torch.tensor([0.5, 0.8, 0.2, 0.4, 0.1], dtype=torch.float64)
    assert ((coins.mean(dim=1) - wanted).abs() < 4 * (wanted * (1 - wanted) / N).sqrt()).all()
    assert (torch.corrcoef(coins) - torch.eye(5)).abs().max() < 4 / math.sqrt(N)
    assert stats.kstest(drawn.sigma.numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 1e-3


def test_switching_an_operation_off_leaves_the_other_draws_alone() -> None:
    some, none = (draw(policy, seeded(1), 50, 32, 32) for policy in (EVERYTHING, ViewPolicy(jitter=0, grey=0, flip=0)))
    for name in ("box", "order", "sigma"):
        assert torch.equal(getattr(some, name), getattr(none, name))


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


def test_the_size_may_follow_the_step() -> None:
    images, growing = pixels(4, 32, 32), Views(EVERYTHING, ViewPolicy(), size=lambda step: 16 + 8 * step, seed=5)
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
