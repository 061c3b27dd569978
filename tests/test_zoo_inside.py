"""Weights that come with the package: half the size, the same features, under their own name and the bare one."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import zoo
from serve.export import export
from serve.launch import without_onnx
from serve.session import open_model
from zoo.cli.main import main
from zoo.errors import NoWeights, VariantWarning, ZooError
from zoo.hub.resolve import locate
from zoo.hub.store import CARD, GOLDEN, ONNX, WEIGHTS, keep
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder
from zoo.release.bundle import keep_inside
from zoo.release.verify import verify

NAME = "simco-r20-digits-cpu"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `zoo/weights` of its own."""
    monkeypatch.setattr("zoo.hub.store.BUNDLED", tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture
def run(encoder: Encoder, card: Card, tmp_path: Path) -> Path:
    save_encoder(encoder, tmp_path / "run", replace(card, name=NAME, results=()))
    return tmp_path / "run"


def zoo_command(*words: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["zoo", *map(str, words)])
    main()


def test_a_run_put_inside_takes_half_the_bytes_and_opens_as_float32(
    run: Path, inside: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    zoo_command("keep", run, "--inside", monkeypatch=monkeypatch)
    assert f"{inside / NAME}: embeddings differ from the run's by" in capsys.readouterr().out
    assert sorted(path.name for path in (inside / NAME).iterdir()) == [CARD, GOLDEN, WEIGHTS]
    assert (inside / NAME / WEIGHTS).stat().st_size < 0.55 * (run / WEIGHTS).stat().st_size
    found = zoo.load(NAME)
    assert {value.dtype for value in found.state_dict().values()} == {torch.float32, torch.int64}
    expected = encoder.state_dict()
    for key, value in found.state_dict().items():
        rounds = key.startswith("backbone.") and value.ndim > 1
        assert torch.equal(value, expected[key].half().float() if rounds else expected[key]), key


def test_the_card_tells_the_rounding_and_the_golden_embeddings_are_those_of_the_rounded_weights(
    run: Path, inside: Path, encoder: Encoder
):
    folder, moved = keep_inside(run)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    assert 0 < moved < 2e-3
    assert f"in float16; largest change of an embedding {moved:.1e}" in zoo.info(NAME).training["stored"]
    assert verify(NAME) == {"torch": 0.0}
    golden = load_file(folder / GOLDEN)
    own = encoder.embed(list(golden["pixels"]))
    assert np.abs(golden["embeddings"] - own).max() / np.abs(own).max() == pytest.approx(moved)


def test_weights_that_float16_cannot_hold_are_not_put_inside(run: Path, inside: Path, encoder: Encoder, card: Card):
    block = encoder.backbone.layer3[2]
    with torch.no_grad():  # the same function, with a convolution beyond 65504
        block.conv2.weight.mul_(1e7)
        block.bn2.running_mean.mul_(1e7)
        block.bn2.running_var.mul_(1e14)
    save_encoder(encoder, run, replace(card, name=NAME, results=()))
    with pytest.raises(ZooError, match=r"nothing kept: in float16 an embedding of .* moves by nan"):
        keep_inside(run)
    assert not (inside / NAME).exists()


def test_a_second_time_wants_force(run: Path, inside: Path):
    keep_inside(run)
    with pytest.raises(ZooError, match="--force replaces it"):
        keep_inside(run)
    assert keep_inside(run, force=True)[0] == inside / NAME


@pytest.mark.filterwarnings("ignore::zoo.errors.VariantWarning")
def test_the_onnx_file_of_a_bundled_model_is_made_in_the_home(run: Path, inside: Path, home: Path):
    keep_inside(run)
    file = home / "onnx" / NAME / ONNX
    named = ("simco-r20-digits", NAME, str(run), str(inside / NAME), "model.onnx")
    assert without_onnx(named) == ["simco-r20-digits", NAME]  # `zoo serve` makes them first
    assert open_model("simco-r20-digits").path == file
    assert without_onnx(named) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::zoo.errors.VariantWarning")
def test_the_onnx_file_of_a_model_inside_is_made_on_demand_served_and_verified(run: Path, inside: Path, home: Path):
    keep_inside(run)
    with pytest.raises(NoWeights, match=f"onnx/{NAME}/model.onnx is not there. Export it: zoo export simco"):
        open_model("simco-r20-digits")
    assert export("simco-r20-digits") == home / "onnx" / NAME / ONNX
    assert not (inside / NAME / ONNX).exists()
    assert open_model("simco-r20-digits").name == NAME
    assert verify("simco-r20-digits")["onnx"] < 1e-5


# --- the bare name ----------------------------------------------------------------------------------------------------


def test_a_bare_name_without_weights_loads_its_one_variant_and_the_card_says_so(run: Path, inside: Path):
    with pytest.raises(NoWeights, match="not published yet"):
        zoo.load("simco-r20-digits")
    keep_inside(run)
    for find in (lambda: zoo.load("simco-r20-digits").card, lambda: zoo.info("simco-r20-digits")):
        with pytest.warns(VariantWarning, match=f"^simco-r20-digits has no weights of its own: loading {NAME},"):
            assert find().name == NAME


def test_an_exact_name_is_never_answered_with_a_variant(run: Path, inside: Path):
    keep_inside(run)
    with pytest.raises(NoWeights, match=f"its variant has: load {NAME}$"):
        zoo.load("simco-r20-digits", exact=True)
    assert zoo.load(NAME, exact=True).card.name == NAME


def test_the_command_line_says_in_one_line_which_variant_it_took(
    run: Path, inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    keep_inside(run)
    with warnings.catch_warnings(action="default"):
        zoo_command("verify", "simco-r20-digits", monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: simco-r20-digits has no weights of its own: loading {NAME}")
    assert len(said.err.splitlines()) == 1
    assert said.out.startswith("torch: equal")


def test_weights_of_the_bare_name_come_before_those_of_a_variant(
    run: Path, inside: Path, home: Path, encoder: Encoder, card: Card, tmp_path: Path
):
    keep_inside(run)
    save_encoder(encoder, tmp_path / "plain", replace(card, results=()))
    keep(tmp_path / "plain")
    assert locate("simco-r20-digits") == home / "models" / "simco-r20-digits"


def test_several_variants_must_be_told_apart(run: Path, inside: Path, encoder: Encoder, card: Card):
    keep_inside(run)
    save_encoder(encoder, run, replace(card, name="simco-r20-digits-long", results=()))
    keep_inside(run)
    with pytest.raises(NoWeights, match=rf"2 variants have: load {NAME} or simco-r20-digits-long$"):
        locate("simco-r20-digits")


def test_another_name_that_only_begins_alike_is_no_variant(run: Path, inside: Path, encoder: Encoder, card: Card):
    save_encoder(encoder, run, replace(card, name="simco-r20-cifar100", results=(), mean=card.mean))
    keep_inside(run)
    with pytest.raises(ZooError, match="unknown model 'simco-r20-cifar10'"):
        locate("simco-r20-cifar10")


def test_the_list_shows_the_variant_and_what_the_bare_name_loads(
    run: Path, inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    keep_inside(run)
    zoo_command("list", "simco-r20-digits*", monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert f"  loads {NAME}" in lines[1]
    assert lines[2].startswith(NAME)
    assert "0.27 M" in lines[2]
