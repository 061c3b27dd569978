"""A recipe: everything that decides what a training run produces, as one typed value whose fields are flags."""

import importlib
import json
import math
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any

import tyro

import train.methods
from train.method import Method
from train.optim import OptimizerName
from train.schedules import SCHEDULES, ScheduleName
from train.views import ViewPolicy
from zoo.errors import BadNumber, unknown
from zoo.images.dataset import Dataset, dataset_row
from zoo.model.backbone import Backbone, backbone_row
from zoo.model.card import MAX_SIDE, Card
from zoo.model.encoder import Encoder, build_network
from zoo.model.timm_backbone import timm_backbone
from zoo.names import natural_order, split_name

DESCRIPTION = ("name", "paper", "source", "expects")  # of a recipe; flags may change all other fields
LEAST = {  # of the hyperparameters that every recipe or some method's has
    "epochs": 1, "batch_size": 2, "warmup_epochs": 0, "learning_rate": 0, "weight_decay": 0,
    "hidden": 0, "projection": 1, "layers": 1, "queue_size": 1, "negatives": 1,
}  # fmt: skip
Fixed = tyro.conf.Suppress


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """Hyperparameters of one published (or our own) training run. Each method's recipe adds its own."""

    name: Annotated[str, Fixed]
    paper: Annotated[str, Fixed]  # citation
    source: Annotated[str, Fixed]  # where the numbers come from, and where we differ
    expects: Annotated[str, Fixed]  # published result with its table, or "none published"

    epochs: int
    """Passes over the training images."""
    batch_size: int
    """Images per update, over all processes."""
    optimizer: OptimizerName
    """sgd and adamw decay all weights; lars (of SimCLR, MoCo v3 or solo-learn) leaves biases and norms out."""
    learning_rate: float
    """Peak learning rate at batch size 256; it scales linearly with the batch size."""
    schedule: ScheduleName = "cosine"
    """After the warm-up: cosine to 0, or step: a tenth from 60 % of the epochs on, a hundredth from 80 % on."""
    momentum: float = 0.9
    """Of the optimiser, [0, 1); adamw's first beta."""
    weight_decay: float
    """L2 coefficient; adamw's is decoupled."""
    warmup_epochs: int = 10
    """Epochs of linear warm-up from 0; the schedule follows. Cut to a tenth of the epochs where it would fill them."""
    view1: ViewPolicy = field(default_factory=ViewPolicy)
    """Augmentation of the first view."""
    view2: ViewPolicy = field(default_factory=ViewPolicy)
    """Augmentation of the second view."""
    sizes: tuple[int, ...] = ()
    """Progressive resizing: sides of the views in pixels, each for an equal part of the epochs, such as 16 24 32.
    Empty: the encoder's own size all along."""
    backbone: str = ""
    """Any network of timm's, as timm:NAME; the name's second part is then free. Empty: the zoo's row of that part."""
    image_size: int | None = None
    """Side of the images in pixels. By default that of the start weights, else of the data set."""
    seed: int = 15
    """Of initial weights, sample order and augmentation."""

    def __post_init__(self) -> None:
        split_name(self.name)
        for name, value in asdict(self).items():
            if name in LEAST and not LEAST[name] <= value < math.inf:
                raise BadNumber(f"{name} = {value}; at least {LEAST[name]} is needed, and a finite number")
            if "temperature" in name and not value > 0:
                raise BadNumber(f"{name} = {value}; a temperature is above 0")
            if "key_momentum" in name and not 0 <= value <= 1:
                raise BadNumber(f"{name} = {value}; allowed: 0 <= {name} <= 1")
            if name in ("momentum", "row_momentum") and not 0 <= value < 1:
                raise BadNumber(f"{name} = {value}; allowed: 0 <= {name} < 1")
        if not 0 <= self.seed < 2**63:
            raise BadNumber(f"seed = {self.seed}; allowed: 0 <= seed < 2^63")
        if any(size < 1 for size in self.sizes):
            raise BadNumber(f"sizes = {self.sizes}; allowed: pixels, 1 and more each")
        if self.image_size is not None and not 1 <= self.image_size <= MAX_SIDE:
            raise BadNumber(f"image_size = {self.image_size}; allowed: 1 to {MAX_SIDE} pixels")
        if self.sizes and self.backbone_row.fixed_size:
            architecture = self.backbone_row.architecture
            raise BadNumber(f"sizes = {self.sizes}; {architecture} takes images of one size: leave them out")
        if self.warmup_epochs >= self.epochs:  # a short trial of a long recipe: keep the shape of the schedule
            object.__setattr__(self, "warmup_epochs", self.epochs // 10)

    @abstractmethod
    def method(self, encoder: Encoder) -> Method:
        """The algorithm with this recipe's hyperparameters, around `encoder`."""

    @property
    def dataset(self) -> Dataset:
        """The row of the data set in the name. Raises UnknownName."""
        return dataset_row(split_name(self.name).dataset)

    @property
    def backbone_row(self) -> Backbone:
        """The row of the network. Raises UnknownName; BadNumber if timm's cannot be trained at the image size."""
        if not self.backbone:
            return backbone_row(split_name(self.name).backbone)
        return _timm_row(self.backbone, self.image_size or self.dataset.image_size)

    def new_encoder(self) -> Encoder:
        """A randomly initialized encoder, which normalizes with the data set's mean and standard deviation."""
        size = self.image_size or self.dataset.image_size
        network = build_network(self.backbone_row, image_size=size)
        return Encoder(network, mean=self.dataset.mean, std=self.dataset.std, image_size=size)

    @property
    def peak_learning_rate(self) -> float:
        """Learning rate after warm-up, at this batch size."""
        return self.learning_rate * self.batch_size / 256

    def learning_rate_at(self, epoch: float) -> float:
        """Learning rate at `epoch` (fractional), at this batch size."""
        return SCHEDULES[self.schedule](
            epoch, peak=self.peak_learning_rate, epochs=self.epochs, warmup_epochs=self.warmup_epochs
        )

    def size_at(self, epoch: float, image_size: int) -> int:
        """Side of the views at `epoch` (fractional), pixels, for an encoder of images of image_size."""
        return self.sizes[int(epoch / self.epochs * len(self.sizes))] if self.sizes else image_size

    @property
    def view_policies(self) -> tuple[ViewPolicy, ...]:
        """The augmentation of each view that the method sees."""
        return self.view1, self.view2

    def sizes_at(self, epoch: float, image_size: int) -> tuple[int, ...]:
        """Side of each view at `epoch` (fractional), pixels, for an encoder of images of image_size."""
        return (self.size_at(epoch, image_size),) * len(self.view_policies)

    def hyperparameters(self) -> dict[str, Any]:
        """All that may be set by a flag, as plain JSON values (infinity as "inf")."""
        left_out = {*DESCRIPTION, *(key for key in ("backbone", "image_size") if not getattr(self, key))}
        chosen = {key: value for key, value in asdict(self).items() if key not in left_out}
        plain: dict[str, Any] = json.loads(json.dumps(chosen), parse_constant={"Infinity": "inf"}.__getitem__)
        return plain

    def card(self) -> Card:
        """The card of a model of this recipe before it is trained."""
        row, network = self.dataset, self.backbone_row
        return Card(
            name=self.name,
            paper=self.paper,
            expects=self.expects,
            recipe=self.hyperparameters() | {"source": self.source},
            image_size=self.image_size or row.image_size,
            mean=row.mean,
            std=row.std,
            dim=network.dim,
            network=network.to_json() if self.backbone else {},
        )


@cache
def _timm_row(name: str, image_size: int) -> Backbone:
    return timm_backbone(name, image_size=image_size)


def recipes() -> dict[str, Recipe]:
    """Every recipe of every file in `train/methods`, by name in natural order."""
    found: list[Recipe] = []
    for module in pkgutil.iter_modules(train.methods.__path__, "train.methods."):
        found += importlib.import_module(module.name).RECIPES
    return {recipe.name: recipe for recipe in sorted(found, key=lambda recipe: natural_order(recipe.name))}


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`. Raises UnknownName with the nearest names."""
    known = recipes()
    if name not in known:
        raise unknown("recipe", name, known)
    return known[name]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """What changed from one recipe's hyperparameters to another's, a line each: `epochs: 200 -> 2`."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {before} -> {after}")
    return lines
