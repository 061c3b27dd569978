"""Any network of timm's trains on the user's own images, resumes, and goes through every door; others are refused."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.numpy import load_file

import zoo
from serve.export import export
from serve.session import open_model
from train.own_images import Asked, recipe_for
from train.pretrain import pretrain
from zoo.errors import BadNumber, UnknownName, ZooError
from zoo.hub.store import keep, read_card, sha256
from zoo.model.timm_form import published_input
from zoo.release.publish import build_release
from zoo.release.verify import gap, golden_pictures, verify

SMALL = ("test_convnext", "test_efficientnet", "test_vit")
FAMILIES = (
    "convnext_atto", "efficientnet_b0", "regnety_002", "mobilenetv3_small_100", "densenet121", "resnet18d",
    "vit_small_patch14_reg4_dinov2", "swin_tiny_patch4_window7_224", "vit_tiny_r_s16_p8_224",
)  # fmt: skip


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """A folder of 2 classes of 12 pictures that are no squares."""
    for number in range(24):
        path = tmp_path / "birds" / ("wren", "robin")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (40, 56, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "birds"


def train(backbone: str, birds: Path, out: Path, *, image_size: int = 32, epochs: int = 1) -> Path:
    asked = Asked(data=str(birds), backbone=f"timm:{backbone}", image_size=image_size)
    recipe, _ = recipe_for("simco-mine-birds", asked)
    return pretrain(replace(recipe, epochs=epochs, batch_size=8), data=birds, out=out, knn_every=0)


def opened_by_plain_timm(release: Path, pixels: np.ndarray) -> np.ndarray:
    """Embeddings (n, D) of a published folder, as timm alone computes them."""
    network = timm.create_model(f"local-dir:{release}", pretrained=True, num_classes=0).eval()
    with torch.inference_mode():
        return network(torch.from_numpy(published_input(read_card(release.parent), pixels))).numpy()


@pytest.mark.parametrize("backbone", SMALL)
def test_it_trains_and_opens_from_its_run_its_name_its_release_and_plain_timm(backbone, birds, tmp_path):
    run = train(backbone, birds, tmp_path / "simco-mine-birds")
    encoder, pixels = zoo.load(run), golden_pictures(32)
    embeddings = encoder.embed_pixels(pixels)
    assert encoder.card.network["architecture"] == backbone
    assert encoder.card.expects == "none published"
    assert not np.allclose(encoder.mean.flatten(), 0.5, atol=1e-3)  # the images' own
    keep(run)
    assert np.array_equal(zoo.load("simco-mine-birds").embed_pixels(pixels), embeddings)
    release = build_release(run, "tester/model")
    assert verify(run) == {"torch": 0.0}
    assert np.array_equal(opened_by_plain_timm(release, pixels), embeddings)


def test_a_run_of_it_goes_on_bit_for_bit(birds, tmp_path):
    straight = train("test_convnext", birds, tmp_path / "straight", epochs=2)
    recipe, _ = recipe_for("simco-mine-birds", Asked(data=str(birds), backbone="timm:test_convnext", image_size=32))
    recipe = replace(recipe, epochs=2, batch_size=8)
    program = (
        "import os, sys, signal\nfrom train import run_folder\nsave = run_folder.RunFolder.save\n"
        "def save_and_die(self, done):\n    save(self, done)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_folder.RunFolder.save = save_and_die\n"
        "from train.pretrain import main\nmain()\n"
    )
    words = ["zoo train", "simco-mine-birds", "--data", str(birds), "--backbone", "timm:test_convnext", "--image-size",
             "32", "--epochs", "2", "--warmup-epochs", str(recipe.warmup_epochs), "--batch-size", "8", "--knn-every",
             "0", "--out", str(tmp_path / "killed")]  # fmt: skip
    killed = subprocess.run([sys.executable, "-c", program, *words[1:]], env=os.environ, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    pretrain(recipe, data=birds, out=tmp_path / "killed", knn_every=0)
    assert sha256(tmp_path / "killed" / "model.safetensors") == sha256(straight / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("backbone", FAMILIES)
def test_each_family_trains_and_is_exported_quantized_served_and_opened_by_plain_timm(backbone, birds, tmp_path):
    size = 56 if "patch14" in backbone else 64
    run = train(backbone, birds, tmp_path / "simco-mine-birds", image_size=size)
    pixels = golden_pictures(size)
    embeddings = zoo.load(run).embed_pixels(pixels)
    release = build_release(run, "tester/model")
    assert gap(opened_by_plain_timm(release, pixels), embeddings) < 1e-6
    export(str(run), quantize=True, data=birds)
    assert gap(open_model(str(run)).embed_pixels(pixels), embeddings) < 1e-4
    assert (run / "model.int8.onnx").stat().st_size < (run / "model.onnx").stat().st_size
    assert load_file(run / "model.safetensors").keys() >= {"mean", "std"}


@pytest.mark.parametrize(
    ("name", "asked", "error", "message"),
    [
        ("simco-r18-birds", {"backbone": "timm:convnext_tiny"}, ZooError, "r18 is ResNet-18 .* another second part"),
        ("simco-mine-birds", {}, UnknownName, "unknown backbone 'mine'"),
        ("simco-mine-birds", {"backbone": "timm:convnextt"}, UnknownName, "unknown network of timm 'convnextt'"),
        ("simco-mine-birds", {"backbone": "timm:test_vit", "image_size": 30}, BadNumber, "images of 30 px"),
        ("simcoo-r18-birds", {}, UnknownName, "unknown method 'simcoo'"),
        ("simco-r18-birds", {"image_size": 0}, BadNumber, "image_size = 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(name, asked, error, message, birds):
    with pytest.raises(error, match=message):
        recipe_for(name, Asked(data=str(birds), **asked))
