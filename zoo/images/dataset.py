"""The data sets a name may carry, one row each.

mean and std stand here once. They travel into the encoder, its card and its ONNX graph; nothing else normalises.
`zoo.images.opening.open_images` opens a row.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from zoo.errors import unknown

SplitName = Literal["train", "test"]
Metric = Literal["top-1 accuracy", "mean per-class accuracy", "11-point mAP"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
DIGITS = "sklearn:digits"  # comes with scikit-learn


@dataclass(frozen=True)
class Dataset:
    """One data set: where it is, what it holds, how its pixels are normalised."""

    hub: str  # id on the Hugging Face Hub, DIGITS, or "" where a data set has to be brought along
    classes: int
    image_size: int  # pixels, H = W, that its images are brought to
    mean: tuple[float, float, float]  # of RGB in [0, 1], over the train split
    std: tuple[float, float, float]  # over all pixels of the train split
    licence: str
    label: str = "label"  # column of the class index
    metric: Metric = "top-1 accuracy"  # that its papers report
    place: str = ""  # path or Hub id of a data set of the user's own; "" for those of this package
    image: str = ""  # column of the pictures; "" where it is found by its name
    names: tuple[str, ...] = ()  # of the classes of a data set of the user's own

    @property
    def own(self) -> bool:
        """Whether it is one of the user's own data sets."""
        return bool(self.place)

    @property
    def several_labels(self) -> bool:
        """Whether an image may be of several classes, as in a folder in VOC layout; its labels are then (n, C)."""
        return self.metric == ELEVEN_POINT

    @property
    def hub_id(self) -> str:
        """The id on the Hugging Face Hub; "" where it has none."""
        return "" if self.hub == DIGITS else self.hub


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNCHECKED = "not recorded here; see the data set's own page"
PER_CLASS: Metric = "mean per-class accuracy"
ELEVEN_POINT: Metric = "11-point mAP"

DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset("uoft-cs/cifar10", 10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "unknown"),
    "cifar100": Dataset(
        "uoft-cs/cifar100", 100, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "unknown", label="fine_label"
    ),
    # mean and std over the train splits, as published many times to these digits; no Hub copy of ours to read
    "stl10": Dataset("", 10, 96, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), "unknown"),
    "svhn": Dataset("", 10, 32, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "non-commercial use"),
    # mean and std of the official MoCo code and of torchvision; std is over images, not pixels
    "in100": Dataset("", 100, 224, IMAGENET_MEAN, IMAGENET_STD, "non-commercial research"),
    "in1k": Dataset("", 1000, 224, IMAGENET_MEAN, IMAGENET_STD, "non-commercial research"),
    # the sets of Kornblith et al. 2019, table 1, for transfer; normalised as ImageNet
    "food101": Dataset("", 101, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED),
    "cars": Dataset("", 196, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED),
    "sun397": Dataset("", 397, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED),
    "dtd": Dataset("", 47, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED),
    "aircraft": Dataset("", 100, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED, metric=PER_CLASS),
    "pets": Dataset("", 37, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED, metric=PER_CLASS),
    "caltech101": Dataset("", 102, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED, metric=PER_CLASS),
    "flowers102": Dataset("", 102, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED, metric=PER_CLASS),
    "voc2007": Dataset("", 20, 224, IMAGENET_MEAN, IMAGENET_STD, UNCHECKED, metric=ELEVEN_POINT),
    # scikit-learn's 1,797 handwritten digits, 8x8 grey repeated to RGB: the first 80 % train, the rest test
    "digits": Dataset(DIGITS, 10, 8, (0.3055,) * 3, (0.3754,) * 3, "BSD-3-Clause"),
    # 2,800 aerial scenes (Zou et al. 2015), brought to 64 px
    "rsscn7": Dataset("", 7, 64, (0.3731, 0.3837, 0.3439), (0.1847, 0.1666, 0.1714), "research use"),
    # 2,062 photos of hands that sign the digits 0 to 9, brought to 64 px
    "signdigits": Dataset("", 10, 64, (0.6747, 0.6457, 0.6163), (0.1429, 0.1588, 0.1856), "Apache-2.0"),
}


def dataset_row(name: str) -> Dataset:
    """The row called `name`, of this package or of the user's own. Raises UnknownName with the nearest names."""
    if name in DATASETS:
        return DATASETS[name]
    from zoo.images.registry import facts_file, kept_names, read_facts  # which makes rows, and so imports this module

    if re.fullmatch("[a-z0-9]+", name) and facts_file(name).is_file():
        return read_facts(name).row()
    raise unknown(
        "data set", name, [*DATASETS, *kept_names()], "A data set of your own gets a name by: zoo data NAME PATH"
    )
