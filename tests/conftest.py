"""Shared by all tests: a home of their own, and a small encoder that looks trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from zoo.model.card import Card
    from zoo.model.encoder import Encoder

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny networks: threads that wait for each other only cost time
os.environ.setdefault("WANDB_MODE", "disabled")  # where it is installed, no test speaks to it

REALDATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`$ZOO_HOME` of one test: models and caches of the machine are neither read nor written."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("ZOO_HOME", str(folder))
    return folder


@pytest.fixture
def encoder() -> Encoder:
    """ResNet-20 on 8 px digits with reproducible weights; its batch norm has statistics and scales of its own."""
    import torch

    from zoo.model.encoder import new_encoder

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = new_encoder("simco-r20-digits")
        for module in fresh.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                torch.nn.init.normal_(module.bias, 0, 0.1)
    return fresh.eval()


@pytest.fixture
def card() -> Card:
    """The card of `encoder`, weights not yet written."""
    from zoo.images.dataset import dataset_row
    from zoo.model.card import Card

    row = dataset_row("digits")
    return Card(
        name="simco-r20-digits",
        paper="Zhang et al. 2022",
        image_size=row.image_size,
        mean=row.mean,
        std=row.std,
        dim=64,
        expects="none published",
        recipe={"temperature": 0.07, "epochs": 3},
        results=({"key": "digits knn", "value": 0.5},),
    )


@pytest.fixture
def realdata() -> Path:
    """The folder of full data sets; the test is skipped where it is absent."""
    if not REALDATA.is_dir():
        pytest.skip("no data folder ../shared/data beside the repository")
    return REALDATA


@pytest.fixture
def tiny_run(encoder: Encoder, card: Card, tmp_path: Path) -> Path:
    """A run folder with `encoder`, not yet measured."""
    from dataclasses import replace

    from zoo.model.encoder import save_encoder

    save_encoder(encoder, tmp_path / "run", replace(card, results=()))
    return tmp_path / "run"


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared-home")


@pytest.fixture
def cifar100(realdata: Path, shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-100's Parquet folder; decoded once for all tests that ask for it."""
    monkeypatch.setenv("ZOO_HOME", str(shared_home))
    return realdata / "cifar100"


@pytest.fixture
def fake_cifar(tmp_path: Path) -> Path:
    """An image folder of 3 classes x 8 train and 2 test images of 32 px, smooth random pictures."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, n in {"train": 8, "test": 2}.items():
        for label in ("apple", "bear", "cloud"):
            folder = tmp_path / "fake-cifar" / split / label
            folder.mkdir(parents=True)
            for index in range(n):
                coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
                coarse.resize((32, 32), Image.Resampling.BICUBIC).save(folder / f"{index}.png")
    return tmp_path / "fake-cifar"
