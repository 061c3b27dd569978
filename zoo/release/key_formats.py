"""A ResNet's weights under the keys of torchvision and of Detectron2.

    zoo convert mocov2-r50-in1k --to torchvision -o r50.safetensors
    zoo convert mocov2-r50-in1k --to detectron2 -o r50.pkl

Both want normalised images: the encoder's mean and std, of RGB in [0, 1], are printed with the file.
"""

import pickle  # to write for Detectron2, which reads nothing else; nothing here reads one
import re
from pathlib import Path
from typing import Literal, get_args

from safetensors.torch import save_file
from torch import Tensor

from zoo.errors import ZooError, unknown
from zoo.files import new_file
from zoo.model.encoder import Encoder
from zoo.model.tensors import disk_errors

Target = Literal["torchvision", "detectron2"]


def export(encoder: Encoder, file: Path, *, to: Target) -> None:
    """Write the backbone to `file`: safetensors for torchvision, for Detectron2 the pickle that MoCo's script makes.

    torchvision loads it strictly into a ResNet whose fc is `nn.Identity()`. Detectron2 takes it as MODEL.WEIGHTS beside
    MODEL.RESNETS.STRIDE_IN_1X1 False, NORM "BN" or "SyncBN", INPUT.FORMAT "RGB", PIXEL_MEAN and PIXEL_STD 255 times the
    encoder's. Raises UnknownName; ZooError for a network that is no ResNet with an ImageNet stem.
    """
    tensors = exported_keys(encoder, to)
    with new_file(file) as aside:
        if to == "torchvision":
            with disk_errors():
                save_file(tensors, aside, metadata={"format": "pt"})
        else:
            arrays = {key: value.numpy() for key, value in tensors.items()}
            content = {"model": arrays, "__author__": "contrastive-zoo", "matching_heuristics": True}
            aside.write_bytes(pickle.dumps(content))


def exported_keys(encoder: Encoder, to: Target) -> dict[str, Tensor]:
    """The backbone's tensors under the keys of `to`, without a classifier. Raises UnknownName, ZooError."""
    if to not in get_args(Target):
        raise unknown("target", to, get_args(Target))
    own = encoder.backbone.state_dict()
    stem = own.get("conv1.weight")
    if stem is None or stem.shape[-1] != 7:
        found = "no ResNet" if stem is None else f"a {stem.shape[-1]}x{stem.shape[-1]} stem, made for small images"
        raise ZooError(
            f"{to} has only ResNets with a 7x7 stem, and this network has {found}. "
            "`zoo publish RUN --dry-run` writes a form that plain timm opens"
        )
    if encoder.dim not in (512, 2048):
        raise ZooError(
            f"{to} has no ResNet of {encoder.dim} features, only of 512 and 2048; wider ones are timm's alone"
        )
    tensors = {key: value.detach().cpu().clone() for key, value in own.items()}
    if to == "torchvision":
        return tensors
    return {_detectron2_key(key): value for key, value in tensors.items() if not key.endswith("num_batches_tracked")}


def _detectron2_key(key: str) -> str:
    """`layer1.0.bn1.weight` -> `res2.0.conv1.norm.weight`."""
    key = re.sub(r"^layer(\d)\.", lambda found: f"res{int(found[1]) + 1}.", key)
    key = re.sub(r"^(conv1|bn1)\.", r"stem.\1.", key)
    key = key.replace(".downsample.0.", ".shortcut.").replace(".downsample.1.", ".shortcut.norm.")
    return re.sub(r"\bbn(\d)\.", r"conv\1.norm.", key)
