"""The layouts of published checkpoints: which key belongs to which part, one row a code base.

What the keys do not show is in the row as well: a stem's padding, how pixels were normalised, attention heads.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zoo.errors import UnknownName, ZooError, unknown
from zoo.images.dataset import dataset_row

FEW = 3  # keys in a message; a checkpoint has hundreds


class Statistics(NamedTuple):
    """Mean and standard deviation of RGB in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One kind of checkpoint. All patterns are regular expressions, matched at the start of a key."""

    name: str  # for `zoo convert --source`
    code: str  # the repository and file that write it
    marks: tuple[str, ...] = ()  # a checkpoint has this layout if each of these matches a key; none: only if named
    backbone: str
    projector: str = ""
    predictor: str = ""
    left_behind: str = ""  # key encoder, queue, classifier
    renamed: tuple[tuple[str, str], ...] = ()  # keys below the backbone, from this layout's to timm's
    methods: str = r"\w+"  # the methods of our names that this code trains
    head_renamed: tuple[tuple[str, str], ...] = ()  # keys of the heads, to the places of an nn.Sequential
    heads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by method, its projector's last place
    stem_padding: int = 1  # pixels, of a 3x3 stem
    statistics: Mapping[str, Statistics] = field(default_factory=dict)  # by data set, "" is any other; else its row's
    other_attention: str = ""  # names of models whose transformer has another number of attention heads here


RAW = Statistics((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # pixels in [0, 1] as they are
_IMAGENET = Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR = Statistics((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
_STL10 = Statistics((0.4914, 0.4823, 0.4466), (0.247, 0.243, 0.261))
_LARGE = Statistics((0.485, 0.456, 0.406), (0.228, 0.224, 0.225))  # 0.228, not 0.229, in that code

_RESNET = r"conv1\.|bn1\.|layer\d\."
_VIT = r"cls_token$|pos_embed$|patch_embed\.|blocks\.|norm\."
_MM_VIT = (  # mmpretrain/models/backbones/vision_transformer.py
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^layers\.(\d+)\.ln(\d)\.", r"blocks.\1.norm\2."),
    (r"^layers\.(\d+)\.attn\.", r"blocks.\1.attn."),
    (r"^layers\.(\d+)\.ffn\.layers\.0\.0\.", r"blocks.\1.mlp.fc1."),
    (r"^layers\.(\d+)\.ffn\.layers\.1\.", r"blocks.\1.mlp.fc2."),
    (r"^ln1\.", "norm."),
)
_MM_NECK = (  # mmpretrain/models/necks: fc0, bn0, ReLU, fc1, bn1, ...; MoCo v2's is an nn.Sequential `mlp`
    (r"^mlp\.", ""),
    *((rf"^fc{layer}\.", f"{3 * layer}.") for layer in range(4)),
    *((rf"^bn{layer}\.", f"{3 * layer + 1}.") for layer in range(4)),
)
_SEQUENTIAL = (  # nn.Sequential(*resnet.children()): the stem and the four stages by their places
    (r"^0\.", "conv1."),
    (r"^1\.", "bn1."),
    *((rf"^{stage + 3}\.", f"layer{stage}.") for stage in (1, 2, 3, 4)),
)

# Prefixes of wrappers (`module.`, `_orig_mod.`) are dropped before. The first row whose marks all match is taken.
LAYOUTS = (
    Layout(
        name="moco",
        code="facebookresearch/moco, v1 and v2: moco/builder.py",
        marks=(r"encoder_q\.",),
        backbone=r"encoder_q\.",
        projector=r"encoder_q\.fc\.",
        left_behind=r"encoder_k\.|queue(_ptr)?$",
        methods="mocov1|mocov2",
        head_renamed=((r"^(weight|bias)$", r"0.\1"),),  # v1's is one linear map
        heads={"mocov1": (0,), "mocov2": (2,)},
    ),
    Layout(
        name="mocov3",
        code="facebookresearch/moco-v3: moco/builder.py, ResNet and ViT",
        marks=(r"base_encoder\.",),
        backbone=r"base_encoder\.",
        projector=r"base_encoder\.(?:fc|head)\.",
        predictor=r"predictor\.",
        left_behind=r"momentum_encoder\.",
        methods="mocov3",
        other_attention=r".*-vitt4-",  # its ViTs have 12 heads, or 16
    ),
    Layout(
        name="dino",
        code="facebookresearch/dino: main_dino.py, the teacher; ResNet and ViT",
        marks=(r"teacher\.backbone\.",),
        backbone=r"teacher\.backbone\.",
        projector=r"teacher\.head\.",
        left_behind=r"student\.",
        methods=r"dino|ibot",
        other_attention=r".*-vits16-",  # 6 heads
    ),
    Layout(
        name="vissl",
        code="facebookresearch/vissl: models/trunks/resnext.py",
        marks=(r"trunk\._feature_blocks\.conv1\.",),
        backbone=r"trunk\._feature_blocks\.",
        projector=r"heads\.",
        statistics={"": _IMAGENET},
    ),
    Layout(
        name="openmmlab",
        code="open-mmlab/mmpretrain: models/selfsup, ResNet and ViT",
        marks=(r"backbone\.", r"neck\."),
        backbone=r"backbone\.",
        projector=r"neck\.",
        predictor=r"head\.predictor\.",
        left_behind=r"momentum_encoder\.|encoder_k\.|queue(_ptr)?$|data_preprocessor\.|head\.(?!predictor\.)|target_net\.",
        renamed=_MM_VIT,
        head_renamed=_MM_NECK,
        heads={"mocov2": (2,), "mocov3": (4, 7), "simclr": (3, 4)},
        statistics={"": _IMAGENET},
        other_attention=r".*-vitt4-|(?!mocov3)\w+-vits16-",  # 12 heads for MoCo v3 alone
    ),
    Layout(
        name="lightly-momentum",
        code="lightly-ai/lightly: benchmarks/imagenet/resnet50, methods with an encoder of the query or the student",
        marks=(r"backbone\.conv1\.", r"(query|student)_backbone\."),
        # `backbone` is what that code evaluates: the momentum encoder
        backbone=r"backbone\.",
        projector=r"projection_head\.",
        predictor=r"prediction_head\.",
        head_renamed=((r"^layers\.", ""),),
        left_behind=r"(query|student)_|online_classifier\.|criterion\.",
        statistics={"": _IMAGENET},
    ),
    Layout(
        name="lightly",
        code="lightly-ai/lightly: a ResNet under torchvision's names, or nn.Sequential of its children",
        marks=(r"backbone\.", r"projection_head\."),
        backbone=r"backbone\.",
        projector=r"projection_head\.",
        predictor=r"prediction_head\.",
        head_renamed=((r"^layers\.", ""),),
        left_behind=r"(backbone|projection_head)_momentum\.|online_classifier\.|criterion\.",
        renamed=_SEQUENTIAL,
        statistics={"": _IMAGENET},
    ),
    Layout(
        name="sthalles",
        code="sthalles/SimCLR: models/resnet_simclr.py, the projector in the place of fc",
        marks=(r"backbone\.fc\.",),
        backbone=r"backbone\.",
        projector=r"backbone\.fc\.",
        methods="simclr",
        statistics={"": RAW},
    ),
    Layout(
        name="solo-learn",
        code="vturrisi/solo-learn: solo/methods/base.py",
        marks=(r"backbone\.", r"projector\.|classifier\.|momentum_"),
        backbone=r"backbone\.",
        projector=r"projector\.",
        predictor=r"predictor\.",
        left_behind=r"momentum_|classifier\.|queue",
        stem_padding=2,
        statistics={"stl10": _STL10},
        other_attention=r"mocov3-vitt4-|(?!mocov3)\w+-vits16-",  # 12 heads for MoCo v3 alone, else 3 and 6
    ),
    Layout(
        name="dual-temperature",
        code="ChaoningZhang/Dual-temperature, built on an early solo-learn: solo/methods/base.py",
        marks=(r"encoder\.", r"classifier\.|momentum_"),
        backbone=r"encoder\.",
        projector=r"projector\.",
        predictor=r"predictor\.",
        left_behind=r"momentum_|classifier\.|queue",
        stem_padding=2,
        statistics={"cifar10": _CIFAR, "cifar100": _CIFAR, "stl10": _STL10, "in1k": _LARGE, "in100": _LARGE},
        other_attention=r".*-vits16-",  # 6 heads
    ),
    Layout(
        name="spijkervet",
        code="Spijkervet/SimCLR: simclr/simclr.py",
        marks=(r"encoder\.", r"projector\."),
        backbone=r"encoder\.",
        projector=r"projector\.",
        methods="simclr",
        statistics={"": RAW},
    ),
    Layout(
        name="google-simclr",
        code="tonylins/simclr-converter, Google's SimCLR under torchvision's keys; its fc is a classifier",
        backbone=rf"(?={_RESNET})",
        left_behind=r"fc\.",
        methods="simclr",
        statistics={"": RAW},
    ),
    Layout(
        name="plain",
        code="a bare backbone under torchvision's or timm's keys, normalised as its data set usually is",
        backbone=rf"(?:teacher\.)?(?={_RESNET}|{_VIT})",
        left_behind=r"(?:teacher\.)?(?:fc|head)\.|student\.",
        other_attention=r"mocov3-vitt4-|(?!mocov3)\w+-vits16-",  # 12 heads for MoCo v3 alone
    ),
)


def some(keys: Iterable[str]) -> str:
    """The first three of many keys, and how many more there are."""
    names = list(keys)
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def layout_of(keys: Iterable[str], source: str | None = None) -> Layout:
    """The layout of a checkpoint with these keys.

    Args:
        keys: Without the prefixes of wrappers.
        source: The name of a layout, for keys that several code bases write.

    Raises:
        UnknownName: No layout has such keys, or none is called `source`.
        ZooError: Several layouts are possible, or the keys are not those of `source`.
    """
    keys = sorted(keys)
    if source is not None:
        return _named(source, keys)
    for layout in LAYOUTS:
        if layout.marks and all(_any(mark, keys) for mark in layout.marks):
            return layout
    possible = [layout for layout in LAYOUTS if _any(_stem(layout), keys)]
    if not possible:
        raise UnknownName(
            f"a checkpoint with keys like {some(keys)} has no known layout; known: "
            f"{'; '.join(f'{layout.name} ({layout.code})' for layout in LAYOUTS)}"
        )
    raise ZooError(
        f"keys like {some(keys)} are those of a bare backbone, which do not show whose code trained it, and so not how "
        f"its pixels were normalised. Say it: {' or '.join(f'--source {layout.name}' for layout in possible)} "
        f"({'; '.join(f'{layout.name}: {layout.code}' for layout in possible)})"
    )


def _named(source: str, keys: list[str]) -> Layout:
    names = {layout.name: layout for layout in LAYOUTS}
    if source not in names:
        raise unknown("source", source, names)
    layout = names[source]
    if not _any(_stem(layout), keys):
        raise ZooError(f"keys like {some(keys)} are not those of --source {source} ({layout.code})")
    return layout


def _stem(layout: Layout) -> str:
    """The key of a first convolution or class token, as this layout has it."""
    sequential = r"|0\.weight" if layout.renamed == _SEQUENTIAL else ""
    return rf"{layout.backbone}(?:conv1\.weight|cls_token{sequential})$"


def _any(pattern: str, keys: list[str]) -> bool:
    return any(re.match(pattern, key) for key in keys)


def statistics_of(layout: Layout, dataset: str) -> Statistics:
    """How the layout's code normalises images of a data set."""
    row = dataset_row(dataset)
    found = layout.statistics.get(dataset) or layout.statistics.get("")
    return found or Statistics(row.mean, row.std)
