"""What a number may not depend on, what it must be where the answer is known, and what bad input is told."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from serve_http import free_port

from eval.contestants import Contestant, fingerprint
from eval.features import RawPixels
from eval.intervals import wilson
from eval.knn import knn_predict
from eval.score import score
from eval.sources import Processes, features_of, in_one_order, open_source
from eval.tables import markdown
from zoo.errors import BadData, CorruptFile, ZooError
from zoo.hub.load import load_encoder
from zoo.hub.store import read_card
from zoo.images.image_set import ImageSet, from_pixels
from zoo.images.opening import open_images
from zoo.model.embedding import unit_rows
from zoo.model.encoder import save_encoder

ROOT = Path(__file__).parents[1]
DETERMINED = ["knn", "ridge", "fewshot", "retrieval", "geometry"]
DRAWN = ["linear", "labels", "linear-sgd", "linear-augmented", "finetune"]


def values(monkeypatch, *, order: int | None = None, batch: int = 256, protocols: list[str]) -> dict:
    """The values on digits of an untrained network, the images in another order, in batches of another size."""

    def shuffled(name: str, split: str, *_) -> ImageSet:
        found = open_images(name, split).sample(150 if split == "train" else 60)
        index = np.arange(len(found)) if order is None else np.random.default_rng(order).permutation(len(found))
        return found.part(index, digest=f"{found.digest}{order}")

    monkeypatch.setattr("eval.sources.open_images", shuffled)
    monkeypatch.setattr("eval.measure.features_of", lambda c, s, g: features_of(c, s, g, batch_size=batch))
    rows = score("random:r20", data={"digits": None}, protocols=protocols, finetune_steps=3)
    return {row.key: row.value for row in rows}


@pytest.mark.parametrize("protocols", [DETERMINED, pytest.param(DRAWN, marks=pytest.mark.slow)], ids=" ".join)
def test_no_value_depends_on_the_order_of_the_images(monkeypatch, protocols):
    assert values(monkeypatch, order=1, protocols=protocols) == values(monkeypatch, protocols=protocols)


def test_no_value_depends_on_the_batch_size(monkeypatch, tmp_path):
    whole = values(monkeypatch, protocols=DETERMINED)
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))  # nothing is cached there yet
    small = values(monkeypatch, batch=7, protocols=DETERMINED)
    assert small == pytest.approx(whole, rel=1e-3)
    assert [v for k, v in small.items() if "knn" in k] == [v for k, v in whole.items() if "knn" in k]


@pytest.mark.slow
def test_two_processes_of_accelerate_write_the_numbers_of_one(tmp_path):
    found = []
    launch = ["-m", "accelerate.commands.launch", "--num_machines", "1", "--num_processes"]
    for processes, kind in ((1, "--cpu"), (2, "--multi_gpu")):
        out = tmp_path / str(processes)
        words = ["-m", "eval.score", "random:r20", "--data", "digits", "--protocol", "knn,ridge,retrieval", "--out"]
        environment = os.environ | {"ZOO_HOME": str(out / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *launch, str(processes), kind, "--main_process_port", str(free_port()), *words, str(out)],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("| random r20 |") == 5  # the first process alone prints
        rows = json.loads((out / "results.json").read_text())
        found.append([(row["key"], row["value"], row["ci95"], row["encoder_sha256"]) for row in rows])
        assert not list((out / "home").rglob("*.blocks"))
    assert found[0] == found[1]


def test_equal_images_with_other_labels_have_one_order_too():
    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    pixels[2] = 9
    split = from_pixels("digits", "train", pixels, np.array([3, 1, 0, 2]), tuple("0123456789"), "a")
    back = split.part(np.arange(4)[::-1], digest=split.digest)
    assert in_one_order(split).labels.tolist() == in_one_order(back).labels.tolist()
    assert in_one_order(split).digest != split.digest


class Planted(RawPixels):
    """Digits whose label is written into the first pixel; the feature is that label alone."""

    def __init__(self) -> None:
        super().__init__(8)
        self.dim = 10

    def embed_pixels(self, pixels):
        return np.eye(10, dtype=np.float32)[pixels[:, 0, 0, 0]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_planted_encoder_is_always_right_and_on_shuffled_labels_no_better_than_chance(monkeypatch, shuffle):
    def planted(name: str, split: str, *_) -> ImageSet:
        found = open_images(name, split)
        pixels = found.pixels().copy()
        pixels[:, 0, 0, 0] = found.labels
        labels = np.random.default_rng(0).permutation(found.labels) if shuffle else found.labels
        return replace(found, array=pixels, labels=labels)

    monkeypatch.setattr("eval.sources.open_images", planted)
    monkeypatch.setattr("eval.score.open_contestant", lambda *_, **__: Contestant("planted", Planted(), ""))
    rows = score("planted:", data={"digits": None}, protocols=["knn", "linear", "linear-sgd", "ridge", "fewshot"])
    rows += score("planted:", data={"digits": None}, protocols=["labels"])
    assert len(rows) == 10
    for row in rows:
        if shuffle:
            assert row.value <= wilson(0.1, 359, z=3)[1] + 0.02, row.key  # the largest class has 11 %
        else:
            assert row.value == 1.0, row.key


def test_batch_normalisation_is_never_in_training_mode_while_features_are_made(tiny_run):
    encoder = load_encoder(tiny_run).train()
    modes = []
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    before = fingerprint(encoder)
    source = open_source("digits", None, max_train=40, max_test=20)
    features_of(Contestant("r20", encoder, before), source, Processes())
    assert len(modes) >= 20
    assert not any(modes)
    assert fingerprint(encoder) == before


def test_fewer_train_images_than_k_take_the_largest_k_there_is_and_say_it():
    (row,) = score("pixels:", data={"digits": None}, max_train=15, max_test=20)
    assert "k = 10," in row.protocol
    assert list(row.extras["by_k"]) == ["1", "5", "10"]
    assert row.value == row.extras["by_k"]["10"]


def test_images_without_a_label_are_left_out_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    for split, n in {"train": 12, "test": 4}.items():
        for where in ("a", "b", "."):  # what lies beside the class folders has no label
            (tmp_path / split / where).mkdir(parents=True, exist_ok=True)
            for i in range(n):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / split / where / f"{i}.png")
    (row,) = score("pixels:", data={"digits": tmp_path})
    assert (row.data.n_train, row.data.n_test, row.data.unlabelled) == (24, 8, 16)
    assert "16 images without a label left out" in markdown([row])


def test_features_that_are_not_finite_end_a_measurement(tiny_run, encoder):
    encoder.backbone.bn1.weight.data.fill_(3e38)  # finite weights, infinite features
    save_encoder(encoder, tiny_run, replace(read_card(tiny_run), weights=None))
    with pytest.raises(BadData, match="features are not finite; did the training diverge"):
        score(tiny_run, max_train=30, max_test=20)
    assert read_card(tiny_run).results == ()


def test_splits_that_number_their_classes_differently_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    for split, names in {"train": "0123456789", "test": "1023456789"}.items():
        images = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(10)]
        kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
        table = datasets.Dataset.from_dict({"image": images, "label": list(range(10))}, datasets.Features(kinds))
        table.to_parquet(tmp_path / f"{split}-00000.parquet")
    with pytest.raises(BadData, match="train and test do not have the same classes; different: the order"):
        score("pixels:", data={"digits": tmp_path})


def test_rows_of_another_version_and_damaged_ones_are_told_which_file_to_delete(tmp_path):
    few = {"data": {"digits": None}, "max_train": 30, "max_test": 20, "out": tmp_path}
    (row,) = score("pixels:", **few)
    (path,) = (tmp_path / "rows").iterdir()
    old = row.to_row()
    del old["unit"]
    path.write_text(json.dumps([old]))
    with pytest.raises(
        CorruptFile, match=f"{path.name}.*lacks unit; another version wrote it. Measure again: delete {path.name}"
    ):
        score("pixels:", **few)
    path.write_text("[")
    with pytest.raises(CorruptFile, match=f"{path.name}.*Delete it, and measure again"):
        score("pixels:", **few)


def test_a_full_disk_leaves_no_half_row_and_is_one_line(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = {"data": {"digits": None}, "max_train": 30, "max_test": 20, "out": tmp_path}
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(ZooError, match="cannot write") as told:
            score("pixels:", **source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(told.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(score("pixels:", **source)) == 1


class Scaled(RawPixels):
    """Raw pixels in other units."""

    def __init__(self, factor: float) -> None:
        super().__init__(8)
        self.factor = np.float32(factor)

    def embed_pixels(self, pixels):
        return super().embed_pixels(pixels) * self.factor


@pytest.mark.parametrize("exponent", [-100, -40, 62, 63, 66, 100, 126])
def test_no_value_depends_on_the_unit_of_the_features(monkeypatch, exponent):
    """2^63 is 9e18, whose square overflows; powers of two round nothing, so the values are equal to the digit."""
    protocols = ["knn", "ridge", "linear", "fewshot", "retrieval", "geometry"]

    def measured(factor: float) -> dict:
        monkeypatch.setattr("eval.score.open_contestant", lambda *_, **__: Contestant("x", Scaled(factor), ""))
        rows = score("x:", data={"digits": None}, protocols=protocols, max_train=120, max_test=50)
        return {row.key: row.value for row in rows}

    assert measured(2.0**exponent) == pytest.approx(measured(1.0), rel=1e-5)


def test_rows_of_very_unlike_lengths_keep_their_directions():
    rows = np.array([[3, 4], [3e30, 4e30], [3e-30, 4e-30], [0, 0]], np.float32)
    assert unit_rows(rows) == pytest.approx(np.array([[0.6, 0.8]] * 3 + [[0, 0]]))
    votes = knn_predict(rows[:3] * np.array([[1, 1], [1, -1], [1, 1]]), np.array([0, 1, 0]), rows[1:2], ks=(1,))
    assert votes[1, 0.07].tolist() == [0]
