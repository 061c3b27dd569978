from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
from zoo.convert import convert as convert_file
from zoo.convert import export_backbone, read_checkpoint, source_of
from zoo.dataset import DATASETS, Dataset
from zoo.encoder import Encoder, build_backbone
from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.store import HEAD


@pytest.fixture(autouse=True)
def in1k(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of large images, so that a ResNet has its 7x7 stem."""
    row = Dataset("x/in1k", 1000, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "x")
    monkeypatch.setitem(DATASETS, "in1k", row)


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


def mocov3(body: dict[str, Tensor]) -> dict[str, Tensor]:
    """facebookresearch/moco-v3, ResNet: a projector of 2 layers whose last norm has no affine part."""
    head = mlp(0, 3, bias=False) | norm(1) | norm(4, affine=False)
    sides = {name: under(f"{name}_encoder.", body | under("fc.", head)) for name in ("base", "momentum")}
    return under("module.", sides["base"] | sides["momentum"] | under("predictor.", mlp(0, 3, bias=False) | norm(1)))


def solo(body: dict[str, Tensor], word: str) -> dict[str, Tensor]:
    """solo-learn (word: backbone) and the dual-temperature code (word: encoder), with momentum parts and a queue."""
    online = under(f"{word}.", body) | under("projector.", mlp(0, 2))
    momentum = under(f"momentum_{word}.", body) | under("momentum_projector.", mlp(0, 2))
    probe = {"classifier.weight": torch.rand(10, 4), "classifier.bias": torch.rand(10)}
    return online | momentum | probe | {"queue": torch.rand(2, 4, 8), "queue_ptr": torch.zeros(1, dtype=torch.long)}


def cases() -> dict[str, tuple[dict[str, Tensor], str, set[str]]]:
    """Checkpoint, name, and the keys its head must have."""
    large, small = resnet(224), resnet(32)
    linear = {f"projector.{part}" for part in ("weight", "bias")}
    two = {f"projector.{index}.{part}" for index in (0, 2) for part in ("weight", "bias")}
    v3 = {"projector.0.weight", "projector.3.weight", "predictor.0.weight", "predictor.3.weight"}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    v3 |= {f"{part}.1.{key}" for part in ("projector", "predictor") for key in ("weight", "bias", *statistics)}
    v3 |= {f"projector.4.{key}" for key in statistics}
    return {
        "moco v1": (moco({"weight": torch.rand(4, 4), "bias": torch.rand(4)}, large), "mocov1-r18-in1k", linear),
        "moco v2": (moco(mlp(0, 2), large), "mocov2-r18-in1k", two),
        "mocov3": (mocov3(large), "mocov3-r18-in1k", v3),
        "solo": (solo(small, "backbone"), "mocov2plus-r18-cifar100", two),
        "dual-temperature": (solo(small, "encoder"), "simmoco-r18-cifar100", two),
        "sthalles": (under("backbone.", large | under("fc.", mlp(0, 2))), "simclr-r18-in1k", two),
        "spijkervet": (
            under("module.encoder.", large) | under("module.projector.", mlp(0, 2, bias=False)),
            "simclr-r18-in1k",
            {"projector.0.weight", "projector.2.weight"},
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
    assert load_file(folder / HEAD).keys() == head
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


@pytest.mark.parametrize(("kind", "statistics"), [("solo", "cifar100"), ("dual-temperature", "cifar10")])
def test_libraries_that_pad_the_stem_by_2_keep_it_and_their_own_statistics(kind: str, statistics: str, tmp_path: Path):
    state, name, _ = cases()[kind]
    encoder = zoo.load(convert_file(written(state, tmp_path / "x.ckpt"), name=name, out=tmp_path / name))
    assert encoder.backbone.conv1.padding == (2, 2)
    assert encoder.backbone.conv1(torch.zeros(1, 3, 32, 32)).shape[-2:] == (34, 34)
    assert encoder.card.mean == DATASETS[statistics].mean


def test_missing_left_over_and_misshapen_keys_are_listed(tmp_path: Path):
    state, name, _ = cases()["moco v2"]
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


def encoder_of(size: int) -> Encoder:
    return Encoder(build_backbone("r18", image_size=size), mean=[0] * 3, std=[1] * 3, image_size=size).eval()


def test_the_torchvision_export_loads_into_torchvision_with_strict_keys():
    encoder = encoder_of(64)
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    network.load_state_dict(export_backbone(encoder, "torchvision"), strict=True)
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        assert np.allclose(network.eval()(x), encoder(x), atol=1e-5)


def test_the_detectron2_export_has_detectron2s_keys():
    keys = export_backbone(encoder_of(64), "detectron2")
    expected = "stem.conv1.weight stem.conv1.norm.weight res2.0.conv1.weight res2.0.conv1.norm.running_var "
    expected += "res3.0.shortcut.weight res3.0.shortcut.norm.bias res5.1.conv2.norm.running_mean"
    assert set(expected.split()) <= keys.keys()
    assert not [key for key in keys if "layer" in key or "bn" in key or "downsample" in key or "tracked" in key]
    assert len(keys) == len(resnet(224)) - 20  # as many as torchvision's, without 20 counters of batches


def test_a_small_stem_is_not_exported():
    with pytest.raises(ZooError, match="7x7 stem"):
        export_backbone(encoder_of(32), "torchvision")
