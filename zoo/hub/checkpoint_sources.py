"""Where the parts are in the checkpoints of the papers' authors and of the libraries around them: one row a source.

Whatever the keys do not show (a stem's padding, the pixels' normalisation, a transformer's heads) stands here, too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zoo.errors import UnknownName
from zoo.images.dataset import dataset_row


class Statistics(NamedTuple):
    """Mean and standard deviation of RGB in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Source:
    """One kind of checkpoint. The patterns are regular expressions that fit the start of a key."""

    about: str
    mark: str  # a key that tells this kind from the rows below it
    backbone: str
    projector: str = ""
    predictor: str = ""
    left: str = ""  # what stays behind: key encoder, queue, classifier
    stem_padding: int = 1  # pixels, of its 3x3 stem
    statistics: Mapping[str, Statistics] = field(
        default_factory=dict
    )  # by data set, "" any other; else `zoo.images.dataset`
    other_heads: str = ""  # names of models whose transformer has another number of attention heads in this source


# How the code normalises, where it does otherwise than the rows of `zoo.images.dataset`.
RAW = Statistics((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # pixels in [0, 1] as they are
_CIFAR = Statistics((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
_STL10 = Statistics((0.4914, 0.4823, 0.4466), (0.247, 0.243, 0.261))
_LARGE = Statistics((0.485, 0.456, 0.406), (0.228, 0.224, 0.225))  # 0.228, not 0.229, in that code

# `module.` of DataParallel and `_orig_mod.` of torch.compile are dropped before. The first row whose mark fits counts.
SOURCES = (
    Source(
        "facebookresearch/moco, v1 and v2: moco/builder.py",
        mark=r"encoder_q\.",
        backbone=r"encoder_q\.",
        projector=r"encoder_q\.fc\.",
        left=r"encoder_k\.|queue(_ptr)?$",
    ),
    Source(
        "facebookresearch/moco-v3: moco/builder.py, ResNet and ViT",
        mark=r"base_encoder\.",
        backbone=r"base_encoder\.",
        projector=r"base_encoder\.(?:fc|head)\.",
        predictor=r"predictor\.",
        left=r"momentum_encoder\.",
        other_heads=r".*-vitt4-",  # its ViTs have 12 heads, or 16
    ),
    Source(
        "sthalles/SimCLR: models/resnet_simclr.py, the projector in the place of fc",
        mark=r"backbone\.fc\.",
        backbone=r"backbone\.",
        projector=r"backbone\.fc\.",
        statistics={"": RAW},
    ),
    Source(
        "vturrisi/solo-learn: solo/methods/base.py",
        mark=r"backbone\.",
        backbone=r"backbone\.",
        projector=r"projector\.",
        predictor=r"predictor\.",
        left=r"momentum_|classifier\.|queue",
        stem_padding=2,
        statistics={"stl10": _STL10},
        other_heads=r"mocov3-vitt4-|(?!mocov3)\w+-vits16-",  # 12 heads for MoCo v3 alone, else 3 and 6
    ),
    Source(
        "ChaoningZhang/Dual-temperature, built on an early solo-learn: solo/methods/base.py",
        mark=r"classifier\.|momentum_",
        backbone=r"encoder\.",
        projector=r"projector\.",
        predictor=r"predictor\.",
        left=r"momentum_|classifier\.|queue",
        stem_padding=2,
        statistics={"cifar10": _CIFAR, "cifar100": _CIFAR, "stl10": _STL10, "in1k": _LARGE, "in100": _LARGE},
        other_heads=r".*-vits16-",  # 6 heads
    ),
    Source(
        "Spijkervet/SimCLR: simclr/simclr.py",
        mark=r"encoder\.",
        backbone=r"encoder\.",
        projector=r"projector\.",
        statistics={"": RAW},
    ),
    Source(
        "tonylins/simclr-converter, Google's SimCLR under torchvision's keys; its fc is a classifier",
        mark=r"conv1\.weight$",
        backbone=r"(?=conv1\.|bn1\.|layer\d\.)",
        left=r"fc\.",
        statistics={"": RAW},
    ),
)


def source_of(keys: Iterable[str]) -> Source:
    """The row that the keys of a checkpoint belong to. Raises UnknownName."""
    keys = sorted(keys)
    for source in SOURCES:
        if any(re.match(source.mark, key) for key in keys):
            return source
    about = "; ".join(source.about for source in SOURCES)
    raise UnknownName(f"a checkpoint with keys like {keys[:4]} is of no known kind; known: {about}")


def statistics_of(source: Source, dataset: str) -> Statistics:
    """How the source's code normalises images of a data set."""
    row = dataset_row(dataset)
    own = source.statistics.get(dataset) or source.statistics.get("")
    return own or Statistics(row.mean, row.std)
