"""What is drawn for the views has the distributions of torchvision's own transforms."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import ColorJitter, RandomResizedCrop
from view_fixtures import EVERYTHING, OFF, RANGES, all_off

from train.view_pixels import NEUTRAL
from train.views import ViewPolicy, Views, draw, seeded

N = 10_000  # draws per distribution


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
        variance, fourth = float(b.var()), float(((b - b.mean()) ** 4).mean())
        assert abs(float(a.mean() - b.mean())) <= 4 * math.sqrt(2 * variance / N)
        variance_of_the_variance = max(fourth - variance**2, 2 * variance**2) / N  # the second is a normal law's
        assert abs(float(a.var() - b.var())) <= 4 * math.sqrt(2 * variance_of_the_variance)
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


@pytest.mark.parametrize(
    ("policy", "theirs"),
    [
        (all_off(flip=0.5), transforms.RandomHorizontalFlip(0.5)),
        (all_off(grey=0.2), transforms.RandomGrayscale(0.2)),
        (all_off(solarize=0.1), transforms.RandomSolarize(128 / 255, p=0.1)),
        (all_off(jitter=0.5), transforms.RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.5)),
        (all_off(blur=0.4), transforms.RandomApply([transforms.GaussianBlur(13, (0.1, 2.0))], p=0.4)),
    ],
    ids=["flip", "grey", "solarize", "jitter", "blur"],
)
def test_the_pixels_of_one_image_are_distributed_as_torchvisions_transform_leaves_them(policy, theirs) -> None:
    """The operation, its probability and its strength together, over 10,000 draws of each."""
    image = torch.randint(0, 256, (3, 7, 7), dtype=torch.uint8, generator=seeded(12))
    ours, _ = Views(policy, OFF, size=7, seed=12)(image.expand(N, -1, -1, -1), 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12)
        drawn = torch.stack([theirs(image / 255) for _ in range(N)])
    ours, drawn = (x.flatten(1).double().round(decimals=4) for x in (ours, drawn))  # ties stay ties
    changed = (drawn != drawn[0]).any(dim=0)
    assert torch.equal((ours != ours[0]).any(dim=0), changed)
    same_distribution(*(x[:, changed][:, ::20] for x in (ours, drawn)))


def test_probabilities_and_sigmas_are_the_policys_and_independent() -> None:
    policy = ViewPolicy(flip=0.5, jitter=0.8, grey=0.2, blur=0.4, solarize=0.1, blur_sigma=(0.1, 2.0))
    drawn = draw(policy, seeded(11), N, 32, 32)
    jittered = (drawn.factors != torch.tensor(NEUTRAL)).any(dim=1)
    coins = torch.stack([drawn.flip, jittered, drawn.grey, drawn.blur, drawn.solarize]).double()  # (5, N)
    wanted = torch.tensor([0.5, 0.8, 0.2, 0.4, 0.1], dtype=torch.float64)
    assert ((coins.mean(dim=1) - wanted).abs() < 4 * (wanted * (1 - wanted) / N).sqrt()).all()
    assert (torch.corrcoef(coins) - torch.eye(5)).abs().max() < 4 / math.sqrt(N)
    assert stats.kstest(drawn.sigma.numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 1e-3


def test_switching_an_operation_off_leaves_the_other_draws_alone() -> None:
    some, none = (draw(policy, seeded(1), 50, 32, 32) for policy in (EVERYTHING, ViewPolicy(jitter=0, grey=0, flip=0)))
    for name in ("box", "order", "sigma"):
        assert torch.equal(getattr(some, name), getattr(none, name))
