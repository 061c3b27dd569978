"""Each of the authors' names with a file of its true layout, shapes and size class, all the way to an embedding.

The real files cannot be fetched by tests: keys and shapes are those of the publishers' code, the numbers are random.
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from checkpoint_files import openmmlab_vit, saved, source_vit, under
from loopback_files import FileServer, file_server
from torch import Tensor, nn

import zoo
from serve.export import export
from serve.session import open_model
from zoo.hub.author_files import AUTHOR_FILES, PARAMETERS, SIZES, AuthorFile
from zoo.model.encoder import build_backbone
from zoo.names import parse_name

pytestmark = pytest.mark.slow
State = dict[str, Tensor]


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


def mocov3_mlp(*dims: int) -> State:
    """_build_mlp of moco-v3's builder.py."""
    layers: list[nn.Module] = []
    for index, (inside, outside) in enumerate(pairwise(dims)):
        last = index == len(dims) - 2
        layers += [nn.Linear(inside, outside, bias=False), nn.BatchNorm1d(outside, affine=not last)]
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers).state_dict()


def openmmlab_neck(*dims: int, last_affine: bool, bias: bool, last_norm: bool = True) -> State:
    """NonLinearNeck of mmpretrain's necks."""
    parts: State = {}
    for index, (inside, outside) in enumerate(pairwise(dims)):
        last = index == len(dims) - 2
        parts |= under(f"fc{index}.", nn.Linear(inside, outside, bias=bias).state_dict())
        if not last or last_norm:
            parts |= under(f"bn{index}.", nn.BatchNorm1d(outside, affine=last_affine or not last).state_dict())
    return parts


def mlp(inside: int, hidden: int, outside: int) -> State:
    return nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, outside)).state_dict()


def network(backbone: str) -> nn.Module:
    """The authors' network: torchvision's ResNet-50, or the transformers that moco-v3 builds on timm's."""
    torch.manual_seed(0)
    if backbone == "r50":
        built = torchvision.models.resnet50()
        built.fc = nn.Identity()
        return built.eval()
    return source_vit({"vits16": 384, "vitb16": 768}[backbone], 12, 16, 224)


def official(name: str, body: State) -> State:
    """The whole state dict that the name's publisher saves."""
    method, backbone = parse_name(name)[:2]
    layout, dim = AUTHOR_FILES[name].layout, {"r50": 2048, "vits16": 384, "vitb16": 768}[backbone]
    queue = {"queue": torch.rand(128, 65536), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    if layout == "moco":
        head = nn.Linear(dim, 128).state_dict() if method == "mocov1" else mlp(dim, dim, 128)
        whole = body | under("fc.", head)
        return under("module.", under("encoder_q.", whole) | under("encoder_k.", whole) | queue)
    if layout == "mocov3":
        word, dims = ("fc", (dim, 4096, 256)) if backbone == "r50" else ("head", (dim, 4096, 4096, 256))
        whole = body | under(f"{word}.", mocov3_mlp(*dims))
        sides = under("base_encoder.", whole) | under("momentum_encoder.", whole)
        return under("module.", sides | under("predictor.", mocov3_mlp(256, 4096, 256)))
    body = body if backbone == "r50" else openmmlab_vit(body)
    if method == "simclr":
        return under("backbone.", body) | under(
            "neck.", openmmlab_neck(dim, 2048, 128, last_affine=True, bias=True, last_norm=False)
        )
    if method == "mocov2":
        neck = under("mlp.", mlp(dim, 2048, 128))
    else:
        neck = openmmlab_neck(
            *(dim, 4096, 256) if backbone == "r50" else (dim, 4096, 4096, 256), last_affine=False, bias=False
        )
    ema = under("module.0.", body) | under("module.1.", neck) | {"steps": torch.tensor(1)}
    state = under("backbone.", body) | under("neck.", neck)
    if method == "mocov2":
        return state | under("encoder_k.", ema) | queue
    predictor = openmmlab_neck(256, 4096, 256, last_affine=False, bias=False)
    return state | under("momentum_encoder.", ema) | under("head.predictor.", predictor)


@pytest.mark.parametrize("name", AUTHOR_FILES)
def test_a_file_of_the_true_layout_and_size_is_fetched_checked_converted_embedded_exported_and_served(
    name: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    built, row = network(parse_name(name).backbone), AUTHOR_FILES[name]
    file = saved({"epoch": 200, "state_dict": official(name, built.state_dict())}, tmp_path / "official.pth")
    server.files["/official.pth"] = file.read_bytes()
    file.unlink()
    kind = row.digest.partition(":")[0]
    digest = f"{kind}:{hashlib.new(kind, server.files['/official.pth']).hexdigest()[:8]}" if kind else ""
    local = AuthorFile(server.url + "/official.pth", row.top1, row.licence, row.layout, row.publisher, digest)
    monkeypatch.setitem(AUTHOR_FILES, name, local)
    encoder = zoo.load(name)
    x = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        assert torch.allclose(encoder(x), built((x - encoder.mean) / encoder.std), atol=1e-4)
    assert encoder.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert (encoder.card.licence, encoder.card.parameters) == (row.licence, sum(p.numel() for p in built.parameters()))
    assert encoder.card.crop == 0.875

    export(name)
    session = open_model(name)
    picture = np.random.default_rng(0).integers(0, 256, (1, 224, 224, 3), np.uint8)
    expected = encoder.embed_pixels(picture)
    assert np.abs(session.embed_pixels(picture) - expected).max() <= 1e-5 * np.abs(expected).max()
    assert session.licence == row.licence


@pytest.mark.parametrize("backbone", SIZES)
def test_the_sizes_in_the_list_are_those_of_the_networks(backbone: str):
    with torch.device("meta"):
        built = build_backbone(backbone, image_size=224)
    assert sum(p.numel() for p in built.parameters()) == PARAMETERS[backbone]
    assert sum(value.numel() * value.element_size() for value in built.state_dict().values()) == SIZES[backbone]
