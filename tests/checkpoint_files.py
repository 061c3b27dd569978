"""Checkpoints as other code bases write them: their keys and, where they matter, their shapes."""

from functools import cache, partial
from pathlib import Path

import timm
import torch
import torchvision
from torch import Tensor, nn

from zoo.model.encoder import build_backbone


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


def neck(*layers: int) -> dict[str, Tensor]:
    """OpenMMLab's NonLinearNeck: fc0, bn0, fc1, bn1, ...; the last norm without affine part."""
    parts: dict[str, Tensor] = {}
    for layer in layers:
        parts |= {f"fc{layer}.weight": torch.rand(4, 4)}
        parts |= {f"bn{layer}.{key.split('.')[1]}": value for key, value in norm(0, affine=layer != layers[-1]).items()}
    return parts


def openmmlab(body: dict[str, Tensor], head: dict[str, Tensor], method: str) -> dict[str, Tensor]:
    """mmpretrain/models/selfsup: SimCLR; MoCo with encoder_k and a queue; MoCo v3 with a momentum encoder."""
    state = under("backbone.", body) | under("neck.", head)
    both = under("module.0.", body) | under("module.1.", head) | {"steps": torch.tensor(7)}
    if method == "mocov2":
        state |= under("encoder_k.", both) | {"queue": torch.rand(4, 8), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    if method == "mocov3":
        state |= under("momentum_encoder.", both) | under("head.predictor.", neck(0, 1))
    return state


def openmmlab_vit(body: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's keys as mmpretrain/models/backbones/vision_transformer.py has them."""
    names = {"patch_embed.proj.": "patch_embed.projection.", "mlp.fc1.": "ffn.layers.0.0.", "mlp.fc2.": "ffn.layers.1."}
    names |= {"blocks.": "layers.", ".norm1.": ".ln1.", ".norm2.": ".ln2."}
    found = {}
    for key, value in body.items():
        new = f"ln1.{key.removeprefix('norm.')}" if key.startswith("norm.") else key
        for old, their in names.items():
            new = new.replace(old, their)
        found[new] = value
    return found


def sequential(body: dict[str, Tensor]) -> dict[str, Tensor]:
    """The keys of nn.Sequential(*list(resnet.children())[:-1]), by the module itself."""
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    network.load_state_dict(body)
    return nn.Sequential(*list(network.children())[:-1]).state_dict()


def vissl(body: dict[str, Tensor]) -> dict:
    """VISSL's nesting."""
    model = {"trunk": under("_feature_blocks.", body), "heads": under("0.clf.", mlp(0)) | under("1.clf.", mlp(0))}
    return {"phase_idx": 3, "classy_state_dict": {"base_model": {"model": model, "meta": {"epochs": 4}}, "hooks": {}}}


def dino(body: dict[str, Tensor]) -> dict:
    """facebookresearch/dino: the student under DistributedDataParallel, the teacher without."""
    head = mlp(0, 2) | {"last_layer.weight_g": torch.rand(4, 1), "last_layer.weight_v": torch.rand(4, 4)}
    side = under("backbone.", body) | under("head.", head)
    return {"student": under("module.", side), "teacher": side, "epoch": 3, "optimizer": {"state": {}}}


def written(state: dict[str, Tensor], path: Path) -> Path:
    torch.save({"epoch": 200, "arch": "resnet", "state_dict": state, "optimizer": {"lr": 0.03}}, path)
    return path


def saved(content: object, path: Path) -> Path:
    torch.save(content, path)
    return path


def source_vit(dim: int, heads: int, patch: int, size: int) -> nn.Module:
    """The network of facebookresearch/moco-v3 (vits.py) and of solo-learn, which both build on timm's."""
    torch.manual_seed(0)
    return timm.models.VisionTransformer(
        img_size=size, patch_size=patch, embed_dim=dim, depth=12, num_heads=heads, mlp_ratio=4, qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), num_classes=0,
    ).eval()  # fmt: skip


@cache
def cases() -> dict[str, tuple[dict[str, Tensor], str, set[str]]]:
    """Checkpoint, name, and the keys its head must have."""
    large, small = resnet(224), resnet(32)
    linear = {f"projector.0.{part}" for part in ("weight", "bias")}
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
        "openmmlab simclr": (
            openmmlab(large, neck(0, 1), "simclr"),
            "simclr-r18-in1k",
            set(under("projector.", mocov3_head(2))),
        ),
        "openmmlab mocov2": (
            openmmlab(large, under("mlp.", mlp(0, 2)), "mocov2"),
            "mocov2-r18-in1k",
            set(under("projector.", mlp(0, 2))),
        ),
        "openmmlab mocov3": (
            openmmlab(large, neck(0, 1), "mocov3"),
            "mocov3-r18-in1k",
            v3,
        ),
        "lightly": (
            under("backbone.", large)
            | under("projection_head.layers.", mlp(0, 3))
            | under("online_classifier.linear.", mlp(0)),
            "simclr-r18-in1k",
            set(under("projector.", mlp(0, 3))),
        ),
        "lightly sequential": (
            under("backbone.", sequential(large))
            | under("projection_head.layers.", mlp(0, 2))
            | under("backbone_momentum.", sequential(large))
            | under("projection_head_momentum.layers.", mlp(0, 2)),
            "mocov2-r18-in1k",
            set(under("projector.", mlp(0, 2))),
        ),
        "lightly momentum": (
            under("backbone.", large)
            | under("projection_head.layers.", mlp(0, 2))
            | under("query_backbone.", resnet(224, seed=1))
            | under("query_projection_head.layers.", mlp(0, 2)),
            "mocov2-r18-in1k",
            set(under("projector.", mlp(0, 2))),
        ),
    }
