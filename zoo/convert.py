"""Checkpoints of the papers' authors and of the libraries around them, as models of this zoo, heads kept; and back out.

    zoo convert moco_v2_800ep_pretrain.pth.tar --as mocov2-r50-in1k

A source is recognised by its keys. Every key is accounted for: it becomes part of the encoder or of the head, or its
table row says why it stays behind; anything missing or left over is an error that lists it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from zoo.card import Card
from zoo.dataset import dataset_row
from zoo.encoder import Encoder, build_backbone, save_encoder
from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.files import new_file, sha256
from zoo.names import parse_name
from zoo.provenance import today
from zoo.store import HEAD

Tensors = dict[str, Tensor]
Target = Literal["torchvision", "detectron2"]


@dataclass(frozen=True)
class Source:
    """Where the parts are in one kind of checkpoint: regular expressions at the start of a key, first match counts."""

    about: str
    backbone: str
    projector: str
    predictor: str = ""
    left: str = ""  # what stays behind: key encoder, queue, online classifier
    stem_padding: int = 1  # pixels, of its 3x3 stem


# Dropping `module.` (of DataParallel) and `_orig_mod.` (of torch.compile) comes before.
SOURCES: dict[str, Source] = {
    "moco": Source(
        "facebookresearch/moco, v1 and v2: moco/builder.py",
        r"encoder_q\.",
        r"encoder_q\.fc\.",
        left=r"encoder_k\.|queue",
    ),
    "mocov3": Source(
        "facebookresearch/moco-v3: moco/builder.py, ResNet and ViT",
        r"base_encoder\.",
        r"base_encoder\.(?:fc|head)\.",
        r"predictor\.",
        left=r"momentum_encoder\.",
    ),
    "solo": Source(
        "vturrisi/solo-learn: solo/methods/base.py",
        r"backbone\.",
        r"projector\.",
        r"predictor\.",
        left=r"momentum_|classifier\.|queue",
        stem_padding=2,
    ),
    "simclr-backbone": Source(
        "sthalles/SimCLR: models/resnet_simclr.py, the projector in the place of fc", r"backbone\.", r"backbone\.fc\."
    ),
    "dual-temperature": Source(
        "ChaoningZhang/Dual-temperature, built on an early solo-learn: solo/methods/base.py",
        r"encoder\.",
        r"projector\.",
        r"predictor\.",
        left=r"momentum_|classifier\.|queue",
        stem_padding=2,
    ),
    "simclr-encoder": Source(
        "Spijkervet/SimCLR: simclr/simclr.py", r"encoder\.", r"projector\.", left=r"encoder\.fc\."
    ),
}
MARKS = {  # keys by which a source is told, in this order
    "moco": r"encoder_q\.",
    "mocov3": r"base_encoder\.",
    "simclr-backbone": r"backbone\.fc\.",
    "solo": r"backbone\.",
    "dual-temperature": r"classifier\.|momentum_",
    "simclr-encoder": r"encoder\.",
}
# The dual-temperature code normalises every data set by these numbers of CIFAR-10.
FOREIGN_STATISTICS = {"dual-temperature": "cifar10"}


def convert(file: Path, *, name: str, out: Path | None = None) -> Path:
    """The run folder, by default runs/NAME, of the checkpoint `file` as the model `name`.

    Raises UnknownName, FileNotFoundError; CorruptFile if the file is no checkpoint, or holds more than tensors and
    plain values; ZooError if keys are missing or left over, or shapes are another network's.
    """
    parts = parse_name(name)
    row = dataset_row(parts.dataset)
    tensors = read_checkpoint(file)
    kind = source_of(tensors)
    source = SOURCES[kind]
    backbone, head = split_keys(tensors, source)
    padding = _stem_padding(backbone, source)
    network = build_backbone(parts.backbone, image_size=row.image_size, stem_padding=padding)
    _fill(network, backbone, name)
    statistics = dataset_row(FOREIGN_STATISTICS.get(kind, parts.dataset))
    crop = 0.875 if row.image_size >= 224 else 1.0  # as in the evaluation on ImageNet of all these sources
    encoder = Encoder(network, mean=statistics.mean, std=statistics.std, image_size=row.image_size, crop=crop)
    folder = out or Path("runs", name)
    card = Card(
        name=name,
        paper=f"Converted from {file.name} of {source.about}",
        image_size=row.image_size,
        crop=crop,
        mean=statistics.mean,
        std=statistics.std,
        dim=encoder.dim,
        stem_padding=padding,
        expects="see the checkpoint's own documentation",
        training={"converted_from": file.name, "sha256": sha256(file), "source": source.about, "date": today()},
    )
    card = save_encoder(encoder, folder, card)
    assert card.weights is not None
    with new_file(folder / HEAD) as aside:
        save_file(head, aside, metadata={"format": "pt", "weights_sha256": card.weights.sha256})
    return folder


def read_checkpoint(file: Path) -> Tensors:
    """The tensors of a `.pth`, `.pth.tar` or `.ckpt`, prefixes of wrappers dropped; nothing else in it is executed.

    Raises CorruptFile, FileNotFoundError.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the classes of a dozen libraries, for one fact
        raise CorruptFile(
            f"{file}: not a checkpoint that can be read safely ({str(error).splitlines()[0]}). If you trust it, save "
            "its state_dict alone: torch.save(content['state_dict'], FILE)"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise CorruptFile(f"{file}: no state_dict in it; its top level is {type(content).__name__}")
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", str(k)): v for k, v in state.items() if isinstance(v, Tensor)}


def source_of(tensors: Tensors) -> str:
    """Which row of SOURCES the keys belong to. Raises UnknownName."""
    for kind, mark in MARKS.items():
        if any(re.match(mark, key) for key in tensors):
            return kind
    about = "; ".join(source.about for source in SOURCES.values())
    raise UnknownName(f"a checkpoint with keys like {sorted(tensors)[:4]} is of no known kind; known: {about}")


def split_keys(tensors: Tensors, source: Source) -> tuple[Tensors, Tensors]:
    """The backbone's and the head's tensors (`projector.*`, `predictor.*`). Raises ZooError for a key of no part."""
    backbone: Tensors = {}
    head: Tensors = {}
    surplus = []
    for key, value in tensors.items():
        if source.left and re.match(source.left, key):
            continue
        for prefix, part in ((source.projector, "projector."), (source.predictor, "predictor."), (source.backbone, "")):
            found = re.match(prefix, key) if prefix else None
            if found:
                (head if part else backbone)[part + key[found.end() :]] = value.contiguous().clone()
                break
        else:
            surplus.append(key)
    if surplus:
        raise ZooError(f"keys of no known part of {source.about}: {', '.join(surplus)}")
    return backbone, head


def _stem_padding(backbone: Tensors, source: Source) -> int:
    """2 for a 3x3 stem of the libraries that pad by 2; the weights alone do not show it."""
    stem = backbone.get("conv1.weight")
    return source.stem_padding if stem is not None and stem.shape[-1] == 3 else 1


def _fill(network: torch.nn.Module, tensors: Tensors, name: str) -> None:
    """Raises ZooError with every missing, surplus and misshapen key."""
    own = network.state_dict()
    missing, surplus = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    shapes = [
        f"{key} {tuple(tensors[key].shape)} instead of {tuple(own[key].shape)}"
        for key in sorted(own.keys() & tensors.keys())
        if own[key].shape != tensors[key].shape
    ]
    if missing or surplus or shapes:
        raise ZooError(
            f"the checkpoint is no {name}: missing {', '.join(missing) or 'nothing'}; left over "
            f"{', '.join(surplus) or 'nothing'}; other shapes: {', '.join(shapes) or 'none'}. Is --as another backbone?"
        )
    network.load_state_dict(tensors)


def export_backbone(encoder: Encoder, target: Target) -> Tensors:
    """The backbone of a ResNet under torchvision's keys (`fc` left out), or under Detectron2's.

    Detectron2 takes RGB images scaled as torch does: set INPUT.FORMAT to RGB, PIXEL_MEAN and PIXEL_STD to 255 times the
    encoder's, RESNETS.STRIDE_IN_1X1 to False. Raises ZooError for a network that is no ResNet with an ImageNet stem.
    """
    tensors = {key: value.detach().cpu().clone() for key, value in encoder.backbone.state_dict().items()}
    stem = tensors.get("conv1.weight")
    if stem is None or stem.shape[-1] != 7:
        raise ZooError(f"{target} has only ResNets with a 7x7 stem; zoo publish makes a form that plain timm opens")
    if target == "torchvision":
        return tensors
    return {_detectron2_key(key): value for key, value in tensors.items() if not key.endswith("num_batches_tracked")}


def _detectron2_key(key: str) -> str:
    """`layer1.0.bn1.weight` -> `res2.0.conv1.norm.weight`."""
    key = re.sub(r"^layer(\d)\.", lambda found: f"res{int(found[1]) + 1}.", key)
    key = re.sub(r"^(conv1|bn1)\.", r"stem.\1.", key)
    key = key.replace(".downsample.0.", ".shortcut.").replace(".downsample.1.", ".shortcut.norm.")
    return re.sub(r"\bbn(\d)\.", r"conv\1.norm.", key)
