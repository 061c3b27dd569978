"""Images above 96 px: opened without decoding, measured batch by batch."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eval.contestants import open_contestant
from eval.features import extract
from eval.score import score
from eval.sources import open_source
from zoo.errors import BadData
from zoo.images.dataset import DATASETS
from zoo.images.opening import open_images
from zoo.images.pixels import preprocess


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """3 classes x 8 train and 3 test JPEGs of 240 x 230 px: each class has a colour of its own."""
    rng = np.random.default_rng(0)
    for split, n in {"train": 8, "test": 3}.items():
        for label, colour in enumerate(((200, 40, 40), (40, 200, 40), (40, 40, 200))):
            folder = tmp_path / "pets" / split / "abc"[label]
            folder.mkdir(parents=True)
            for i in range(n):
                noise = rng.integers(-30, 30, (230, 240, 3)) + np.array(colour)
                Image.fromarray(noise.astype(np.uint8)).save(folder / f"{i}.jpg")
    return tmp_path / "pets"


def test_a_split_of_large_images_has_the_pixels_of_the_one_preprocessing_in_the_order_of_its_files(large, home):
    split = open_images("pets", "train", data=large)
    files = sorted((large / "train").rglob("*.jpg"))
    assert not split.in_memory
    assert split.pixels().shape == (24, 224, 224, 3)
    assert split.labels.tolist() == np.repeat([0, 1, 2], 8).tolist()
    assert split.classes == ("a", "b", "c")
    index = np.array([20, 3, 3])
    expected = np.stack([preprocess(files[i], image_size=224) for i in index])
    assert np.array_equal(split.pixels()[index], expected)
    assert np.array_equal(split.pixels()[20], expected[0])
    assert np.array_equal(split.pixels()[3:4], expected[1:2])
    assert split.pixels()[:0].shape == (0, 224, 224, 3)
    few = split.sample(5)
    drawn = np.sort(np.random.default_rng(0).permutation(24)[:5])
    assert np.array_equal(few.pixels()[:], split.pixels()[drawn])
    assert few.labels.tolist() == split.labels[drawn].tolist()
    assert not (home / "cache" / "pixels").exists()  # nothing decoded is kept


def test_large_images_are_measured_with_every_kind_of_encoder(large):
    rows = score(["timm:test_resnet", "pixels:"], data={"pets": large}, protocols=["knn", "fewshot", "geometry"])
    pixels = [row for row in rows if row.encoder.name == "pixels at 32 px"]
    assert [row.value for row in pixels[:2]] == [1.0, 1.0]  # by colour alone
    assert {row.metric for row in rows[:2]} == {"mean per-class accuracy"}
    encoder = open_contestant("timm:test_resnet", "pets").encoder
    assert (encoder.image_size, encoder.crop) == (160, 0.95)  # resized once, from the files, as `embed` does
    source, features = open_source("pets", large).seen_by(encoder), encoder.embed(sorted(large.rglob("test/*/*.jpg")))
    assert np.array_equal(extract(encoder, source.test).rows, features)


def test_nothing_is_decoded_before_it_is_asked_for_and_a_broken_image_is_told_by_name(large):
    (large / "train" / "b" / "4.jpg").write_bytes(b"\xff\xd8 no picture")
    split = open_images("pets", "train", data=large)
    assert split.pixels()[:12].shape == (12, 224, 224, 3)
    with pytest.raises(BadData, match=r"b/4.jpg cannot be decoded.*Remove it"):
        split.pixels()[12]
    (row,) = score("pixels:", data={"pets": large})
    assert (row.data.n_train, row.data.skipped) == (23, 1)


def test_a_test_split_of_copies_is_refused_by_the_bytes_of_its_files(large):
    (large / "test" / "a" / "0.jpg").write_bytes((large / "train" / "c" / "5.jpg").read_bytes())
    assert open_source("pets", large).measured.duplicates == 1
    for label in "abc":
        for i in range(3):
            (large / "test" / label / f"{i}.jpg").write_bytes((large / "train" / label / f"{i}.jpg").read_bytes())
    with pytest.raises(BadData, match="9 of 9 test images are train images"):
        open_source("pets", large)


def test_large_images_need_a_local_copy_and_no_more_classes_than_the_row(large):
    with pytest.raises(BadData, match="give its folder or archive as data"):
        open_images("in1k", "train", data=None)
    for i in range(DATASETS["pets"].classes):
        (large / "test" / f"more-{i:02}").mkdir()
        (large / "test" / f"more-{i:02}" / "0.jpg").write_bytes((large / "test" / "a" / "0.jpg").read_bytes())
    with pytest.raises(BadData, match="40 classes, allowed 37"):
        open_images("pets", "test", data=large)
