"""Published checkpoints of each layout become the model that their name says."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from checkpoint_files import (
    cases,
    dino,
    mlp,
    moco,
    mocov3,
    mocov3_head,
    neck,
    openmmlab,
    openmmlab_vit,
    resnet,
    saved,
    solo,
    source_vit,
    under,
    vissl,
    written,
)
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
from zoo.cli.main import main
from zoo.errors import ZooError
from zoo.hub.convert import convert as convert_file
from zoo.hub.layouts import LAYOUTS, layout_of, statistics_of
from zoo.hub.store import HEAD
from zoo.images.dataset import DATASETS
from zoo.model.encoder import build_backbone


@pytest.mark.parametrize("kind", cases())
def test_an_official_checkpoint_becomes_a_model_with_its_head(kind: str, tmp_path: Path):
    state, name, head = cases()[kind]
    folder = convert_file(written(state, tmp_path / "official.pth.tar"), name=name, out=tmp_path / name)
    encoder = zoo.load(folder)
    body = resnet(32 if "cifar" in name else 224)
    assert_same(encoder.backbone, body)
    assert (set(load_file(folder / HEAD)) if head else (folder / HEAD).exists() or set()) == head
    assert encoder.card.training["converted_from"] == "official.pth.tar"


@pytest.mark.parametrize("kind", ["moco v1", "moco v2", "mocov3", "openmmlab mocov2", "openmmlab mocov3", "lightly"])
def test_the_head_of_a_checkpoint_is_a_network_again(kind: str, tmp_path: Path):
    state, name, _ = cases()[kind]
    found = zoo.load(convert_file(written(state, tmp_path / "x.pth"), name=name, out=tmp_path / "run"), head=True)
    assert isinstance(found.projector[0], nn.Linear)
    assert found.projector(torch.rand(2, 4)).shape == (2, 4)
    assert hasattr(found, "predictor") == (name.startswith("mocov3"))


@pytest.mark.parametrize(
    ("make", "name", "key"),
    [
        (vissl, "simclr-r18-in1k", r"projector\.0\.clf\.0\.bias"),
        (dino, "dino-r18-in1k", r"projector\.last_layer\.weight_g"),
    ],
)
def test_a_head_of_another_kind_is_refused_with_the_reason_and_the_encoder_still_opens(
    make: Callable, name: str, key: str, tmp_path: Path
):
    folder = convert_file(saved(make(resnet(224)), tmp_path / "x.pth"), name=name, out=tmp_path / name)
    with pytest.raises(ZooError, match=rf"head of {name}, from facebookresearch/.* but has {key}.* without head=True"):
        zoo.load(folder, head=True)
    encoder, x = zoo.load(folder), torch.rand(1, 3, 224, 224)
    early, late = encoder.features(x, layers=[1, -1])
    assert torch.allclose(late.mean((2, 3)), encoder(x), atol=1e-5)
    assert early.shape == (1, 64, 56, 56)
    smaller = x[..., :96, :96]
    assert torch.equal(encoder.at(96)(smaller), encoder.backbone((smaller - encoder.mean) / encoder.std))


def assert_same(network: nn.Module, body: dict[str, Tensor]) -> None:
    own = network.state_dict()
    assert own.keys() == body.keys()
    assert all(torch.equal(own[key], body[key]) for key in body)


@pytest.mark.parametrize(
    ("make", "name", "source", "head"),
    [
        (vissl, "simclr-r18-in1k", "facebookresearch/vissl", {"projector.0.clf.0.weight", "projector.1.clf.0.bias"}),
        (dino, "dino-r18-in1k", "facebookresearch/dino", {"projector.0.weight", "projector.last_layer.weight_g"}),
    ],
)
def test_a_checkpoint_with_nested_parts_becomes_a_model(
    make: Callable, name: str, source: str, head: set, tmp_path: Path
):
    folder = convert_file(saved(make(resnet(224)), tmp_path / "x.pth"), name=name, out=tmp_path / name)
    encoder = zoo.load(folder)
    assert_same(encoder.backbone, resnet(224))
    assert encoder.card.training["source"].startswith(source)
    assert encoder.card.mean == DATASETS["in1k"].mean
    assert head <= set(load_file(folder / HEAD))


@pytest.mark.parametrize(("source", "mean"), [("google-simclr", (0.0, 0.0, 0.0)), ("plain", (0.485, 0.456, 0.406))])
def test_a_bare_backbone_is_converted_as_the_source_that_is_named(source: str, mean: tuple, tmp_path: Path):
    state = resnet(224) | under("fc.", {"weight": torch.rand(10, 512), "bias": torch.rand(10)})
    folder = convert_file(
        written(under("module.", state), tmp_path / "x.pth"),
        name="simclr-r18-in1k",
        out=tmp_path / "run",
        source=source,
    )
    encoder = zoo.load(folder)
    assert_same(encoder.backbone, resnet(224))
    assert encoder.card.mean == mean
    assert encoder.card.training["left_behind"] == "fc (2 tensors)"
    assert not (folder / HEAD).exists()


def test_a_backbone_alone_gives_the_embeddings_of_the_whole_checkpoint_once_its_source_is_named(tmp_path: Path):
    pictures = [np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)]
    whole = convert_file(
        written(moco(mlp(0, 2), resnet(224)), tmp_path / "a.pth"), name="mocov2-r18-in100", out=tmp_path / "a"
    )
    alone = convert_file(
        written(resnet(224), tmp_path / "b.pth"), name="mocov2-r18-in100", out=tmp_path / "b", source="plain"
    )
    assert np.array_equal(zoo.load(alone).embed(pictures), zoo.load(whole).embed(pictures))


def test_the_command_says_whose_checkpoint_it_is_and_how_it_normalises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    file = written(cases()["moco v2"][0], tmp_path / "x.pth")
    words = ["zoo", "convert", str(file), "--as", "mocov2-r18-in1k", "-o", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", words)
    main()
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "run"),
        "written by facebookresearch/moco, v1 and v2: moco/builder.py; left behind: encoder_k (124 tensors), "
        "queue (1 tensor), queue_ptr (1 tensor)",
        "normalises RGB in [0, 1] by mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]",
    ]


def test_converted_torchvision_weights_give_torchvisions_features(tmp_path: Path):
    state, name, _ = cases()["moco v2"]
    encoder = zoo.load(convert_file(written(state, tmp_path / "x.pth"), name=name, out=tmp_path / name))
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    network.load_state_dict(resnet(224))
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = network.eval()((x - encoder.mean) / encoder.std)
        assert torch.allclose(encoder(x), expected, atol=1e-5)
    assert encoder.crop == 0.875


def test_every_layout_has_its_case():
    found = {layout_of(state).name for state, _, _ in map(unwrapped, cases().values())}
    assert found | {"vissl", "dino", "plain", "google-simclr"} == {layout.name for layout in LAYOUTS}


def unwrapped(case: tuple) -> tuple:
    state, *rest = case
    return {key.removeprefix("module."): value for key, value in state.items()}, *rest


@pytest.mark.parametrize(
    ("word", "dataset", "std"),
    [
        ("facebookresearch/moco,", "in1k", (0.229, 0.224, 0.225)),
        ("sthalles", "cifar10", (1, 1, 1)),
        ("Spijkervet", "stl10", (1, 1, 1)),
        ("tonylins", "in1k", (1, 1, 1)),
        ("ChaoningZhang", "cifar100", (0.247, 0.243, 0.261)),
        ("ChaoningZhang", "in100", (0.228, 0.224, 0.225)),
        ("vturrisi", "cifar100", (0.2673, 0.2564, 0.2762)),
        ("vturrisi", "stl10", (0.247, 0.243, 0.261)),
    ],
)
def test_a_converted_model_normalises_as_its_source_does(word: str, dataset: str, std: tuple):
    (layout,) = (layout for layout in LAYOUTS if layout.code.startswith(word))
    assert statistics_of(layout, dataset).std == std


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("mocov3", "mocov3-vits16-in1k", (384, 12, 16, 224)),
        pytest.param("mocov3", "mocov3-vitb16-in1k", (768, 12, 16, 224), marks=pytest.mark.slow),
        ("solo", "simclr-vitt4-cifar100", (192, 3, 4, 32)),
        ("dual-temperature", "simmoco-vitt4-cifar10", (192, 3, 4, 32)),
        ("openmmlab", "mocov3-vits16-in1k", (384, 12, 16, 224)),
        pytest.param("openmmlab", "mocov3-vitb16-in1k", (768, 12, 16, 224), marks=pytest.mark.slow),
        ("plain", "simclr-vitt4-cifar100", (192, 3, 4, 32)),
        ("dino", "dino-vitt4-cifar100", (192, 3, 4, 32)),
    ],
)
def test_a_converted_vit_gives_the_features_of_the_source_network(kind: str, name: str, shape: tuple, tmp_path: Path):
    network = source_vit(*shape)
    body = network.state_dict()
    state = {
        "mocov3": lambda: mocov3(body, word="head", layers=3),
        "solo": lambda: solo(body, "backbone"),
        "dual-temperature": lambda: solo(body, "encoder"),
        "openmmlab": lambda: openmmlab(openmmlab_vit(body), neck(0, 1, 2), "mocov3"),
        "plain": lambda: body | under("head.", mlp(0)),
        "dino": lambda: under("teacher.backbone.", body),
    }[kind]()
    source = "plain" if kind == "plain" else None
    folder = convert_file(written(state, tmp_path / "vit.pth.tar"), name=name, out=tmp_path / name, source=source)
    encoder = zoo.load(folder)
    x = torch.rand(2, 3, shape[3], shape[3])
    with torch.inference_mode():
        assert torch.allclose(encoder(x), network((x - encoder.mean) / encoder.std), atol=1e-5)
    if kind == "mocov3":
        expected = under("projector.", mocov3_head(3)) | under("predictor.", mocov3_head(2))
        assert load_file(folder / HEAD).keys() == expected.keys()


def test_a_swin_of_an_older_timm_gives_its_features(tmp_path: Path):
    """There, patch merging closed a stage (layers.0.downsample), and two tables were in the state dict."""
    torch.manual_seed(0)
    network = build_backbone("swint", image_size=32).eval()
    body = {}
    for key, value in network.state_dict().items():
        body[re.sub(r"layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) - 1}.downsample", key)] = value
    tables = {name: value for name, value in network.named_buffers() if name.endswith("relative_position_index")}
    assert tables
    file = written(solo(body | tables, "encoder"), tmp_path / "swin.ckpt")
    encoder = zoo.load(convert_file(file, name="simco-swint-cifar100", out=tmp_path / "run"))
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.allclose(encoder(x), network((x - encoder.mean) / encoder.std), atol=1e-5)


@pytest.mark.parametrize(("kind", "statistics"), [("solo", "cifar100"), ("dual-temperature", "cifar10")])
def test_libraries_that_pad_the_stem_by_2_keep_it_and_their_own_statistics(kind: str, statistics: str, tmp_path: Path):
    state, name, _ = cases()[kind]
    encoder = zoo.load(convert_file(written(state, tmp_path / "x.ckpt"), name=name, out=tmp_path / name))
    assert encoder.backbone.conv1.padding == (2, 2)
    assert encoder.backbone.conv1(torch.zeros(1, 3, 32, 32)).shape[-2:] == (34, 34)
    assert encoder.card.mean == DATASETS[statistics].mean
