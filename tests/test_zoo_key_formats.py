"""Encoders of this zoo under the keys of torchvision and of Detectron2."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from checkpoint_files import mlp, moco, resnet, written
from safetensors.torch import load_file
from torch import nn

import zoo
from zoo.cli.main import main
from zoo.errors import ZooError
from zoo.hub.convert import convert as convert_file
from zoo.model.encoder import Encoder, build_backbone
from zoo.release.key_formats import export, exported_keys


def imagenet_run(folder: Path) -> Encoder:
    """A converted ResNet-18 with torchvision's own 7x7 stem, as a run in `folder`."""
    file = written(moco(mlp(0, 2), resnet(224)), folder.with_suffix(".pth"))
    return zoo.load(convert_file(file, name="mocov2-r18-in1k", out=folder))


def zoo_command(*words: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["zoo", *map(str, words)])
    main()


def test_the_torchvision_file_loads_into_torchvision_with_strict_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    encoder = imagenet_run(tmp_path / "run")
    file = tmp_path / "r18.safetensors"
    zoo_command("convert", tmp_path / "run", "--to", "torchvision", "-o", file, monkeypatch=monkeypatch)
    assert "mean [0.485" in capsys.readouterr().out
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    network.load_state_dict(load_file(file), strict=True)
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.allclose(network.eval()((x - encoder.mean) / encoder.std), encoder(x), atol=1e-5)


def test_resnet50_has_exactly_torchvisions_keys_and_shapes():
    encoder = Encoder(build_backbone("r50", image_size=224), mean=[0] * 3, std=[1] * 3, image_size=224)
    network = torchvision.models.resnet50()
    network.fc = nn.Identity()
    network.load_state_dict(exported_keys(encoder, "torchvision"), strict=True)


def test_the_detectron2_file_is_the_pickle_of_mocos_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its keys by MoCo's own rules, worked out the other way round: from Detectron2's names back to torchvision's."""
    encoder = imagenet_run(tmp_path / "run")
    zoo_command("convert", tmp_path / "run", "--to", "detectron2", "-o", tmp_path / "r18.pkl", monkeypatch=monkeypatch)
    content = pickle.loads((tmp_path / "r18.pkl").read_bytes())  # ours, written a moment ago
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True
    found = {torchvision_key(key): value for key, value in content["model"].items()}
    own = {k: v for k, v in encoder.backbone.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert found.keys() == own.keys()
    assert all(type(found[key]) is np.ndarray and np.array_equal(found[key], own[key].numpy()) for key in own)


def torchvision_key(key: str) -> str:
    key = (
        key.removeprefix("stem.")
        .replace("shortcut.norm", "downsample.1")
        .replace("shortcut.weight", "downsample.0.weight")
    )
    key = re.sub(r"conv(\d)\.norm", r"bn\1", key)
    return re.sub(r"^res(\d)", lambda found: f"layer{int(found[1]) - 1}", key)


def test_what_neither_library_can_build_is_refused_with_the_reason(tmp_path: Path):
    with torch.device("meta"):
        small, wide, vit = (
            Encoder(build_backbone(name, image_size=size), mean=[0] * 3, std=[1] * 3, image_size=size)
            for name, size in (("r18", 32), ("r50w2", 224), ("vitt4", 32))
        )
    for encoder, reason in ((small, "a 3x3 stem, made for small"), (wide, "4096 features"), (vit, "no ResNet")):
        for to in ("torchvision", "detectron2"):
            with pytest.raises(ZooError, match=reason):
                export(encoder, tmp_path / "x", to=to)
    assert not (tmp_path / "x").exists()


def test_the_command_wants_one_direction_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for words, said in (
        (("x.pth",), "in: zoo convert FILE --as NAME; out: "),
        (("x.pth", "--as", "a-r18-in1k", "--to", "torchvision"), "in: zoo convert FILE --as NAME; out: "),
        (("runs/x", "--to", "torchvision"), "where to"),
    ):
        with pytest.raises(SystemExit, match=said):
            zoo_command("convert", *words, monkeypatch=monkeypatch)
