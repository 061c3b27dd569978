"""Every recipe builds what its name says; every kind of recipe trains, and goes on after a stop to the same state."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import zoo
from train.method import Method
from train.pretrain import pretrain
from train.recipe import Recipe, find_recipe, recipes
from train.run_log import read_log
from zoo.errors import BadNumber
from zoo.model.backbone import BACKBONES
from zoo.model.encoder import new_encoder
from zoo.names import parse_name

# Each method once, and each optimiser, schedule and head.
KINDS = (
    "simclr-r18-cifar10", "simclr-r18-cifar100-solo", "mocov1-r50-in1k", "mocov2-r18-cifar100-paper",
    "mocov2plus-r18-in100", "mocov3-r50-in1k", "mocov3-vits16-in1k", "simmoco-r18-cifar100",
    "simmocoplus-r18-cifar10", "simco-r18-cifar100", "membank-r18-cifar10",
)  # fmt: skip


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_builds_its_method_around_its_backbone(name: str):
    recipe, parts = find_recipe(name), parse_name(name)
    with torch.device("meta"):  # shapes without numbers
        method = recipe.method(new_encoder(name))
    assert method.encoder.dim == BACKBONES[parts.backbone].dim == recipe.card().dim
    start, floor = method.loss_range(recipe.batch_size)
    assert 0 <= floor < start < 34
    assert any(p.requires_grad for p in method.projector.parameters())


def small(name: str) -> Recipe:
    """The recipe's numbers on a small network, a queue that wraps and 16 digits of 8 px, one step an epoch."""
    recipe = find_recipe(name)
    method, backbone, *_ = parse_name(name)
    network = "vitt4" if backbone.startswith("vit") else "r20"
    numbers = {"queue_size": 24, "negatives": 24} | ({"hidden": 32} if getattr(recipe, "hidden", 0) else {})
    numbers = {key: value for key, value in numbers.items() if hasattr(recipe, key)}
    return replace(recipe, name=f"{method}-{network}-digits", batch_size=16, epochs=2, **numbers)


@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_takes_two_steps_and_resumes_exactly(name: str, tmp_path: Path, monkeypatch):
    recipe = small(name)
    catalogue = recipes() | {recipe.name: recipe}
    monkeypatch.setattr("train.recipe.recipes", lambda: catalogue)  # the run's card asks for the recipe by its name
    whole = pretrain(recipe, limit=16, out=tmp_path / "whole", knn_every=0)
    losses = [line["loss"] for line in read_log(whole)]
    _, floor = recipe.method(zoo.load(whole)).loss_range(16)
    assert len(losses) == 2
    assert all(floor < loss < math.inf for loss in losses)
    first, last = sorted((whole / "checkpoints").glob("step-*"))
    (tmp_path / "again/checkpoints").mkdir(parents=True)
    shutil.copy(first, tmp_path / "again/checkpoints")
    again = pretrain(recipe, limit=16, out=tmp_path / "again", knn_every=0)
    ours, theirs = (load_file(folder / "checkpoints" / last.name) for folder in (again, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    assert ours["method.probe.weight"].abs().max() > 0  # the online probe has learnt, and goes on, too
    assert not any("probe" in key for key in load_file(whole / "model.safetensors"))
    before = load_file(first)
    assert any(not torch.equal(before[key], value) for key, value in theirs.items() if key.startswith("method.encoder"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in recipes() if name not in KINDS and "digits" not in name])
def test_every_recipe_takes_two_steps_and_resumes_exactly(name: str, tmp_path: Path, monkeypatch):
    test_a_recipe_takes_two_steps_and_resumes_exactly(name, tmp_path, monkeypatch)


def test_a_run_in_chunks_is_the_run_at_once_where_no_batch_is_normalised(tmp_path: Path, monkeypatch):
    """SimMoCo on a vision transformer has none, in its head neither."""
    recipe = replace(find_recipe("simmoco-r18-cifar10"), name="simmoco-vitt4-digits", batch_size=16, epochs=2)
    catalogue = recipes() | {recipe.name: recipe}
    monkeypatch.setattr("train.recipe.recipes", lambda: catalogue)
    states = {}
    for chunk in (0, 4):
        folder = pretrain(recipe, limit=16, out=tmp_path / str(chunk), knn_every=0, chunk=chunk)
        states[chunk] = load_file(folder / "model.safetensors")
    for key, value in states[0].items():
        assert torch.allclose(states[4][key], value, atol=1e-5), key


@pytest.mark.parametrize(
    ("name", "number", "value"),
    [
        ("mocov2-r18-cifar10", "key_momentum", 1.1),
        ("mocov2-r18-cifar10", "final_key_momentum", -0.1),
        ("membank-r18-cifar10", "row_momentum", 1.0),
        ("mocov2-r18-cifar10", "queue_size", 0),
        ("membank-r18-cifar10", "negatives", 0),
        ("simclr-r18-cifar10", "layers", 0),
        ("mocov2-r18-cifar10", "hidden", -1),
    ],
)
def test_numbers_of_one_method_are_checked_as_those_of_all(name: str, number: str, value: float):
    with pytest.raises(BadNumber, match=f"^{number} = {value}; "):
        replace(find_recipe(name), **{number: value})


@pytest.mark.parametrize("name", ["simco-r20-digits", "mocov3-vitt4-cifar10"])
def test_a_head_that_needs_a_hidden_layer_is_refused_without(name: str):
    with pytest.raises(BadNumber, match="hidden = 0; at least 1"):
        replace(find_recipe(name), hidden=0).method(new_encoder(name))


def test_progressive_resizing_gives_each_size_an_equal_part_of_the_epochs():
    recipe = replace(find_recipe("simco-r20-cifar100"), epochs=10, sizes=(16, 24, 32, 32))
    assert [recipe.size_at(epoch, 48) for epoch in (0, 2.49, 2.5, 4.99, 5, 9.99)] == [16, 16, 24, 24, 32, 32]
    assert replace(recipe, sizes=()).size_at(9.99, 48) == 48
    with pytest.raises(BadNumber, match=r"sizes = \(16, 0\); allowed: pixels"):
        replace(recipe, sizes=(16, 0))


def test_a_transformer_is_trained_at_its_own_size_alone():
    with pytest.raises(BadNumber, match=r"sizes = \(16, 32\); vit_tiny_patch16_224 takes images of one size"):
        replace(find_recipe("mocov3-vitt4-cifar100"), sizes=(16, 32))


def test_a_run_goes_through_its_sizes_step_by_step(tmp_path, monkeypatch):
    seen = []
    forward = Method.forward
    monkeypatch.setattr(
        Method, "forward", lambda self, views: seen.append(tuple(v.shape[2] for v in views)) or forward(self, views)
    )
    recipe = replace(find_recipe("simco-r20-digits"), epochs=2, batch_size=64, sizes=(5, 6, 8, 8))
    pretrain(recipe, out=tmp_path / "run", limit=128, knn_every=0)
    assert seen == [(5, 5), (6, 6), (8, 8), (8, 8)]
