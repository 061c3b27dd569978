"""Fifty steps on a CUDA device, in each way that the loop has there, against the same steps on the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

import zoo
from train.pretrain import pretrain
from train.recipe import find_recipe
from train.run_log import read_log
from train.views import ViewPolicy, Views

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
FIFTY = {"batch_size": 32, "epochs": 10, "warmup_epochs": 1}  # of 160 images: 5 updates an epoch


@pytest.fixture(scope="module", autouse=True)
def fresh_accelerator():
    """Device and precision stand in a state that the whole process shares."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(out: Path, monkeypatch: pytest.MonkeyPatch, *, precision: str, compile: bool, cpu: bool) -> list[float]:
    """The losses after the first update, after each tenth and at the end of each epoch."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    monkeypatch.setenv("ACCELERATE_USE_CPU", str(cpu).lower())
    recipe = replace(find_recipe("simco-r20-digits"), **FIFTY)
    run = pretrain(recipe, out=out, limit=160, knn_every=10, compile=compile)
    card = zoo.load(run).card
    assert card.training["steps"] == 50
    assert card.training["precision"] == precision
    assert cpu or torch.cuda.get_device_name() in str(card.training["hardware"])
    return [line["loss"] for line in read_log(run)]


@pytest.mark.timeout(3600)  # a compiler takes its time
@pytest.mark.parametrize(("precision", "compile"), [("no", False), ("bf16", False), ("no", True), ("bf16", True)])
def test_fifty_steps_learn_what_they_learn_on_the_cpu(precision, compile, tmp_path, monkeypatch):
    """The first losses are of the same weights and views: they part by rounding alone, TF32's or bf16's."""
    cpu = train(tmp_path / "cpu", monkeypatch, precision="no", compile=False, cpu=True)
    gpu = train(tmp_path / "gpu", monkeypatch, precision=precision, compile=compile, cpu=False)
    assert gpu[0] == pytest.approx(cpu[0], abs=0.05)
    assert gpu == pytest.approx(cpu, abs=0.4)  # on one CPU, bf16 and float32 part by 0.16
    assert sum(gpu[-3:]) < sum(gpu[:3]) - 0.3


def test_the_networks_and_the_views_lie_in_channels_last_and_on_the_device(tmp_path, monkeypatch):
    from train.methods.dual_temperature import SimCo

    found, project = [], SimCo.project

    def watched(self, views):
        weight = self.encoder.backbone.layer1[0].conv1.weight
        found.append(
            (weight.is_contiguous(memory_format=torch.channels_last), weight.device.type, views[0].device.type)
        )
        return project(self, views)

    monkeypatch.setattr(SimCo, "project", watched)
    train(tmp_path / "run", monkeypatch, precision="no", compile=False, cpu=False)
    assert set(found) == {(True, "cuda", "cuda")}


def test_making_views_never_waits_for_the_device():
    policy = ViewPolicy(blur=0.5, solarize=0.2)
    pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    views = Views(policy, policy, size=32, seed=0)
    on_cpu, on_gpu = views(pixels, 3)[0], pixels.cuda()
    views(on_gpu, 2)  # what CUDA sets up once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        view1, _ = views(on_gpu, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (view1.cpu() - on_cpu).abs().max() < 1.5 / 255  # TF32 may move a pixel by half a grey level
