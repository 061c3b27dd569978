"""Checkpoints that are ambiguous, or not the model of the name that they are given, are refused with the reason."""

from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    cases,
    resnet,
    solo,
    under,
    written,
)

from zoo.errors import UnknownName, ZooError
from zoo.hub.convert import convert as convert_file
from zoo.hub.layouts import layout_of

BARE = {
    "its backbone alone": lambda: resnet(224),
    "supervised, torchvision's": lambda: resnet(224) | under("fc.", {"weight": torch.rand(1000, 512)}),
    "linear, of MoCo v3": lambda: under("module.", resnet(224) | under("fc.", {"weight": torch.rand(1000, 512)})),
    "a backbone. prefix and no head": lambda: under("backbone.", resnet(224)),
    "an encoder. prefix and no head": lambda: under("encoder.", resnet(224)),
    "a ViT's": lambda: {"cls_token": torch.rand(1, 1, 4), "pos_embed": torch.rand(1, 5, 4)},
}


@pytest.mark.parametrize("kind", BARE)
def test_a_bare_backbone_is_not_guessed_at(kind: str, tmp_path: Path):
    file = written(BARE[kind](), tmp_path / "x.pth")
    with pytest.raises(ZooError, match=r"those of a bare backbone, .*not how its pixels were normalised.*--source \w"):
        convert_file(file, name="mocov2-r18-in100", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("moco v2", "simclr-r18-in1k", r"trains mocov1 or mocov2, not simclr: --as mocov2-r18-in1k\?"),
        ("moco v2", "mocov1-r18-in1k", r"does not hold the projector of mocov1 but .*Is it mocov2\?"),
        ("moco v1", "mocov2-r18-in1k", r"does not hold the projector of mocov2 but .*Is it mocov1\?"),
        ("mocov3", "mocov2-r18-in1k", r"trains mocov3, not mocov2"),
        ("spijkervet", "simco-r18-in1k", r"trains simclr, not simco"),
        ("openmmlab mocov3", "simclr-r18-in1k", r"holds a predictor, which simclr does not have"),
        ("openmmlab simclr", "mocov3-r18-in1k", r"holds no predictor, but mocov3 has one"),
        ("openmmlab simclr", "mocov2-r18-in1k", r"does not hold the projector of mocov2 .*Is it mocov3 or simclr\?"),
        ("solo", "mocov3-r18-cifar100", r"holds no predictor, but mocov3 has one"),
    ],
)
def test_a_name_of_another_method_than_the_checkpoints_is_refused(kind: str, name: str, said: str, tmp_path: Path):
    with pytest.raises(ZooError, match=said):
        convert_file(written(cases()[kind][0], tmp_path / "x.pth"), name=name, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_source_that_the_keys_do_not_fit_or_that_nobody_knows_is_refused(tmp_path: Path):
    file = written(cases()["moco v2"][0], tmp_path / "x.pth")
    with pytest.raises(ZooError, match=r"are not those of --source solo-learn"):
        convert_file(file, name="mocov2-r18-in1k", out=tmp_path / "run", source="solo-learn")
    with pytest.raises(UnknownName, match=r"unknown source 'solo'; nearest: .*solo-learn"):
        convert_file(file, name="mocov2-r18-in1k", out=tmp_path / "run", source="solo")


@pytest.mark.parametrize(
    ("word", "name"),
    [("backbone", "mocov3-vitt4-cifar10"), ("backbone", "simclr-vits16-in1k"), ("encoder", "simco-vits16-in1k")],
)
def test_a_vit_with_another_number_of_heads_is_refused_since_its_keys_do_not_show_it(
    word: str, name: str, tmp_path: Path
):
    file = written(solo({"cls_token": torch.rand(1)}, word), tmp_path / "x.ckpt")
    with pytest.raises(ZooError, match="another number of attention heads"):
        convert_file(file, name=name, out=tmp_path / name)


def test_missing_left_over_and_misshapen_keys_are_listed(tmp_path: Path):
    state, name, _ = cases()["moco v2"]
    state = dict(state)
    del state["module.encoder_q.layer1.0.conv1.weight"]
    state["module.encoder_q.layer9.weight"] = torch.rand(1)
    state["module.encoder_q.bn1.weight"] = torch.rand(3)
    with pytest.raises(
        ZooError, match=r"missing layer1\.0\.conv1\.weight; left over layer9\.weight; other shapes: bn1"
    ):
        convert_file(written(state, tmp_path / "x.pth"), name=name, out=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_key_of_no_known_part_is_an_error(tmp_path: Path):
    state, name, _ = cases()["solo"]
    with pytest.raises(ZooError, match=r"1 keys belong to no known part .*: prototypes\.weight$"):
        convert_file(written(state | {"prototypes.weight": torch.rand(1)}, tmp_path / "x.pth"), name=name)


def test_another_backbone_in_the_name_is_an_error(tmp_path: Path):
    state, _, _ = cases()["moco v2"]
    with pytest.raises(
        ZooError, match=r"is no mocov2-r50-in1k: missing .*those of r18: --as mocov2-r18-in1k$"
    ) as caught:
        convert_file(written(state, tmp_path / "x.pth"), name="mocov2-r50-in1k", out=tmp_path / "r50")
    assert len(str(caught.value)) < 600  # of more than 200 keys that differ


def test_unknown_keys_are_told_the_known_kinds():
    with pytest.raises(UnknownName, match=r"keys like trunk\.conv\.weight has no known layout; known: moco \(face"):
        layout_of({"trunk.conv.weight": torch.rand(1)})
