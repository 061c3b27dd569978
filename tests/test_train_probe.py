"""The online probe learns from labels beside the encoder, which learns nothing from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from train.batches import monitored_images
from train.method import Batch, loss_of
from train.monitor import held_out, held_out_features, labelled_features
from train.probe import MOMENTUM, RATE, OnlineProbe, probe_beside
from train.recipe import find_recipe
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder, new_encoder


@pytest.fixture
def digits() -> ImageSet:
    return open_images("digits", "train").sample(240)


def test_the_probe_takes_the_steps_of_sgd_with_momentum_on_the_mean_cross_entropy_of_known_labels(encoder: Encoder):
    labels = np.array([3, -1, 0, 7])
    probe = OnlineProbe(encoder.train(), labels, 10)
    classifier = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(classifier.weight)
    torch.nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=RATE * 0.5, momentum=MOMENTUM)
    for images in (np.array([0, 1, 2, 3]), np.array([2, 0, 1, 3])):
        views = torch.rand(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(int(images[0])))
        features = torch.cat([encoder(view) for view in views]).detach()
        known = torch.tensor(labels[images]).repeat(2)
        optimizer.zero_grad()
        F.cross_entropy(classifier(features), known, ignore_index=-1).backward()
        optimizer.step()
        probe.learn(images, rate=0.5, chunk=4)
    assert torch.allclose(probe.weight, classifier.weight, atol=1e-6)
    assert torch.allclose(probe.bias, classifier.bias, atol=1e-6)
    assert probe.weight.abs().max() > 1e-3


def test_a_batch_without_labels_moves_nothing(encoder: Encoder):
    probe = OnlineProbe(encoder.train(), np.array([-1, -1]), 10)
    encoder(torch.rand(2, 3, 8, 8))
    probe.learn(np.array([0, 1]), rate=1.0, chunk=2)
    assert torch.equal(probe.weight, torch.zeros(10, 64))


def test_the_probe_does_not_learn_from_features_computed_outside_training(encoder: Encoder, digits: ImageSet):
    probe = OnlineProbe(encoder, digits.labels, 10)
    encoder.embed_pixels(np.asarray(digits.pixels()))
    with torch.no_grad():
        encoder.train()(torch.rand(2, 3, 8, 8))
    features = encoder(torch.rand(2, 3, 8, 8))
    probe.learn(np.array([0, 1]), rate=1.0, chunk=2)
    error = torch.full((2, 10), 0.1) - F.one_hot(torch.tensor(digits.labels[:2]), 10)
    assert torch.allclose(probe.weight, -RATE * error.T @ features.detach() / 2, atol=1e-6)


def test_the_encoder_of_a_run_with_labels_is_the_one_without_bit_for_bit(digits: ImageSet):
    """Parameters, statistics and momentum encoder; and the generator of random numbers stands where it stood."""
    states, marks = [], []
    for split in (digits, replace(digits, labels=np.full(240, -1))):
        torch.manual_seed(0)
        recipe = replace(find_recipe("simmoco-r18-cifar100"), name="simmoco-r20-digits")
        method = recipe.method(new_encoder(recipe.name))
        probe = probe_beside(method, split, np.arange(240))
        optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
        for step in range(3):
            views = tuple(torch.rand(2, 16, 3, 8, 8, generator=torch.Generator().manual_seed(step)))
            outcome = loss_of(method, method.project(views), Batch(views, torch.arange(16), 0.5))
            outcome.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            method.after_step(outcome, 0.5)
            if probe:
                probe.learn(np.arange(16 * step, 16 * step + 16), rate=1.0, chunk=16)
        marks.append(torch.rand(1))
        states.append(method.state_dict())
    assert any("probe" in key for key in states[0])
    assert not any("probe" in key for key in states[1])
    assert all(torch.equal(value, states[0][key]) for key, value in states[1].items())
    assert torch.equal(*marks)


def test_the_probe_never_sees_the_labels_of_held_out_images_and_learns_to_name_them(digits: ImageSet):
    recipe = find_recipe("simco-r20-digits")
    torch.manual_seed(0)
    method = recipe.method(new_encoder(recipe.name))
    probe = probe_beside(method, digits, np.arange(240))
    hidden = np.flatnonzero(probe.labels < 0)
    assert set(hidden) == set(np.flatnonzero(held_out(240)))
    features = labelled_features(method.encoder, digits)
    unseen = held_out_features(features)
    assert np.array_equal(unseen.labels, digits.labels[hidden])
    assert probe.accuracy(unseen) == (unseen.labels == 0).mean()  # it has learnt nothing, and says 0 to all
    for step in range(60):
        images = np.random.default_rng(step).choice(240, 60, replace=False)
        method.encoder.train()(torch.from_numpy(digits.pixels()[images]).permute(0, 3, 1, 2) / 255)
        probe.learn(images, rate=1.0, chunk=60)
    assert probe.accuracy(held_out_features(labelled_features(method.encoder, digits))) > 0.5


def test_monitored_images_come_with_their_indices(monkeypatch: pytest.MonkeyPatch, digits: ImageSet):
    monkeypatch.setattr("train.batches.MONITORED", 50)
    monitored, indices = monitored_images(digits, 8)
    assert len(indices) == 50
    assert np.array_equal(monitored.pixels(), digits.pixels()[indices])
    assert np.array_equal(monitored.labels, digits.labels[indices])
