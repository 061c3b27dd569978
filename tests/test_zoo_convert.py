import pickle
import re
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
from zoo.cli.main import main
from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.hub.checkpoint_sources import SOURCES, source_of, statistics_of
from zoo.hub.convert import convert as convert_file
from zoo.hub.convert import read_checkpoint
from zoo.hub.store import HEAD
from zoo.images.dataset import DATASETS
from zoo.model.encoder import Encoder, build_backbone
from zoo.release.key_formats import export, foreign_keys


@cache
def resnet(size: int, seed: int = 0) -> dict[str, Tensor]:
    """The keys of torchvision's ResNet-18 without classifier; torchvision itself is the witness for 7x7 stems."""
    torch.manual_seed(seed)
    if size >= 64:
        network = torchvision.models.resnet18()
        return {key: value for key, value in network.state_dict().items() if not key.startswith("fc.")}
    return build_backbone("r18", image_size=size).state_dict()


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in tensors.items()}


def mlp(*indices: int, bias: bool = True) -> dict[str, Tensor]:
    parts = ("weight", "bias") if bias else ("weight",)
    return {
        f"{index}.{part}": torch.rand(4, 4) if part == "weight" else torch.rand(4)
        for index in indices
        for part in parts
    }


def norm(index: int, affine: bool = True) -> dict[str, Tensor]:
    return {f"{index}.{key}": value for key, value in nn.BatchNorm1d(4, affine=affine).state_dict().items()}


def moco(head: dict[str, Tensor], body: dict[str, Tensor]) -> dict[str, Tensor]:
    """facebookresearch/moco under DistributedDataParallel."""
    both = {side: under(f"encoder_{side}.", body | under("fc.", head)) for side in "qk"}
    queue = {"queue": torch.rand(4, 8), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    return under("module.", both["q"] | both["k"] | queue)


def mocov3_head(layers: int) -> dict[str, Tensor]:
    """MoCo v3's MLP: no biases, a norm after each layer, the last without affine part."""
    first = [mlp(3 * layer, bias=False) | norm(3 * layer + 1) for layer in range(layers - 1)]
    last = mlp(3 * layers - 3, bias=False) | norm(3 * layers - 2, affine=False)
    return {key: value for part in (*first, last) for key, value in part.items()}


def mocov3(body: dict[str, Tensor], *, word: str = "fc", layers: int = 2) -> dict[str, Tensor]:
    """facebookresearch/moco-v3: ResNets have a projector `fc` of 2 layers, ViTs `head` of 3."""
    whole = body | under(f"{word}.", mocov3_head(layers))
    sides = under("base_encoder.", whole) | under("momentum_encoder.", whole)
    return under("module.", sides | under("predictor.", mocov3_head(2)))


def solo(body: dict[str, Tensor], word: str, head: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """solo-learn (word: backbone) and the dual-temperature code (word: encoder), with momentum parts and a queue."""
    head = head or mlp(0, 2)
    online = under(f"{word}.", body) | under("projector.", head)
    momentum = under(f"momentum_{word}.", body) | under("momentum_projector.", head)
    probe = {f"{who}classifier.{part}": torch.rand(10) for who in ("", "momentum_") for part in ("weight", "bias")}
    queue = {"queue": torch.rand(2, 4, 8), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    return online | momentum | probe | queue


@cache
def cases() -> dict[str, tuple[dict[str, Tensor], str, set[str]]]:
    """Checkpoint, name, and the keys its head must have."""
    large, small = resnet(224), resnet(32)
    linear = {f"projector.{part}" for part in ("weight", "bias")}
    two = {f"projector.{index}.{part}" for index in (0, 2) for part in ("weight", "bias")}
    v3 = set(under("projector.", mocov3_head(2)) | under("predictor.", mocov3_head(2)))
    return {
        "moco v1": (moco({"weight": torch.rand(4, 4), "bias": torch.rand(4)}, large), "mocov1-r18-in1k", linear),
        "moco v2": (moco(mlp(0, 2), large), "mocov2-r18-in1k", two),
        "mocov3": (mocov3(large), "mocov3-r18-in1k", v3),
        "solo": (solo(small, "backbone"), "mocov2plus-r18-cifar100", two),
        "solo mocov3": (
            solo(small, "backbone", mocov3_head(2)) | under("predictor.", mlp(0, 3, bias=False) | norm(1)),
            "mocov3-r18-cifar10",
            v3 - {f"predictor.4.{key}" for key in ("running_mean", "running_var", "num_batches_tracked")},
        ),
        "dual-temperature": (solo(small, "encoder"), "simmoco-r18-cifar100", two),
        "sthalles": (under("backbone.", large | under("fc.", mlp(0, 2))), "simclr-r18-in1k", two),
        "spijkervet": (
            under("module.encoder.", large) | under("module.projector.", mlp(0, 2, bias=False)),
            "simclr-r18-in1k",
            {"projector.0.weight", "projector.2.weight"},
        ),
        "google": (
            large | under("fc.", {"weight": torch.rand(10, 512), "bias": torch.rand(10)}),
            "simclr-r18-in1k",
            set(),
        ),
    }


def written(state: dict[str, Tensor], path: Path) -> Path:
    torch.save({"epoch": 200, "arch": "resnet", "state_dict": state, "optimizer": {"lr": 0.03}}, path)
    return path


@pytest.mark.parametrize("kind", cases())
def test_an_official_checkpoint_becomes_a_model_with_its_head(kind: str, tmp_path: Path):
    state, name, head = cases()[kind]
    folder = convert_file(written(state, tmp_path / "official.pth.tar"), name=name, out=tmp_path / name)
    encoder = zoo.load(folder)
    body = resnet(32 if "cifar" in name else 224)
    own = encoder.backbone.state_dict()
    assert own.keys() == body.keys()
    assert all(torch.equal(own[key], body[key]) for key in body)
    assert (set(load_file(folder / HEAD)) if head else (folder / HEAD).exists() or set()) == head
    assert encoder.card.training["converted_from"] == "official.pth.tar"


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


def test_every_source_has_its_case():
    found = {source_of(state).about for state, _, _ in map(unwrapped, cases().values())}
    assert found == {source.about for source in SOURCES}


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
    (source,) = (source for source in SOURCES if source.about.startswith(word))
    assert statistics_of(source, dataset).std == std


def source_vit(dim: int, heads: int, patch: int, size: int) -> nn.Module:
    """The network of facebookresearch/moco-v3 (vits.py) and of solo-learn, which both build on timm's."""
    torch.manual_seed(0)
    return timm.models.VisionTransformer(
        img_size=size, patch_size=patch, embed_dim=dim, depth=12, num_heads=heads, mlp_ratio=4, qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), num_classes=0,
    ).eval()  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("mocov3", "mocov3-vits16-in1k", (384, 12, 16, 224)),
        pytest.param("mocov3", "mocov3-vitb16-in1k", (768, 12, 16, 224), marks=pytest.mark.slow),
        ("solo", "simclr-vitt4-cifar100", (192, 3, 4, 32)),
        ("dual-temperature", "simmoco-vitt4-cifar10", (192, 3, 4, 32)),
    ],
)
def test_a_converted_vit_gives_the_features_of_the_source_network(kind: str, name: str, shape: tuple, tmp_path: Path):
    network = source_vit(*shape)
    body = network.state_dict()
    state = {
        "mocov3": lambda: mocov3(body, word="head", layers=3),
        "solo": lambda: solo(body, "backbone"),
        "dual-temperature": lambda: solo(body, "encoder"),
    }[kind]()
    folder = convert_file(written(state, tmp_path / "vit.pth.tar"), name=name, out=tmp_path / name)
    encoder = zoo.load(folder)
    x = torch.rand(2, 3, shape[3], shape[3])
    with torch.inference_mode():
        assert torch.allclose(encoder(x), network((x - encoder.mean) / encoder.std), atol=1e-5)
    if kind == "mocov3":
        expected = under("projector.", mocov3_head(3)) | under("predictor.", mocov3_head(2))
        assert load_file(folder / HEAD).keys() == expected.keys()


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
    with pytest.raises(ZooError, match=r"keys of no known part .*: prototypes\.weight"):
        convert_file(written(state | {"prototypes.weight": torch.rand(1)}, tmp_path / "x.pth"), name=name)


def test_another_backbone_in_the_name_is_an_error(tmp_path: Path):
    state, _, _ = cases()["moco v2"]
    with pytest.raises(ZooError, match=r"is no mocov2-r50-in1k: missing .*Is --as another backbone"):
        convert_file(written(state, tmp_path / "x.pth"), name="mocov2-r50-in1k", out=tmp_path / "r50")


def test_unknown_keys_are_told_the_known_kinds():
    with pytest.raises(UnknownName, match="no known kind; known: facebookresearch/moco"):
        source_of({"trunk.conv.weight": torch.rand(1)})


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("touched-by-a-checkpoint"),))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"x": torch.rand(1)}, "args": Evil()}, "evil.pth")
    with pytest.raises(CorruptFile, match="not a checkpoint that can be read safely"):
        read_checkpoint(Path("evil.pth"))
    assert not Path("touched-by-a-checkpoint").exists()


def test_a_file_without_tensors_and_no_file_are_told_apart(tmp_path: Path):
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    with pytest.raises(CorruptFile, match="no state_dict"):
        read_checkpoint(tmp_path / "empty.pth")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_checkpoint(tmp_path / "none.pth")


def imagenet_run(folder: Path) -> Encoder:
    """A converted ResNet-18 with torchvision's own 7x7 stem, as a run in `folder`."""
    state, name, _ = cases()["moco v2"]
    return zoo.load(convert_file(written(state, folder.with_suffix(".pth")), name=name, out=folder))


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
    network.load_state_dict(foreign_keys(encoder, "torchvision"), strict=True)


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
