"""A recipe for images of the user's own: the hyperparameters of a published recipe, scaled to the data set.

    recipe, reasons = own_recipe("simco-r18-birds", images=20_000, image_size=64)

The papers train for hundreds of epochs on 50,000 images and more. What a smaller or larger data set, or a start from
trained weights, changes is decided here, and each decision has its reason, which is printed when training begins.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from train.recipe import Recipe, find_recipe, recipes
from zoo.errors import BadNumber, ZooError, unknown
from zoo.hub.resolve import locate
from zoo.hub.store import read_card
from zoo.images.dataset import DATASETS
from zoo.images.opening import known_row, open_images
from zoo.model.backbone import BACKBONES, Backbone, backbone_row
from zoo.model.card import Card
from zoo.model.timm_backbone import PREFIX, timm_backbone
from zoo.names import Name, split_name

LARGE_IMAGE = 96  # pixels; from here on the recipes for ImageNet's subsets are the nearer ones
LEAST_STEPS = 8  # updates in an epoch, so that batches differ from epoch to epoch
LEAST_BATCH = 16  # images; batch normalization needs some
FROM_SCRATCH = {"images": 2_000_000, "epochs": 200}  # at most so many images seen, and so many epochs
FROM_WEIGHTS = {"images": 500_000, "epochs": 50}  # a quarter, as the features exist already
SHORT = 20_000  # updates; with fewer, SGD at the papers' rate does not get far
SHORT_RATE = 0.12  # per 256 images; the best of 0.06, 0.12 and 0.24 in 12 epochs of CIFAR-100 (train/small.py)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The flags of a training command that decide the recipe."""

    data: str | None = None
    limit: int | None = None
    stream: bool = False
    backbone: str = ""
    image_size: int | None = None
    start: str | None = None


class OwnRecipe(NamedTuple):
    """A recipe and why it is as it is."""

    recipe: Recipe
    reasons: list[str]


def recipe_for(name: str, asked: Asked) -> OwnRecipe:
    """The recipe called `name`; for a data set of the user's own, the one made for its images.

    Args:
        name: Of a recipe, or `<method>-<backbone>-<data set>[-<variant>]` with a data set of the user's own.
        asked: What the command's flags say.

    Raises:
        UnknownName: No such recipe, method, backbone or data set.
        BadData: The data set cannot be read.
    """
    parts = split_name(name) if name not in recipes() and name.count("-") in (2, 3) else None
    if parts is None or (parts.dataset in DATASETS and not asked.backbone):
        return OwnRecipe(find_recipe(name), [])
    if asked.image_size is not None and asked.image_size < 1:
        raise BadNumber(f"image_size = {asked.image_size}; at least 1 pixel is needed")
    start = read_card(locate(asked.start)) if asked.start else None
    data = known_row(parts.dataset, asked.data)
    size = asked.image_size or (start.image_size if start else data.image_size)
    backbone = _backbone(parts.backbone, asked.backbone, start)
    row = timm_backbone(backbone, image_size=size) if backbone else backbone_row(parts.backbone)
    images = open_images(parts.dataset, "train", asked.data, stream=asked.stream).sample(asked.limit)
    recipe, reasons = own_recipe(name, row, images=len(images), image_size=size, started=start is not None)
    return OwnRecipe(replace(recipe, backbone=backbone, image_size=size), reasons)


def _backbone(slug: str, asked: str, start: Card | None) -> str:
    """timm's name of the network, or "" where the zoo's table has the name's second part.

    Raises:
        ZooError: The second part is a row of the table, and another network is asked for.
    """
    if asked and slug in BACKBONES:
        raise ZooError(f"{slug} is {BACKBONES[slug].about}; give {asked} another second part of the name")
    if not asked and slug not in BACKBONES and start and start.network:
        return f"{PREFIX}{start.network['architecture']}"
    return asked


def own_recipe(name: str, row: Backbone, *, images: int, image_size: int, started: bool = False) -> OwnRecipe:
    """Scale the nearest published recipe of the method to a data set of the user's own.

    Args:
        name: `<method>-<backbone>-<data set>[-<variant>]`.
        row: The backbone.
        images: Number of images to train on.
        image_size: Side of the views in pixels.
        started: Whether training starts from trained weights.

    Raises:
        UnknownName: No recipe is of that method.
    """
    nearest = nearest_recipe(split_name(name), row, image_size=image_size)
    batch_size = batch_size_for(images, most=nearest.batch_size)
    limits = FROM_WEIGHTS if started else FROM_SCRATCH
    epochs = max(1, min(nearest.epochs, limits["epochs"], limits["images"] // images))
    raised = nearest.optimizer == "sgd" and epochs * (images // batch_size) < SHORT and not started
    rate = max(nearest.learning_rate, SHORT_RATE) if raised else nearest.learning_rate
    changes: dict[str, Any] = {
        "batch_size": batch_size, "epochs": epochs, "warmup_epochs": epochs // 10, "learning_rate": rate,
    }  # fmt: skip
    why = {
        "batch": f"{images // batch_size:,} updates in an epoch",
        "epochs": f"{epochs * images:,} images seen" + (", for it starts from trained weights" if started else ""),
        "rate": f"fewer than {SHORT:,} updates" if raised else f"as {nearest.name}",
        "queue": "at most half the images, so that few keys are of the query's own image",
    }
    low, high = nearest.view1.crop_area
    reasons = [
        f"hyperparameters of {nearest.name}, for {images:,} images at {image_size} px",
        f"batch size {batch_size} ({why['batch']}), {epochs} epochs ({why['epochs']})",
        f"learning rate {rate} for 256 images ({why['rate']}); crops of {low:.0%} to {high:.0%} of an image's area",
    ]
    if "queue_size" in {field.name for field in fields(nearest)}:
        changes["queue_size"] = queue_size_for(images, batch_size, most=vars(nearest)["queue_size"])
        reasons.append(f"a queue of {changes['queue_size']:,} keys ({why['queue']})")
    source = f"the hyperparameters of {nearest.name}, scaled to {images:,} images (train/own_images.py)"
    recipe = replace(nearest, name=name, source=source, expects="none published", **changes)
    return OwnRecipe(recipe, reasons)


def nearest_recipe(name: Name, row: Backbone, *, image_size: int) -> Recipe:
    """The published recipe of the method for the most similar network and images. Raises UnknownName."""
    known = recipes()
    of_method = {other: recipe for other, recipe in known.items() if split_name(other).method == name.method}
    if not of_method:
        raise unknown("method", name.method, dict.fromkeys(split_name(other).method for other in known))
    wanted = ("in100", "in1k") if image_size >= LARGE_IMAGE else ("cifar100", "cifar10")

    def similarity(recipe: Recipe) -> tuple[bool, bool, bool, bool, bool]:
        other = split_name(recipe.name)
        alike = recipe.backbone_row.fixed_size == row.fixed_size
        own = other.variant == "" and other.backbone != "r20"  # r20's are of 12 epochs, to compare the methods
        return alike, own, other.dataset in wanted, other.dataset == wanted[0], other.backbone == name.backbone

    return max(of_method.values(), key=similarity)


def batch_size_for(images: int, *, most: int) -> int:
    """The largest power of two, at most `most`, that leaves LEAST_STEPS updates in an epoch; at least LEAST_BATCH if
    there are so many images."""
    fits = max(LEAST_BATCH, images // LEAST_STEPS)
    return min(_power_of_two(min(most, fits)), max(2, images))


def queue_size_for(images: int, batch_size: int, *, most: int) -> int:
    """The largest power of two, at most `most` and half the images; at least one batch."""
    return max(batch_size, _power_of_two(min(most, max(1, images // 2))))


def healthy_curve(start: float, floor: float) -> str:
    """What a run that learns looks like, from the range of its loss in nats."""
    return (
        f"in a healthy run the loss starts near {start:.2f}, falls within the first epochs, and stays above "
        f"{floor:.2f}; k-NN accuracy rises. If the loss stays near {start:.2f}, try a lower --learning-rate"
    )


def _power_of_two(n: int) -> int:
    return 2 ** int(math.log2(n))
