"""Transformers go through every door that ResNets do: golden embeddings, bundle, publish, verify, export, serve.

The networks are timm's own architectures, made tiny.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from serve_model import card_of, noise

import zoo
from serve.export import export
from serve.session import Session, open_model
from zoo.hub.load import load_encoder
from zoo.hub.published import read_release
from zoo.hub.store import GOLDEN, WEIGHTS, keep, read_card
from zoo.model.backbone import BACKBONES, SWIN, VIT, Backbone
from zoo.model.encoder import new_encoder, save_encoder
from zoo.model.tensors import write_tensors
from zoo.release.bundle import keep_inside
from zoo.release.publish import build_release
from zoo.release.verify import gap, golden_pictures, verify

TINY = {
    "vitnano": Backbone(
        "vit_tiny_patch16_224", 32, "a tiny ViT", multiple=4, **VIT,
        options={"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2},
    ),
    "swinnano": Backbone(
        "swin_tiny_patch4_window7_224", 64, "a tiny Swin", **SWIN,
        options={"embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
    ),
}  # fmt: skip


@pytest.fixture(params=TINY)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run folder with a tiny transformer on 32 px."""
    monkeypatch.setitem(BACKBONES, request.param, TINY[request.param])
    name = f"mocov3-{request.param}-cifar100"
    torch.manual_seed(0)
    encoder = new_encoder(name).eval()
    save_encoder(encoder, tmp_path / name, card_of(encoder, name))
    return tmp_path / name


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.hub.store.BUNDLED", tmp_path / "weights")


STRIDED = {
    "the first token of each row": np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, 0],
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "reversed": np.arange(6, dtype=np.int64)[::-1],
    "column by column": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "broadcast": np.broadcast_to(np.float32(3), (2, 2)),
    "no axis": np.array(7, np.int64),
}


@pytest.mark.parametrize("array", STRIDED.values(), ids=STRIDED)
def test_an_array_of_any_strides_is_stored_as_what_it_is(array: np.ndarray, tmp_path: Path):
    write_tensors(tmp_path / "t.safetensors", {"t": array})
    found = load_file(tmp_path / "t.safetensors")["t"]
    assert found.shape == array.shape
    assert np.array_equal(found, array)


def test_embeddings_are_contiguous_and_the_golden_file_holds_them(run: Path):
    encoder = zoo.load(run)
    build_release(run, "tester/model")
    golden = load_file(run / GOLDEN)
    embeddings = encoder.embed_pixels(golden_pictures(32))
    assert embeddings.flags.c_contiguous
    assert np.array_equal(golden["embeddings"], embeddings)
    assert gap(embeddings[1:], embeddings[:-1]) > 0.01  # rows that are mixed up would not go unnoticed


def test_a_release_is_verified_and_comes_back_bit_for_bit(run: Path):
    folder = build_release(run, "tester/model")
    card, tensors = read_release(folder)
    assert card == replace(read_card(run), parameters=card.parameters)
    assert {k: v.tobytes() for k, v in tensors.items()} == {k: v.tobytes() for k, v in load_file(run / WEIGHTS).items()}
    assert verify(run) == {"torch": 0.0}


def test_a_bundled_model_is_verified(run: Path, inside: None):
    folder, moved = keep_inside(run)
    assert 0 < moved < 1e-2
    assert verify(folder.name) == {"torch": 0.0}


def test_a_kept_model_gives_the_runs_embeddings(run: Path):
    keep(run)
    pictures = [noise(48, 40, 3, seed=seed) for seed in range(3)]
    assert np.array_equal(zoo.load(run.name).embed(pictures), zoo.load(run).embed(pictures))


@pytest.mark.slow
def test_the_exported_model_is_verified_and_served(run: Path):
    build_release(run, "tester/model")
    export(str(run))
    assert verify(run)["onnx"] < 1e-5
    session = open_model(str(run))  # compares itself with the golden embeddings
    pixels = golden_pictures(32)[:3]
    assert isinstance(session, Session)
    assert gap(session.embed_pixels(pixels), load_encoder(run).embed_pixels(pixels)) < 1e-5
