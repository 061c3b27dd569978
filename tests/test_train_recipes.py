"""Every recipe builds what its name says; every kind of recipe trains, and goes on after a stop to the same state."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import zoo
from train.pretrain import pretrain
from train.recipe import Recipe, find_recipe, recipes
from train.run_log import read_log
from zoo.backbone import BACKBONES
from zoo.encoder import new_encoder
from zoo.names import parse_name

# Each method once, and each optimiser, schedule and head.
KINDS = (
    "simclr-r18-cifar10", "simclr-r18-cifar100-solo", "mocov1-r50-in1k", "mocov2-r18-cifar100-paper",
    "mocov2plus-r18-in100", "mocov3-r50-in1k", "mocov3-vits16-in1k", "simmoco-r18-cifar100",
    "simmocoplus-r18-cifar10", "simco-r18-cifar100",
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
    numbers = {"queue_size": 24, "hidden": 32} if getattr(recipe, "hidden", 0) else {"queue_size": 24}
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
    before = load_file(first)
    assert any(not torch.equal(before[key], value) for key, value in theirs.items() if key.startswith("method.encoder"))


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
