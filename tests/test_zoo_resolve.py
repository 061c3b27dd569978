"""Names, versions and what a name loads; whatever is written under a name is read back under it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from serve.launch import without_onnx
from zoo.cli.main import main
from zoo.errors import CorruptFile, NoWeights, UnknownName, ZooError
from zoo.hub import store
from zoo.hub.resolve import known_card, locate
from zoo.hub.store import CARD, ONNX, WEIGHTS, keep, onnx_file, read_card
from zoo.hub.versions import VERSIONS
from zoo.model.card import Card
from zoo.model.encoder import Encoder, save_encoder
from zoo.release.bundle import keep_inside
from zoo.release.verify import verify, write_golden

NAME = "simco-r20-digits"
PICTURE = [np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)]


@pytest.fixture
def bundled(encoder: Encoder, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the weights of NAME; it is the only model there."""
    monkeypatch.setattr("zoo.hub.store.BUNDLED", tmp_path / "weights")
    save_encoder(encoder, tmp_path / "weights" / NAME, replace(card, results=()))
    return tmp_path / "weights" / NAME


@pytest.fixture
def another(encoder: Encoder, card: Card, tmp_path: Path) -> Path:
    """Another training of the same recipe."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.1)
    save_encoder(encoder, tmp_path / "runs" / NAME, replace(card, results=(), expects="mine"))
    return tmp_path / "runs" / NAME


def zoo_command(*words: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["zoo", *map(str, words)])
    main()


# --- what was kept is what the name gives -----------------------------------------------------------------------------


def test_a_kept_run_is_what_its_name_loads_also_where_the_package_has_weights_of_that_name(
    bundled: Path, another: Path, home: Path
):
    assert locate(NAME) == bundled
    keep(another)
    assert np.array_equal(zoo.load(NAME).embed(PICTURE), zoo.load(another).embed(PICTURE))
    assert not np.allclose(zoo.load(NAME).embed(PICTURE), zoo.load(bundled).embed(PICTURE), rtol=1e-3)
    assert locate(NAME) == home / "models" / NAME


def test_every_door_gives_the_kept_run(
    bundled: Path, another: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    keep(another)
    assert zoo.info(NAME).expects == known_card(NAME).expects == "mine"
    for words in (("info", NAME), ("info", f"{NAME}@{read_card(another).weights.sha256[:8]}")):
        zoo_command(*words, monkeypatch=monkeypatch)
        assert '"expects": "mine"' in capsys.readouterr().out
    write_golden(zoo.load(another), locate(NAME) / "golden.safetensors")
    assert verify(NAME) == {"torch": 0.0}
    assert without_onnx((NAME,)) == [NAME]
    assert onnx_file(locate(NAME)) == locate(NAME) / ONNX  # beside the kept weights, not in $ZOO_HOME/onnx


def test_the_command_that_keeps_says_where_and_the_name_finds_it_there(
    bundled: Path, another: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    zoo_command("keep", another, monkeypatch=monkeypatch)
    assert capsys.readouterr().out == f"{home / 'models' / NAME}\n" == f"{locate(NAME)}\n"


def test_weights_that_a_kept_run_would_hide_are_not_bundled(bundled: Path, another: Path):
    keep(another)
    before = (bundled / WEIGHTS).read_bytes()
    with pytest.raises(ZooError, match=rf"models/{NAME} is what {NAME} loads, which would hide the bundled"):
        keep_inside(another, force=True)
    assert (bundled / WEIGHTS).read_bytes() == before


# --- versions ---------------------------------------------------------------------------------------------------------


def test_the_last_version_of_every_bundled_model_is_what_is_bundled():
    bundled = {path.parent.name: read_card(path.parent).weights.sha256 for path in store.BUNDLED.glob(f"*/{CARD}")}
    assert {name: digests[-1] for name, digests in VERSIONS.items()} == bundled


def test_a_version_is_the_same_weights_whatever_the_bare_name_loads(
    bundled: Path, another: Path, monkeypatch: pytest.MonkeyPatch
):
    first = read_card(bundled).weights.sha256
    monkeypatch.setitem(VERSIONS, NAME, (first,))
    keep(another)
    assert locate(f"{NAME}@v1") == locate(f"{NAME}@{first}") == locate(f"{NAME}@{first[:8]}") == bundled
    assert zoo.load(f"{NAME}@{read_card(another).weights.sha256[:12]}").card.expects == "mine"


def test_a_version_that_is_not_here_is_never_answered_with_another(
    bundled: Path, another: Path, monkeypatch: pytest.MonkeyPatch
):
    first = read_card(bundled).weights.sha256
    monkeypatch.setitem(VERSIONS, NAME, (first, "0" * 64))
    for version in ("v2", "0" * 12):
        with pytest.raises(NoWeights, match=rf"{version} \(sha256 0+\.\.\.\) are not here; here: .*{first[:12]}"):
            zoo.load(f"{NAME}@{version}")
    keep_inside(another, force=True)  # the package's next release
    with pytest.raises(NoWeights, match="install the version of this package that came with them"):
        zoo.load(f"{NAME}@v1")


@pytest.mark.parametrize("version", ["v3", "v0", "1", "", "latest", "abc", "v1@v1"])
def test_an_unknown_version_is_told_the_known_ones(bundled: Path, version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(VERSIONS, NAME, ("1" * 64, read_card(bundled).weights.sha256))
    with pytest.raises(UnknownName, match=rf"unknown version '{version}' of {NAME}; known: {NAME}@v1, {NAME}@v2"):
        zoo.load(f"{NAME}@{version}")


def test_a_version_of_a_folder_with_the_card_of_another_model_is_refused(bundled: Path):
    bundled.rename(bundled.with_name("simclr-r20-digits"))
    with pytest.raises(CorruptFile, match=f"holds the card of {NAME}"):
        zoo.load("simclr-r20-digits@v1")


# --- what somebody meant ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SimCo-R20-CIFAR100", r"Nearest: simco-r20-cifar100$"),
        ("simco_r20_cifar100", r"Nearest: simco-r20-cifar100$"),
        ("simco r20 cifar100", r"Nearest: simco-r20-cifar100$"),
        (" simco-r20-cifar100 ", r"Nearest: simco-r20-cifar100$"),
        ("simco-r18", r"Nearest: simco-r18-cifar10, simco-r18-cifar100, .*and \d+ more$"),
        ("simco", r"Nearest: simco-r18-cifar10, "),
        ("simmco-r20-cifar100", r"nearest: .*simco-r20-cifar100"),
        ("simco-r19-cifar100", r"unknown backbone 'r19'; nearest: .*r18"),
        ("resnet50", r"resnet50 is an architecture\. .*mocov1-r50-in1k.* timm's own weights: timm/resnet50\.TAG"),
        ("ResNet-18", r"ResNet-18 is an architecture\. Models of the zoo with it: \w+-r18-"),
        (
            "vit_base_patch16_224",
            r"Models of the zoo with it: mocov3-vitb16-in1k, mocov3-vitb16-in1k-mm\. timm's own",
        ),
    ],
)
def test_a_near_miss_is_told_the_name_it_missed(text: str, said: str):
    for act in (zoo.load, zoo.info):
        with pytest.raises(UnknownName, match=said):
            act(text)


@pytest.mark.parametrize("text", ["facebook/dinov2-small", "microsoft/resnet-50"])
def test_a_repository_without_its_scheme_is_told_the_form_of_an_address(text: str):
    for act in (zoo.load, zoo.info):
        with pytest.raises(NoWeights, match=f"not there; .*On the Hugging Face Hub it would be hf://{text}$"):
            act(text)


@pytest.mark.parametrize("act", [zoo.load, zoo.info, locate])
def test_a_nonsense_name_gets_no_hint(act: Callable[[str], object]):
    with pytest.raises(UnknownName, match=r"'qqqq' is not a model name") as caught:
        act("qqqq")
    assert "earest" not in str(caught.value)
