"""Checkpoints of the papers' authors and of other libraries as models of this zoo, heads kept.

    zoo convert moco_v2_800ep_pretrain.pth.tar --as mocov2-r50-in1k

The layout is recognised by its keys (`zoo.hub.layouts`). Every key is accounted for: it becomes part of the encoder or
of the head, or its layout says that it is left behind; anything missing or left over is an error.
`zoo.release.key_formats` is the way back out.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn
from torch import nn

from zoo.errors import ZooError
from zoo.files import sha256
from zoo.hub.checkpoint import Tensors, read_checkpoint
from zoo.hub.layouts import Layout, layout_of, some, statistics_of
from zoo.images.dataset import dataset_row
from zoo.model.backbone import BACKBONES, backbone_row
from zoo.model.card import Card
from zoo.model.encoder import Encoder, build_backbone, build_network, save_encoder, write_head
from zoo.names import parse_name
from zoo.provenance import today

WITH_PREDICTOR = {"mocov3": True, "byol": True, "simsiam": True, "simclr": False, "mocov1": False, "mocov2": False}


@dataclass(frozen=True)
class Converted:
    """A checkpoint as an encoder and its heads, not yet written."""

    encoder: Encoder  # with its card
    head: Tensors  # `projector.*`, `predictor.*`

    def save(self, folder: Path) -> Card:
        """Write a model folder. Returns the card with the hash of the weights."""
        assert self.encoder.card is not None
        card = save_encoder(self.encoder, folder, self.encoder.card)
        write_head(self.head, folder, card)
        return card


def convert(file: Path, *, name: str, out: Path | None = None, source: str | None = None) -> Path:
    """Convert a checkpoint file to a model folder.

    Args:
        file: A `.pth`, `.pth.tar` or `.ckpt`, of which only tensors are read.
        name: The model that it is, such as mocov2-r50-in1k.
        out: The folder to write, by default runs/NAME.
        source: The name of a layout, for files whose keys several code bases write.

    Returns:
        The folder.

    Raises:
        UnknownName, FileNotFoundError: No such name, layout or file.
        CorruptFile: The file is no checkpoint, or holds more than tensors and plain values.
        ZooError: Its keys, shapes or heads are not those of `name`, its layout is ambiguous, or the folder is taken.
    """
    parse_name(name)
    folder = out or Path("runs", name)
    if folder.is_dir() and any(folder.iterdir()):
        raise ZooError(
            f"{folder} is not empty, and no run is replaced. Give another folder with -o, or remove it first"
        )
    facts = {"converted_from": file.name, "sha256": sha256(file)} if file.is_file() else {}
    converted = convert_tensors(read_checkpoint(file), name=name, source=source, where=str(file), facts=facts)
    converted.save(folder)
    return folder


def convert_tensors(
    tensors: Tensors, *, name: str, where: str, source: str | None = None, facts: dict[str, Any]
) -> Converted:
    """The tensors of a checkpoint as the model `name`.

    Args:
        tensors: By key, prefixes of wrappers dropped.
        name: The model that it is.
        where: The file, for messages.
        source: The name of its layout, if its keys do not show it.
        facts: Entries for the card's training record.

    Raises:
        UnknownName, ZooError: See `convert`.
    """
    parts = parse_name(name)
    layout = layout_of(tensors, source)
    _check_name(layout, name, where)
    backbone, head, left = split_keys(tensors, layout)
    _check_head(layout, parts.method, head, where)
    size, padding = dataset_row(parts.dataset).image_size, _stem_padding(backbone, layout)
    network = build_network(backbone_row(parts.backbone), image_size=size, stem_padding=padding)
    _fill(network, backbone, name, where)
    mean, std = statistics_of(layout, parts.dataset)
    crop = 0.875 if size >= 224 else 1.0  # as in the evaluation on ImageNet of all these code bases
    card = Card(
        name=name,
        paper=f"Converted from {Path(where).name} of {layout.code}",
        image_size=size,
        crop=crop,
        mean=mean,
        std=std,
        dim=backbone_row(parts.backbone).dim,
        stem_padding=padding,
        expects="see the checkpoint's own documentation",
        training=facts | {"source": layout.code, "left_behind": left, "date": today()},
    )
    card = replace(card, parameters=sum(p.numel() for p in network.parameters()))
    return Converted(Encoder(network, mean=mean, std=std, image_size=size, crop=crop, card=card), head)


def split_keys(tensors: Tensors, layout: Layout) -> tuple[Tensors, Tensors, str]:
    """The tensors of the backbone, those of the head (`projector.*`, `predictor.*`), and what is left behind in words.

    Raises ZooError for a key that belongs to no part.
    """
    parts = ((layout.projector, "projector."), (layout.predictor, "predictor."), (layout.backbone, ""))
    backbone: Tensors = {}
    head: Tensors = {}
    left: Counter[str] = Counter()
    surplus = []
    for key, value in tensors.items():
        if layout.left_behind and re.match(layout.left_behind, key):
            left[key.split(".")[0]] += 1
            continue
        for pattern, part in parts:
            found = re.match(pattern, key) if pattern else None
            if found:
                rest = key[found.end() :]
                names = layout.head_renamed if part else layout.renamed
                (head if part else backbone)[part + _renamed(rest, names)] = value
                break
        else:
            surplus.append(key)
    if surplus:
        raise ZooError(f"{len(surplus)} keys belong to no known part of {layout.code}: {some(surplus)}")
    return (
        backbone,
        head,
        ", ".join(f"{part} ({count} tensor{'s' * (count > 1)})" for part, count in left.items()) or "nothing",
    )


def _renamed(key: str, names: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in names:
        key, changed = re.subn(pattern, replacement, key)
        if changed:
            return key
    return key


def _check_name(layout: Layout, name: str, where: str) -> None:
    """Raises ZooError if the layout's code does not train that method, or its transformer has other heads."""
    parts = parse_name(name)
    if not re.fullmatch(layout.methods, parts.method):
        allowed = layout.methods.replace("|", " or ")
        raise ZooError(
            f"{where} has the keys of {layout.code}, which trains {allowed}, not {parts.method}: "
            f"--as {layout.methods.split('|')[-1]}-{parts.backbone}-{parts.dataset}? Other code: --source"
        )
    if layout.other_attention and re.match(layout.other_attention, name):
        raise ZooError(
            f"{where} is no {name}: the {parts.backbone} of {layout.code.split(':')[0]} has another number of "
            "attention heads for this method, which its keys do not show. No row of zoo/model/backbone.py has it"
        )


def _check_head(layout: Layout, method: str, head: Tensors, where: str) -> None:
    """Raises ZooError if the head is another method's."""
    if not any(key.startswith("projector.") for key in head):
        return
    last = max((int(found[1]) for key in head if (found := re.match(r"projector\.(\d+)\.", key))), default=-1)
    if last not in layout.heads.get(method, (last,)):
        fits = [other for other, places in layout.heads.items() if last in places]
        raise ZooError(
            f"{where} does not hold the projector of {method} but {some(head)}. Is it {' or '.join(fits) or 'another'}?"
        )
    has = any(key.startswith("predictor.") for key in head)
    if layout.predictor and WITH_PREDICTOR.get(method, has) != has:
        raise ZooError(
            f"{where} {'holds a predictor, which' if has else 'holds no predictor, but'} {method} "
            f"{'does not have' if has else 'has one'}. Is --as another method?"
        )


def _stem_padding(backbone: Tensors, layout: Layout) -> int:
    """2 for a 3x3 stem of the libraries that pad by 2, which the weights alone do not show."""
    stem = backbone.get("conv1.weight")
    return layout.stem_padding if stem is not None and stem.shape[-1] == 3 else 1


def _fill(network: nn.Module, tensors: Tensors, name: str, where: str) -> None:
    """Load the tensors. Raises ZooError with the first missing, surplus and misshapen keys."""
    own = network.state_dict()
    if isinstance(network, SwinTransformer):  # older timm had its patch merging one stage earlier, and more buffers
        tensors = checkpoint_filter_fn(tensors, network)
    missing, surplus = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    shapes = [
        f"{key} {tuple(tensors[key].shape)} instead of {tuple(own[key].shape)}"
        for key in sorted(own.keys() & tensors.keys())
        if own[key].shape != tensors[key].shape
    ]
    if missing or surplus or shapes:
        raise ZooError(
            f"{where} is no {name}: missing {some(missing) or 'nothing'}; left over {some(surplus) or 'nothing'}; "
            f"other shapes: {some(shapes) or 'none'}. {_fitting(tensors, name)}"
        )
    network.load_state_dict(tensors)


def _fitting(tensors: Tensors, name: str) -> str:
    """Which backbone of the zoo has these keys and shapes, in a sentence."""
    parts = parse_name(name)
    size = dataset_row(parts.dataset).image_size
    for other in BACKBONES:
        try:
            with torch.device("meta"):
                state = build_backbone(other, image_size=size).state_dict()
        except ZooError:  # a transformer that takes no images of that size
            continue
        if {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in tensors.items()}:
            return f"They are those of {other}: --as {'-'.join((parts.method, other, *parts[2:])).strip('-')}"
    return "Is --as another backbone?"
