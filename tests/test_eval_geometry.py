"""Geometry, retrieval and fine-tuning: limits known by hand, and the same numbers by a plain loop."""

import numpy as np
import pytest
import torch

from eval.augment import crop_and_mirror
from eval.contestants import fingerprint
from eval.features import Features, RawPixels, extract
from eval.finetune import Schedule, answers, finetune, train
from eval.geometry import (
    alignment,
    channel_std,
    geometry,
    participation_ratio,
    rank_me,
    some_rows,
    spectrum,
    uniformity,
)
from eval.intervals import wilson
from eval.metrics import accuracy
from eval.retrieval import retrieval, search
from eval.task import Task
from zoo.errors import BadData
from zoo.images.image_set import ImageSet, from_pixels
from zoo.images.opening import open_images


def cloud(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def task_of(encoder, train_images: ImageSet, test_images: ImageSet) -> Task:
    return Task(encoder, train_images, test_images, extract(encoder, train_images), extract(encoder, test_images), 10)


@pytest.mark.parametrize("shape", [(300, 20), (20, 300)])
def test_the_spectrum_is_that_of_an_svd(shape):
    rows = cloud(*shape)
    assert spectrum(rows) == pytest.approx(np.linalg.svd(rows.astype(float), compute_uv=False), rel=1e-3)


def test_the_rank_of_a_round_cloud_is_its_dimension_and_of_a_flat_one_is_smaller():
    round_cloud = cloud(5000, 30)
    assert rank_me(spectrum(round_cloud)) == pytest.approx(30, rel=0.02)
    flat = cloud(500, 3) @ cloud(3, 30, seed=1)
    assert rank_me(spectrum(flat)) <= 3.01
    assert participation_ratio(spectrum(flat)) <= 3
    assert participation_ratio(spectrum(round_cloud)) == pytest.approx(30, rel=0.02)


def test_ranks_do_not_change_with_scale_or_rotation():
    rows = cloud(400, 12) * np.geomspace(0.1, 1, 12).astype(np.float32)
    turn = np.linalg.qr(cloud(12, 12, seed=2))[0]
    for measure in (rank_me, participation_ratio):
        assert measure(spectrum(7 * rows @ turn)) == pytest.approx(measure(spectrum(rows)), rel=1e-3)


def test_constant_features_have_no_rank_and_no_spread():
    zeros = np.zeros((10, 4), np.float32)
    assert (rank_me(spectrum(zeros)), participation_ratio(spectrum(zeros))) == (1, 0)
    assert channel_std(np.ones((10, 4), np.float32)) == pytest.approx(0, abs=1e-6)
    assert channel_std(cloud(5000, 50)) == pytest.approx(1, rel=0.02)


def test_uniformity_of_images_in_the_order_of_their_classes_looks_at_all_classes():
    """3,000 points, the first 2,048 of them equal: among those alone every pair would be at distance 0."""
    rows = np.where(np.arange(3000)[:, None] < 2048, [1.0, 0], [-1.0, 0])
    opposite = 2 * (2048 / 3000) * (952 / 3000)  # share of pairs at squared distance 4
    assert uniformity(some_rows(rows)) == pytest.approx(np.log(1 - opposite * (1 - np.exp(-8))), abs=0.05)


def test_uniformity_by_hand():
    """Two opposite points: one pair at squared distance 4. Two equal points: 0."""
    assert uniformity(np.array([[1.0, 0], [-3, 0]])) == pytest.approx(-8)
    assert uniformity(np.array([[1.0, 0], [2, 0]])) == pytest.approx(0)
    corners = np.array([[1.0, 0], [0, 1], [-1, 0]])  # pairs at 2, 4, 2
    assert uniformity(corners) == pytest.approx(np.log((2 * np.exp(-4) + np.exp(-8)) / 3))


def test_images_of_one_colour_are_perfectly_aligned_and_noise_is_not():
    rng = np.random.default_rng(0)
    labels = np.zeros(40, np.int64)
    plain = np.repeat(rng.integers(20, 256, (40, 1, 1, 3)), 8, axis=1).repeat(8, axis=2).astype(np.uint8)
    noise = rng.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)
    still, moving = (
        alignment(RawPixels(8), from_pixels("digits", "test", pixels, labels, ("0",), "")) for pixels in (plain, noise)
    )
    assert still < 1e-6 < 0.1 < moving


def test_every_measure_of_digits_is_a_number_with_its_variant_named():
    train_images, test_images = open_images("digits", "train").sample(100), open_images("digits", "test").sample(100)
    outcomes = geometry(task_of(RawPixels(8), train_images, test_images))
    values = {outcome.name: outcome.value for outcome in outcomes}
    assert np.isfinite(list(values.values())).all()
    assert 1 < values["participation-ratio"] < values["effective-rank"] <= 64
    assert len({outcome.metric for outcome in outcomes}) == 6


def test_crops_stay_inside_and_half_of_them_are_mirrored():
    """A ramp from left to right: its mean slope says whether a crop is mirrored, its range that nothing was added."""
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    crops = crop_and_mirror(ramp, size=16, generator=torch.Generator().manual_seed(0))
    assert crops.shape == (400, 3, 16, 16)
    assert 0 <= crops.min() <= crops.max() <= 1
    mirrored = (crops[:, 0, 0, -1] < crops[:, 0, 0, 0]).float().mean()
    assert 0.4 < mirrored < 0.6
    share = (crops[:, 0, 0].max(1).values - crops[:, 0, 0].min(1).values).mean()
    assert 0.5 < share < 0.9  # sides between sqrt(0.08 * 3 / 4) and 1
    again = crop_and_mirror(ramp, size=16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(crops, again)


def test_retrieval_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, 5, 60), 9)  # the last one is alone
    rows = (np.eye(10)[labels] + rng.normal(size=(61, 10))).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first, ten, average, precision = [], [], [], []
    for i in range(60):
        order = [j for j in np.argsort(-(unit @ unit[i])) if j != i]
        right = (labels[order] == labels[i]).astype(float)
        r = int(right.sum())
        first.append(right[0])
        ten.append(right[:10].max())
        average.append(sum(right[: j + 1].mean() * right[j] for j in range(r)) / r)
        precision.append(right[:r].mean())
    found = search(Features(rows, labels))
    assert found["recall"][0] == pytest.approx(np.mean(first))
    assert found["recall"][2] == pytest.approx(np.mean(ten))
    assert found["map_at_r"] == pytest.approx(np.mean(average))
    assert found["r_precision"] == pytest.approx(np.mean(precision))
    assert found["alone"] == 1


def test_planted_classes_are_retrieved_and_clustered_without_a_mistake():
    labels = np.arange(200) % 10
    features = Features((np.eye(10)[labels] + 0.01 * cloud(200, 10)).astype(np.float32), labels)
    images = from_pixels("digits", "test", np.zeros((200, 8, 8, 3), np.uint8), labels, tuple("0123456789"), "")
    outcomes = retrieval(Task(RawPixels(8), images, images, features, features, 10))
    assert [outcome.value for outcome in outcomes] == pytest.approx([1, 1, 1])
    with pytest.raises(BadData, match="alone in its class"):
        search(Features(cloud(5, 3), np.arange(5)))


def test_fine_tuning_learns_and_leaves_the_encoder_as_it_was(encoder):
    before = fingerprint(encoder.train())
    task = task_of(encoder, open_images("digits", "train").sample(200), open_images("digits", "test").sample(100))
    network = train(task, np.arange(200), Schedule(rate=0.05, decay=0.0, steps=60))
    predicted = answers(network, task.train, np.arange(200), task)
    assert accuracy(predicted, task.bank.labels) > 0.5
    assert not torch.equal(network[0].backbone.conv1.weight, encoder.backbone.conv1.weight)
    assert fingerprint(encoder) == before


def test_fine_tuning_chooses_among_twenty_settings_without_the_test(encoder):
    train_images, test_images = open_images("digits", "train").sample(80), open_images("digits", "test").sample(60)
    task = task_of(encoder, train_images, test_images)
    (outcome,) = finetune(Task(**{**vars(task), "finetune_steps": 2}))
    assert outcome.name == "finetune-2"  # beside one of 5,000 steps, not in its place
    assert len(outcome.extras["held_out"]) == 20
    assert "2 steps" in outcome.protocol
    assert outcome.interval == wilson(outcome.value, 60)
