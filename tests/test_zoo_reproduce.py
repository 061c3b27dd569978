"""`make reproduce`: a checkpoint of the package, trained and measured again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from train.pretrain import pretrain
from train.recipe import find_recipe
from zoo.cli.reproduce import beside, equal_weights, reproduce
from zoo.errors import CorruptFile, NoWeights
from zoo.hub.store import BUNDLED, WEIGHTS, read_card
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder
from zoo.release.bundle import keep_inside


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `zoo/weights` of its own."""
    monkeypatch.setattr("zoo.hub.store.BUNDLED", tmp_path / "weights")
    return tmp_path / "weights"


def test_weights_are_the_same_or_not_as_they_were_before_rounding(
    encoder: Encoder, card: Card, inside: Path, tmp_path: Path
):
    save_encoder(encoder, tmp_path / "run", card)
    folder, _ = keep_inside(tmp_path / "run")
    assert equal_weights(tmp_path / "run", folder)
    tensors = load_file(tmp_path / "run" / WEIGHTS)
    key = "backbone.conv1.weight"
    save_file(tensors | {key: tensors[key] + np.float32(0.01)}, tmp_path / "run" / WEIGHTS)
    assert not equal_weights(tmp_path / "run", folder)


def test_the_row_of_the_package_and_the_new_one_stand_in_one_table_without_other_data_sets():
    shipped = read_card(BUNDLED / "simco-r20-cifar100")
    row = next(row for row in shipped.results if row["key"].startswith("knn/cifar100/simco"))
    text = beside(shipped, replace(shipped, results=(row | {"value": 0.25},)))
    assert "| simco-r20-cifar100 | 64 | 32.37 [" in text
    assert "| simco-r20-cifar100, again | 64 | 25.00 [" in text
    assert "signdigits" not in text
    mean = row | {"key": f"seeds/{row['key']}", "protocol": "k-NN; mean ± std over trainings", "value": 0.321}
    mean |= {"trainings": {}, "ci95": None, "std": 0.004, "trained": 3, "started": 3}
    text = beside(shipped.with_result(mean), replace(shipped, results=(row,)))
    assert "| simco-r20-cifar100 | 64 | 32.10 ± 0.40 (3 trainings) |" in text


def test_a_name_without_weights_inside_is_an_error(inside: Path):
    with pytest.raises((CorruptFile, NoWeights), match="simco-r20-digits"):
        reproduce("simco-r20-digits")


@pytest.mark.slow
def test_a_training_again_has_the_same_weights_and_its_row_stands_beside_the_packages(
    inside: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    keep_inside(pretrain(find_recipe("simco-r20-digits"), out=tmp_path / "run", knn_every=0))
    reproduce("simco-r20-digits", out=tmp_path / "again")
    assert "the same, bit for bit" in capsys.readouterr().out
