"""Checkpoints of the papers' authors and of the libraries around them, as models of this zoo, heads kept.

    zoo convert moco_v2_800ep_pretrain.pth.tar --as mocov2-r50-in1k

A source is recognised by its keys. Every key is accounted for: it becomes part of the encoder or of the head, or its
row of `zoo.hub.checkpoint_sources` says that it stays behind; anything missing or left over is an error that lists it.
`zoo.release.key_formats` is the way back out.
"""

import re
from pathlib import Path

import torch
from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from zoo.errors import CorruptFile, ZooError
from zoo.files import sha256
from zoo.hub.checkpoint_sources import Source, source_of, statistics_of
from zoo.images.dataset import dataset_row
from zoo.model.card import Card
from zoo.model.encoder import Encoder, build_backbone, save_encoder, write_head
from zoo.names import parse_name
from zoo.provenance import today

Tensors = dict[str, Tensor]


def convert(file: Path, *, name: str, out: Path | None = None) -> Path:
    """The run folder, by default runs/NAME, of the checkpoint `file` as the model `name`.

    Raises UnknownName, FileNotFoundError; CorruptFile if the file is no checkpoint, or holds more than tensors and
    plain values; ZooError if keys are missing or left over, shapes or heads are another network's, or the folder is
    not empty.
    """
    parts = parse_name(name)
    folder = out or Path("runs", name)
    if folder.is_dir() and any(folder.iterdir()):
        raise ZooError(
            f"{folder} is not empty, and no run is replaced. Give another folder with -o, or remove it first"
        )
    size = dataset_row(parts.dataset).image_size
    tensors = read_checkpoint(file)
    source = source_of(tensors)
    _check_attention_heads(source, name, file)
    backbone, head = split_keys(tensors, source)
    padding = _stem_padding(backbone, source)
    network = build_backbone(parts.backbone, image_size=size, stem_padding=padding)
    _fill(network, backbone, name)
    mean, std = statistics_of(source, parts.dataset)
    crop = 0.875 if size >= 224 else 1.0  # as in the evaluation on ImageNet of all these sources
    encoder = Encoder(network, mean=mean, std=std, image_size=size, crop=crop)
    card = Card(
        name=name,
        paper=f"Converted from {file.name} of {source.about}",
        image_size=size,
        crop=crop,
        mean=mean,
        std=std,
        dim=encoder.dim,
        stem_padding=padding,
        expects="see the checkpoint's own documentation",
        training={"converted_from": file.name, "sha256": sha256(file), "source": source.about, "date": today()},
    )
    write_head(head, folder, save_encoder(encoder, folder, card))
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
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptFile(
            f"{file}: not a checkpoint that can be read safely ({reason}). If you trust it, save "
            "its state_dict alone: torch.save(content['state_dict'], FILE)"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise CorruptFile(f"{file}: no state_dict in it; its top level is {type(content).__name__}")
    tensors: Tensors = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            plain = re.sub(r"^(module\.|_orig_mod\.)+", "", str(key))
            if plain in tensors:
                raise CorruptFile(
                    f"{file}: two tensors are called {plain}, but for a wrapper's prefix; which one counts?"
                )
            tensors[plain] = value
    return tensors


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


def _check_attention_heads(source: Source, name: str, file: Path) -> None:
    """Raises ZooError if the source's transformer of that name has another number of them than the backbone's row."""
    if source.other_heads and re.match(source.other_heads, name):
        raise ZooError(
            f"{file} is no {name}: the {parse_name(name).backbone} of {source.about.split(':')[0]} has another number "
            "of attention heads for this method, which its keys do not show. No row of zoo/model/backbone.py has it"
        )


def _stem_padding(backbone: Tensors, source: Source) -> int:
    """2 for a 3x3 stem of the libraries that pad by 2; the weights alone do not show it."""
    stem = backbone.get("conv1.weight")
    return source.stem_padding if stem is not None and stem.shape[-1] == 3 else 1


def _fill(network: nn.Module, tensors: Tensors, name: str) -> None:
    """Raises ZooError with every missing, surplus and misshapen key."""
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
            f"the checkpoint is no {name}: missing {', '.join(missing) or 'nothing'}; left over "
            f"{', '.join(surplus) or 'nothing'}; other shapes: {', '.join(shapes) or 'none'}. Is --as another backbone?"
        )
    network.load_state_dict(tensors)
