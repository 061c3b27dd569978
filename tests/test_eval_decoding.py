"""Large images: each is decoded once for all encoders; those that cannot be are left out, counted and named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

import zoo.images.image_set
from eval.decoding import DecodedOnce, readable
from eval.score import score
from eval.sources import open_source
from eval.tables import notes
from zoo.errors import BadData
from zoo.images.opening import open_images


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An image folder of 2 classes x 6 train and 3 test images of 120 px, as of a set that is read on demand."""
    rng = np.random.default_rng(0)
    for split, n in {"train": 6, "test": 3}.items():
        for channel, label in enumerate(("red", "green")):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(n):
                image = rng.integers(0, 90, (120, 120, 3), np.uint8)
                image[..., channel] += 150
                Image.fromarray(image).save(tmp_path / split / label / f"{i}.png")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Names of the images that were decoded, as it happens."""
    names, decode = [], zoo.images.image_set.decode

    def noted(name, picture):
        names.append(name)
        return decode(name, picture)

    monkeypatch.setattr(zoo.images.image_set, "decode", noted)
    return names


def mean_colour(images):
    return images.mean((2, 3))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("dataset", ["dtd", "rsscn7"])
def test_what_cannot_be_decoded_is_left_out_counted_and_the_same_for_every_encoder_at_any_size(large, dataset):
    truncate(large / "train" / "red" / "2.png")
    truncate(large / "test" / "green" / "0.png")
    (large / "train" / "red" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (large / "train" / "README.txt").write_text("no image")
    results = score([mean_colour, "pixels:"], data={dataset: large})
    assert [(one.data.n_train, one.data.n_test, one.data.skipped) for one in results] == [(11, 5, 2)] * 2
    assert results[0].value == 1.0
    assert f"- {dataset}: 2 images could not be decoded and are left out." in notes(results)
    named = [*open_source(dataset, large).train.skipped]
    assert [name.endswith("red/2.png") for name in named] == [True]


def test_each_image_is_decoded_once_for_three_encoders_and_not_at_all_where_features_are_kept(large, decoded):
    class Mean(nn.Module):
        def forward(self, images):
            return mean_colour(images)

    class Deviation(nn.Module):
        def forward(self, images):
            return images.std((2, 3))

    three = [Mean(), Deviation(), mean_colour]
    first = score(three, data={"dtd": large})
    assert len(decoded) == 18
    assert max(decoded.count(name) for name in decoded) == 2  # red/0.png is in train and in test
    assert first[0].value == first[2].value
    decoded.clear()
    assert [one.value for one in score(three[:2], data={"dtd": large})] == [one.value for one in first[:2]]
    assert decoded == []


def test_shared_pixels_are_those_that_decoding_gives_at_every_size_and_crop(large):
    images = open_images("dtd", "train", large)
    once = DecodedOnce()
    for size, crop in ((224, 1.0), (64, 1.0), (224, 0.875)):
        shared, plain = once.sized(images, size, crop=crop), images.sized(size, crop=crop)
        assert np.array_equal(shared.pixels()[np.array([5, 0, 5])], plain.pixels()[np.array([5, 0, 5])])
        assert np.array_equal(shared.pixels()[:], plain.pixels()[:])
        assert np.array_equal(shared.pixels()[3], plain.pixels()[3])
        assert once.sized(images, size, crop=crop) is shared


def test_a_changed_file_is_looked_at_again_and_a_split_without_any_image_is_an_error(large):
    images = open_images("dtd", "test", large)
    assert len(readable(images, DecodedOnce())) == 6
    for path in (large / "test").rglob("*.png"):
        truncate(path)
    with pytest.raises(BadData, match=r"none of 6 test images can be decoded, such as .*png"):
        readable(open_images("dtd", "test", large), DecodedOnce())


def test_images_that_are_not_the_published_ones_are_told_with_the_difference(large):
    """Two classes of photographs under the name of a set with 7 classes of aerial scenes, and of one with 47."""
    (result,) = score("pixels:", data={"rsscn7": large})
    assert notes([result]) == ["- rsscn7: not the published data set: 2 classes, not 7."]
    (result,) = score("pixels:", data={"dtd": large})
    counts = "12 train images, not 3,760, 6 test images, not 1,880"
    assert notes([result]) == [f"- dtd: not the published data set: 2 classes, not 47, {counts}."]


@pytest.mark.realdata
def test_the_real_cifar100_is_the_published_one_and_one_changed_pixel_is_told(cifar100):
    from dataclasses import replace

    from eval.published_data import difference_from_published

    train, test = (open_images("cifar100", split, cifar100) for split in ("train", "test"))
    assert difference_from_published("cifar100", train, test) == ""
    order = np.random.default_rng(0).permutation(len(test))
    assert difference_from_published("cifar100", train, test.part(order, digest="")) == ""
    pixels = np.array(test.array)
    pixels[77, 3, 4, 0] ^= 1
    assert difference_from_published("cifar100", train, replace(test, array=pixels)) == "other test images"
    few = test.sample(1000)
    assert difference_from_published("cifar100", train, few) == "1,000 test images, not 10,000"
