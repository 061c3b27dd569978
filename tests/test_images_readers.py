"""What a user's own files look like: links, hidden folders, masks, odd columns, broken pictures; all readers alike."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from eval.score import score
from eval.sources import open_source
from serve.index import entries_below
from serve.inputs import images_of, shards_of
from train.batches import batches
from train.views import ViewPolicy, Views
from zoo.cli.embed import images_below
from zoo.errors import BadData
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.images.pixels import read_rgb
from zoo.images.walk import find_images, summary

WHOLE = ViewPolicy(crop_area=(1, 1), crop_ratio=(0.01, 100), flip=0, jitter=0, grey=0)


def picture(level: int, width: int = 40, height: int = 40) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path.parent


def levels(images: ImageSet) -> list[int]:
    return [int(np.asarray(image)[0, 0, 0]) for image in images.pixels()]


def readers(folder: Path) -> dict[str, set[str]]:
    """The names of the images that each reader finds below a folder."""
    own = [open_images("rsscn7", "train", f"folder:{folder}", stream=stream) for stream in (False, True)]
    return {
        "memory": {own[0].read(i).name for i in range(len(own[0]))},
        "stream": {own[1].read(i).name for i in range(len(own[1]))},
        "embed": {path.relative_to(folder).as_posix() for path in images_below(folder, [])},
        "index": {entry.path for entry in entries_below(folder)},
        "bulk": {name for shard in shards_of(str(folder)) for name, _ in images_of(str(folder), shard)},
    }


def test_all_readers_find_the_same_images_behind_links_and_none_in_hidden_folders(tmp_path):
    elsewhere = write(tmp_path / "elsewhere", {"1.png": picture(1), "deep/2.JPG": picture(2)})
    data = write(tmp_path / "data", {"cat/3.png": picture(3), "cat/.thumbnails/3.png": picture(9)})
    write(data, {"__MACOSX/cat/3.png": picture(9), ".ipynb_checkpoints/4.png": picture(9), "README.txt": b"no image"})
    (data / "dog").symlink_to(elsewhere)
    (data / "dog" / "back").symlink_to(data)
    (data / "lost.png").symlink_to("nowhere")
    found = readers(data)
    assert all(names == {"cat/3.png", "dog/1.png", "dog/deep/2.JPG"} for names in found.values()), found


def test_a_link_never_takes_the_images_of_the_folder_it_points_to(tmp_path):
    write(tmp_path, {"train/dog/1.png": picture(1), "train/cat/2.png": picture(2)})
    (tmp_path / "train" / "a link").symlink_to("dog")
    found = find_images(tmp_path / "train")
    assert [str(path) for path in found.paths] == ["cat/2.png", "dog/1.png"]
    assert found.skipped == {"a link": "a link to a folder that is searched already"}


def test_pictures_that_cannot_be_read_are_named_and_other_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.images.walk.reads_heif", lambda: False)
    monkeypatch.setattr("zoo.images.opening.reads_heif", lambda: False)
    files = {"1.png": picture(1), "2.HEIC": b"heic", "3.cr2": b"raw", "notes.txt": b"", "more.txt": b"", "LICENSE": b""}
    write(tmp_path, files)
    found = find_images(tmp_path)
    assert list(found.skipped) == ["2.HEIC", "3.cr2"]
    assert "pip install pillow-heif" in found.skipped["2.HEIC"]
    assert summary(found.others) == "3 files are no images: 2 .txt, 1 without suffix"
    images = open_images("rsscn7", "train", f"folder:{tmp_path}")
    assert (len(images), images.listed, list(images.skipped)) == (1, 3, ["2.HEIC", "3.cr2"])


# --------------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize("linked", ["train", "train/cat"])
def test_pictures_replaced_behind_a_link_are_decoded_again(tmp_path, linked):
    depth = linked.count("/")
    write(tmp_path / "disk", {"1.png" if depth else "cat/1.png": picture(10)})
    (tmp_path / "data" / linked).parent.mkdir(parents=True)
    (tmp_path / "data" / linked).symlink_to(tmp_path / "disk")
    assert levels(open_images("rsscn7", "train", tmp_path / "data")) == [10]
    write(tmp_path / "disk", {"1.png" if depth else "cat/1.png": picture(200)})
    assert levels(open_images("rsscn7", "train", tmp_path / "data")) == [200]


def test_a_picture_replaced_at_equal_size_and_time_gives_new_pixels_and_new_features(tmp_path):
    """As from an archive that notes no times: BMPs of one size are of one length."""

    def fill(name: str, level: int, side: int) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(path)
        os.utime(path, (0, 0))

    for side, name in ((20, "rsscn7"), (120, "pets")):
        fill("train/cat/1.bmp", 10, side)
        before = open_images(name, "train", tmp_path)
        old = (before.digest, before.state)
        fill("train/cat/1.bmp", 200, side)
        after = open_images(name, "train", tmp_path)
        assert levels(after) == [200]
        assert (after.digest, after.state) != old


# -------------------------------------------------------------------------------------------------------- schemas


def shard(path: Path, columns: dict[str, list]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path.parent


def cells(*shades: int) -> list[dict]:
    return [{"bytes": picture(shade), "path": None} for shade in shades]


def test_a_column_of_masks_before_the_images_is_not_taken_for_them(tmp_path):
    shard(tmp_path / "train-0.parquet", {"annotation": cells(0, 0), "image": cells(50, 60), "label": [1, 2]})
    for stream in (False, True):
        images = open_images("rsscn7", "train", tmp_path, stream=stream)
        assert (levels(images), images.labels.tolist()) == ([50, 60], [1, 2])


def test_one_column_of_any_name_is_the_images_and_two_are_refused_with_their_names(tmp_path):
    shard(tmp_path / "a" / "train-0.parquet", {"scan": cells(50), "label": [1]})
    assert levels(open_images("rsscn7", "train", tmp_path / "a")) == [50]
    shard(tmp_path / "b" / "train-0.parquet", {"mask": cells(0), "scan": cells(50), "label": [1]})
    for read in (lambda: open_images("rsscn7", "train", tmp_path / "b"), lambda: shards_of(str(tmp_path / "b"))):
        with pytest.raises(BadData, match="which column holds the images: mask, scan"):
            read()


@pytest.mark.parametrize("column", ["labels", "target", "Label", "class"])
def test_the_usual_names_of_a_label_column_are_known(tmp_path, column):
    shard(tmp_path / "train-0.parquet", {"image": cells(1, 2), column: [3, 4]})
    assert open_images("rsscn7", "train", tmp_path).labels.tolist() == [3, 4]


def test_class_names_as_labels_mean_the_same_in_both_splits_even_where_one_lacks_some(tmp_path):
    names = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
    shard(tmp_path / "train-0.parquet", {"image": cells(*range(7)), "label": names})
    shard(tmp_path / "test-0.parquet", {"image": cells(1, 2), "label": ["gnu", "bee"]})
    train, test = (open_images("rsscn7", split, tmp_path) for split in ("train", "test"))
    assert train.classes == test.classes == tuple(names)
    assert test.labels.tolist() == [6, 1]


def test_the_hubs_own_layout_and_a_shard_without_rows_are_read(tmp_path):
    shard(tmp_path / "default" / "train" / "0000.parquet", {"image": cells(1, 2), "label": [3, 4]})
    table = pq.read_table(tmp_path / "default" / "train" / "0000.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "default" / "train" / "0001.parquet")
    assert open_images("rsscn7", "train", tmp_path).labels.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("files", "shades", "labels"),
    [
        ({"0.jpg": 1, "0.seg.png": 0, "0.cls": b"1", "1.jpg": 2, "1.seg.png": 0, "1.cls": b"2"}, [1, 2], [1, 2]),
        ({"0.seg.png": 0, "0.image.png": 1, "0.cls": b"1", "1.seg.png": 0, "1.image.png": 2}, [1, 2], [1, -1]),
        ({"v1.5_0.jpg": 1, "v1.5_0.cls": b"1", "v1.5_1.jpg": 2, "v1.5_1.cls": b"2"}, [1, 2], [1, 2]),
        ({"photo.jpg": 1, "photo.cls": b"1", "photo.2.jpg": 2, "photo.2.cls": b"5"}, [1, 2], [1, 5]),
        ({"v1.5.jpg": 1, "v1.6.jpg": 2}, [1, 2], [-1, -1]),
        ({"0.png": 0, "0.jpg": 1, "0.json": b'{"label": 4}', "1.jpg": 2, "1.json": b'{"text": "?"}'}, [1, 2], [4, -1]),
        ({"a/0.jpg": 1, "a/0.cls": b"1", "b/0.jpg": 2, "b/0.cls": b"2"}, [1, 2], [1, 2]),
    ],
)
def test_a_sample_of_a_tar_is_one_image_with_its_own_label(tmp_path, files, shades, labels):
    content = {name: picture(value) if isinstance(value, int) else value for name, value in files.items()}
    images = open_images("rsscn7", "train", write_tar(tmp_path / "train-0.tar", content), stream=True)
    assert (levels(images), images.labels.tolist()) == (shades, labels)


def test_samples_of_several_images_without_a_likely_one_are_refused_with_their_names(tmp_path):
    files = {f"{i}.{field}.png": picture(i) for i in range(2) for field in ("left", "right")}
    with pytest.raises(BadData, match=r"which of 0\.left\.png, 0\.right\.png is the picture"):
        open_images("rsscn7", "train", write_tar(tmp_path / "train-0.tar", files))


def test_class_names_in_a_tar_are_classes(tmp_path):
    names = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
    files = {f"{i}.{kind}": value for i, name in enumerate(names) for kind, value in
             {"png": picture(i), "cls": name.encode()}.items()}  # fmt: skip
    images = open_images("rsscn7", "train", write_tar(tmp_path / "train-0.tar", files))
    assert (images.classes, images.labels.tolist()) == (tuple(names), list(range(7)))


@pytest.mark.parametrize("name", ["data.zip", "DATA.ZIP"])
def test_a_zip_with_backslashes_is_read(tmp_path, name):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("train\\cat\\1.png", picture(7))
        archive.writestr("train\\dog\\..\\..\\..\\2.png", picture(8))
    images = open_images("rsscn7", "train", tmp_path / name)
    assert 7 in levels(images)
    assert not list(tmp_path.glob("*.png"))


# --------------------------------------------------------------------------------------------------------- counts


def broken(folder: Path, side: int) -> Path:
    """Two classes of 4 pictures in both splits, the first one of train/a broken."""
    for split in ("train", "test"):
        for label, shade in (("a", 10), ("b", 90)):
            shift = 3 if split == "test" else 0
            write(folder / split / label, {f"{i}.png": picture(shade + 10 * i + shift, side, side) for i in range(4)})
    path = folder / "train" / "a" / "0.png"
    path.write_bytes(path.read_bytes()[:60])
    return folder


@pytest.mark.parametrize(("name", "side"), [("rsscn7", 64), ("pets", 240)])
def test_a_broken_picture_is_left_out_counted_and_named_alike_whatever_the_size(tmp_path, name, side):
    source = open_source(name, broken(tmp_path, side))
    assert (len(source.train), len(source.test), source.measured.skipped) == (7, 8, 1)
    assert list(source.train.skipped) == ["a/0.png"]
    assert source.train.skipped["a/0.png"].startswith("cannot be decoded")
    assert source.train.listed == 8
    streamed = open_images(name, "train", tmp_path, stream=True)
    assert [streamed.picture(i) is None for i in range(8)] == [True] + [False] * 7
    assert streamed.skipped == source.train.skipped
    assert streamed.listed == 8
    rows = score("pixels:", data={name: tmp_path}, protocols=["knn"])
    assert {row.data.skipped for row in rows} == {1}


def test_views_of_wide_photos_are_cut_from_the_whole_picture_in_memory_as_when_streamed(tmp_path):
    """A black left third and a white right third, both of which a square in the middle does not have."""
    for i in range(4):
        wide = np.full((30, 120, 3), 128, np.uint8)
        wide[:, :40], wide[:, 80:] = 0, 255
        Image.fromarray(wide).save(tmp_path / f"{i}.png")
    made = []
    for stream in (False, True):
        images = open_images("rsscn7", "train", f"folder:{tmp_path}", stream=stream)
        assert images.square is stream
        made.append(next(batches(images.whole(), Views(WHOLE, WHOLE, size=24, seed=0), first=0, last=1, batch_size=4)))
    assert all(np.array_equal(one, two) for one, two in zip(made[0].pixels, made[1].pixels, strict=True))
    assert np.array_equal(made[0].indices, made[1].indices)
    assert [(int(view.min()), int(view.max())) for view in made[0].pixels] == [(0, 255)] * 2


# --------------------------------------------------------------------------------------------------------- pixels


@pytest.mark.parametrize("photometric", [0, 1])
def test_a_tiff_of_16_bits_is_no_negative_whatever_is_white(tmp_path, photometric):
    stored = np.array([[0, 65535], [257 * 10, 257 * 200]], np.uint16)
    Image.fromarray(stored).save(tmp_path / "a.tif", tiffinfo={262: photometric})
    grey = np.asarray(read_rgb(tmp_path / "a.tif"))[..., 0]
    expected = np.array([[0, 255], [10, 200]])
    assert np.array_equal(grey, 255 - expected if photometric == 0 else expected)
