"""Whose statistics batch normalisation uses, and what they give away."""

import json
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from bench.bn_leak import CHANCE, KINDS, leak
from torch import nn

from train.batchnorm import (
    GROUPS,
    ShuffledKeys,
    SplitBatchNorm,
    SyncBatchNorm,
    scrambled,
    shuffles_keys,
    split_batch_norm,
    with_batchnorm,
)
from zoo.errors import BadNumber

GOLDEN = Path(__file__).parents[2] / "shared" / "reference" / "losses.json"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(32, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_split_statistics_agree_with_the_reference_file():
    if not GOLDEN.is_file():
        pytest.skip("the reference file is not on this machine; the next test covers the same equation")
    case = json.loads(GOLDEN.read_text())["split_bn"]
    y, _, _ = split_batch_norm(torch.tensor(case["x"]).double(), None, None, groups=case["splits"], eps=1e-5)
    assert y.numpy() == pytest.approx(np.array(case["y"]), abs=1e-6)


def test_split_statistics_are_those_of_every_eighth_image(x: torch.Tensor):
    norm = with_batchnorm(nn.Sequential(nn.BatchNorm2d(3)).double(), "split")
    nn.init.uniform_(norm[0].weight)
    nn.init.uniform_(norm[0].bias)
    y = norm(x)
    for j in range(GROUPS):
        alone = nn.functional.batch_norm(x[j::GROUPS], None, None, norm[0].weight, norm[0].bias, training=True)
        assert torch.allclose(y[j::GROUPS], alone)
    rows = x[:, :, 0, 0]
    y, _, _ = split_batch_norm(rows, None, None, groups=4, eps=1e-5)
    assert y.numpy() == pytest.approx(reference.split_batch_norm(rows.numpy(), 4), abs=1e-12)


def test_split_running_statistics_are_the_mean_over_groups_and_evaluation_is_plain(x: torch.Tensor):
    norm = with_batchnorm(nn.Sequential(nn.BatchNorm2d(3)).double(), "split")
    norm(x)
    groups = [x[j::GROUPS].transpose(0, 1).flatten(1) for j in range(GROUPS)]
    mean = torch.stack([group.mean(1) for group in groups]).mean(0)
    variance = torch.stack([group.var(1) for group in groups]).mean(0)
    assert torch.allclose(norm[0].running_mean, 0.1 * mean)
    assert torch.allclose(norm[0].running_var, 0.9 + 0.1 * variance)
    plain = nn.BatchNorm2d(3).double()
    plain.load_state_dict(norm[0].state_dict())
    assert torch.equal(norm.eval()(x[:3]), plain.eval()(x[:3]))


def test_split_works_on_channels_last_images(x: torch.Tensor):
    norm = with_batchnorm(nn.Sequential(nn.BatchNorm2d(3)).double(), "split")
    assert torch.allclose(norm(x.contiguous(memory_format=torch.channels_last)), norm(x))


@pytest.mark.parametrize("size", [8, 12, 20])
def test_a_batch_that_does_not_split_is_refused_with_what_would(size: int, x: torch.Tensor):
    norm = with_batchnorm(nn.Sequential(nn.BatchNorm2d(3)).double(), "split")
    with pytest.raises(BadNumber, match=f"{size} images .* into 8 groups .* a multiple of 8 from 16 on"):
        norm(x[:size])


def test_the_switch_changes_forward_alone():
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4, affine=False))

    kinds = {"plain": (nn.BatchNorm2d, nn.BatchNorm1d), "sync": (SyncBatchNorm,) * 2, "split": (SplitBatchNorm,) * 2,
             "auto": (SplitBatchNorm,) * 2}  # fmt: skip
    for name, (first, second) in kinds.items():
        changed = with_batchnorm(network(), name)
        assert (type(changed[1]), type(changed[3])) == (first, second)
        assert all(torch.equal(a, b) for a, b in zip(changed.state_dict().values(), network().state_dict().values()))  # noqa: B905
        assert list(changed.state_dict()) == list(network().state_dict())
    with pytest.raises(BadNumber, match="shuffle changes nothing on one process; choose split, or auto"):
        with_batchnorm(network(), "shuffle")
    assert [shuffles_keys(name) for name in ("auto", "split", "shuffle", "sync", "plain")] == [True] * 3 + [False] * 2


def test_shuffling_returns_each_key_to_its_image_and_takes_another_order_every_time():
    shuffled = ShuffledKeys()
    images, seen = torch.arange(24.0)[:, None], []

    def key(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows.flatten().tolist())
        return 10 * rows

    for _ in range(3):
        assert torch.equal(shuffled(key, images), 10 * images)
    assert all(sorted(order) == list(range(24)) for order in seen)
    assert len({tuple(order) for order in [*seen, range(24)]}) == 4
    again = ShuffledKeys()
    again.load_state_dict({"calls": torch.tensor(2)})
    again(key, images)
    assert seen[3] == seen[2]  # the order is in the state


def test_orders_are_spread_evenly():
    """Over 2,000 calls every image stands about equally often in each of 8 places: chi-square, 49 degrees."""
    counts = torch.zeros(8, 8)
    for seed in range(2000):
        counts[torch.arange(8), scrambled(8, torch.tensor(seed))] += 1
    chi_square = ((counts - 250).square() / 250).sum().item()
    assert chi_square < 85.4  # passed by 99.9 % of fair shuffles


def test_within_one_process_shuffling_alone_changes_no_key_but_with_split_statistics_it_does():
    images = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    for name, changes in {"plain": False, "split": True}.items():
        torch.manual_seed(0)
        key = with_batchnorm(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)), name)
        gap = (ShuffledKeys()(key, images) - key(images)).abs().max().item()
        assert gap > 0.1 if changes else gap < 1e-5


def test_plain_statistics_give_the_positive_away_and_split_ones_with_shuffled_keys_do_not():
    """On noise whose positives are other images, where nothing but the statistics of the batch can be learnt."""
    leaked = {kind: sum(leak(kind, steps=80)[-40:]) / 40 for kind in KINDS}
    assert leaked["plain"] > 50 * CHANCE
    assert leaked["split"] > 10 * CHANCE  # alone, it leaves the query with the keys of its own group
    assert leaked["split, keys shuffled"] < 5 * CHANCE
