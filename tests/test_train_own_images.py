"""Recipes for images of the user's own: the nearest published one, scaled to the data set."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import zoo
from train.own_images import Asked, batch_size_for, nearest_recipe, own_recipe, queue_size_for, recipe_for
from train.pretrain import pretrain
from zoo.errors import UnknownName
from zoo.model.backbone import backbone_row
from zoo.names import split_name

R18, VIT = backbone_row("r18"), backbone_row("vitt4")


@pytest.mark.parametrize(
    ("name", "row", "image_size", "nearest"),
    [
        ("simco-r18-birds", R18, 32, "simco-r18-cifar100"),
        ("simco-r20-birds", R18, 64, "simco-r18-cifar100"),
        ("simco-convnext-birds", R18, 224, "simco-r18-in100"),
        ("mocov3-r50-birds", R18, 224, "mocov3-r50-in100"),
        ("mocov3-vitt4-birds", VIT, 32, "mocov3-vitt4-cifar100"),
        ("mocov3-mine-birds", VIT, 224, "mocov3-vits16-in100"),
        ("simclr-r18-birds-long", R18, 48, "simclr-r18-cifar100"),
        ("mocov1-r50-birds", R18, 224, "mocov1-r50-in1k"),
    ],
)
def test_the_nearest_recipe_is_of_the_method_then_of_the_kind_of_network_then_of_the_size_of_image(
    name, row, image_size, nearest
):
    assert nearest_recipe(split_name(name), row, image_size=image_size).name == nearest


def test_an_unknown_method_is_told_the_nearest_ones():
    with pytest.raises(UnknownName, match="unknown method 'simcoo'; nearest: simco"):
        own_recipe("simcoo-r18-birds", R18, images=100, image_size=32)


@pytest.mark.parametrize(
    ("images", "most", "batch_size"),
    [(50_000, 256, 256), (2_249, 256, 256), (2_000, 256, 128), (1_657, 128, 128), (156, 256, 16), (20, 256, 16),
     (10, 256, 10), (1, 256, 2), (122_208, 512, 512)],
)  # fmt: skip
def test_a_batch_leaves_eight_updates_in_an_epoch_where_there_are_enough_images(images, most, batch_size):
    assert batch_size_for(images, most=most) == batch_size


@pytest.mark.parametrize(
    ("images", "batch_size", "keys"), [(50_000, 256, 4096), (4_000, 256, 1024), (3_840, 128, 1024), (100, 64, 64)]
)
def test_a_queue_holds_at_most_half_the_images_and_at_least_a_batch(images, batch_size, keys):
    assert queue_size_for(images, batch_size, most=4096) == keys


def test_a_small_data_set_is_seen_more_often_and_at_the_rate_of_short_runs():
    recipe, reasons = own_recipe("simco-r18-birds", R18, images=2_249, image_size=64)
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate) == (200, 256, 0.12)
    assert reasons[0] == "hyperparameters of simco-r18-cifar100, for 2,249 images at 64 px"
    assert reasons[1] == "batch size 256 (8 updates in an epoch), 200 epochs (449,800 images seen)"


def test_a_large_one_sees_two_million_images():
    recipe, _ = own_recipe("simco-r18-birds", R18, images=122_208, image_size=64)
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate) == (16, 256, 0.12)
    recipe, _ = own_recipe("mocov2-r18-birds", R18, images=30_000, image_size=64)
    assert (recipe.epochs, recipe.queue_size, recipe.learning_rate) == (66, 4096, 0.12)


def test_a_start_from_trained_weights_takes_a_quarter_of_the_images_at_the_published_rate():
    recipe, reasons = own_recipe("simco-r18-birds", R18, images=20_000, image_size=64, started=True)
    assert (recipe.epochs, recipe.learning_rate) == (25, 0.03)
    assert "starts from trained weights" in reasons[1]


def test_the_recipe_bears_its_own_name_and_promises_no_published_result():
    recipe, _ = own_recipe("mocov3-vitt4-birds", VIT, images=5_000, image_size=32)
    assert (recipe.name, recipe.expects, recipe.optimizer) == ("mocov3-vitt4-birds", "none published", "adamw")
    assert recipe.source.startswith("the hyperparameters of mocov3-vitt4-cifar100, scaled to 5,000 images")


def test_a_start_gives_the_image_size_and_the_network(tmp_path):
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 48, 3), np.uint8)
        (tmp_path / "birds" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "birds" / "ab"[number % 2] / f"{number}.png")
    data = str(tmp_path / "birds")
    first, _ = recipe_for("simco-mine-birds", Asked(data=data, backbone="timm:test_convnext", image_size=40))
    run = pretrain(replace(first, epochs=1, batch_size=2), data=data, out=tmp_path / "run", knn_every=0)
    second, reasons = recipe_for("simco-mine-birds-more", Asked(data=data, start=str(run)))
    assert (second.backbone, second.image_size) == ("timm:test_convnext", 40)
    assert "starts from trained weights" in reasons[1]
    second = replace(second, epochs=1, batch_size=2)
    more = pretrain(second, data=data, start=str(run), out=tmp_path / "more", knn_every=0)
    assert zoo.load(more).card.training["start"]["name"] == "simco-mine-birds"
