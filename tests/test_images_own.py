"""Data sets of the user's own: every format gives the same images and labels, under a name that works everywhere."""

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from voc_folder import voc

import zoo
from eval.score import score
from train.pretrain import pretrain
from train.recipe import find_recipe
from zoo.cli.data import data as zoo_data
from zoo.errors import BadData, CorruptFile, UnknownName
from zoo.images.dataset import DATASETS, dataset_row
from zoo.images.opening import open_images
from zoo.images.own import DRAWN, own_splits
from zoo.images.registry import facts_file, keep_facts, read_facts
from zoo.images.survey import survey
from zoo.names import parse_name

CLASSES = ("ant", "bee", "cat")
N = 10  # pictures of each class
LEVELS = [[80 * label + 3 * i for i in range(N)] for label in range(3)]


def picture(level: int, side: int = 32) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def all_pictures() -> dict[str, tuple[str, bytes]]:
    """Class and content of 30 pictures by their file names."""
    return {f"{name}{i}.png": (name, picture(LEVELS[label][i])) for label, name in enumerate(CLASSES) for i in range(N)}


def in_class_folders(root: Path) -> Path:
    for name, (label, content) in all_pictures().items():
        (root / label).mkdir(parents=True, exist_ok=True)
        (root / label / name).write_bytes(content)
    return root


def with_table(root: Path, kind: str = "csv") -> Path:
    root.mkdir()
    for name, (_, content) in all_pictures().items():
        (root / name).write_bytes(content)
    rows = [(name, label) for name, (label, _) in all_pictures().items()]
    if kind == "parquet":
        pq.write_table(
            pa.table({"file": [row[0] for row in rows], "label": [row[1] for row in rows]}), root / "t.parquet"
        )
    else:
        with (root / "labels.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("file", "label"), *rows])
    return root


def in_parquet(root: Path) -> Path:
    root.mkdir()
    found = list(all_pictures().values())
    cells = [{"bytes": content, "path": None} for _, content in found]
    pq.write_table(pa.table({"scan": cells, "target": [label for label, _ in found]}), root / "part-0.parquet")
    return root


def in_tars(root: Path) -> Path:
    root.mkdir()
    with tarfile.open(root / "0.tar", "w") as archive:
        for name, (label, content) in all_pictures().items():
            for path, bytes_ in ((name, content), (f"{name[:-4]}.cls", label.encode())):
                entry = tarfile.TarInfo(path)
                entry.size = len(bytes_)
                archive.addfile(entry, io.BytesIO(bytes_))
    return root


def in_npz(root: Path) -> Path:
    images = np.stack([np.full((32, 32), level, np.uint8) for levels in LEVELS for level in levels])
    np.savez(root.with_suffix(".npz"), images=images, labels=np.repeat(CLASSES, N))
    return root.with_suffix(".npz")


def with_parquet_table(root: Path) -> Path:
    return with_table(root, "parquet")


FORMATS: list[Callable[[Path], Path]] = [
    in_class_folders, with_table, with_parquet_table, in_parquet, in_tars, in_npz,
]  # fmt: skip


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("stream", [False, True])
def test_every_format_gives_the_same_images_and_labels_under_a_name_of_its_own(tmp_path, write, stream):
    place = write(tmp_path / "mine")
    parts = [
        open_images("bugs", split, place if split == "train" else None, stream=stream) for split in ("train", "test")
    ]
    assert [part.classes for part in parts] == [CLASSES] * 2
    found = {}
    for part in parts:
        assert part.drawn == DRAWN
        assert np.bincount(part.labels).tolist() == ([8, 8, 8] if part.split == "train" else [2, 2, 2])
        found |= dict(zip(part.pixels()[:][:, 0, 0, 0].tolist(), part.labels.tolist(), strict=True))
    assert found == {level: label for label, levels in enumerate(LEVELS) for level in levels}


def test_what_is_kept_is_what_the_images_hold(tmp_path):
    folder = in_class_folders(tmp_path / "mine")
    (folder / "ant" / "broken.png").write_bytes(picture(1)[:50])
    (folder / "bee" / "notes.txt").write_text("no image")
    facts = survey("bugs", str(folder), licence="CC0", source="made here")
    levels = open_images("bugs", "train", folder).pixels()[:, 0, 0, 0] / 255
    assert facts.mean[0] == pytest.approx(levels.mean(), abs=1e-4)
    assert facts.std[0] == pytest.approx(levels.std(), abs=1e-4)
    assert (facts.image_size, facts.sizes["median"], facts.modes) == (32, [32, 32], {"RGB": 30})
    assert facts.others == {".txt": 1}
    bad = {name: reason for part in facts.splits.values() for name, reason in part["unreadable"].items()}
    assert list(bad) == ["ant/broken.png"]
    assert sum(part["images"] for part in facts.splits.values()) == 30
    keep_facts(facts)
    assert read_facts("bugs") == facts
    assert dataset_row("bugs").licence == "CC0"
    assert parse_name("simco-r18-bugs").dataset == "bugs"


def test_exact_copies_within_and_across_splits_are_counted_and_a_drawn_split_parts_none(tmp_path):
    for split, shades in {"train": (1, 1, 2, 3), "test": (3, 4, 5, 5, 5)}.items():
        for i, shade in enumerate(shades):
            place = tmp_path / "two" / split / "ab"[i % 2] / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(picture(shade))
    facts = survey("two", str(tmp_path / "two"))
    assert facts.duplicates == {"train": 1, "test": 2, "across": 1}
    assert "1 test images are exact copies of train images: scores are flattered" in facts.warnings
    one = in_class_folders(tmp_path / "one")
    for path in list((one / "ant").iterdir()):
        (one / "ant" / f"copy of {path.name}").write_bytes(path.read_bytes())
    assert survey("one", str(one)).duplicates["across"] == 0


def test_a_drawn_split_does_not_depend_on_names_or_order(tmp_path):
    one, two = in_class_folders(tmp_path / "one"), tmp_path / "two"
    for path in one.rglob("*.png"):
        (two / path.parent.name).mkdir(parents=True, exist_ok=True)
        (two / path.parent.name / f"{hash(path.name)}.png").write_bytes(path.read_bytes())
    drawn = [
        set(open_images(name, "test", place).pixels()[:, 0, 0, 0].tolist()) for name, place in (("a", one), ("b", two))
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 6


def test_validation_images_are_the_test_split_where_there_is_none(tmp_path):
    for split, shades in {"train": (1, 2), "valid": (3, 4)}.items():
        for label, shade in zip("ab", shades, strict=True):
            place = tmp_path / "data" / split / label / "0.png"
            place.parent.mkdir(parents=True)
            place.write_bytes(picture(shade))
    test = open_images("vals", "test", tmp_path / "data")
    assert (test.pixels()[:, 0, 0, 0].tolist(), test.drawn) == ([3, 4], "")


def test_a_flat_folder_has_no_labels_and_all_of_it_is_for_training(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(picture(i))
    train = open_images("flat", "train", tmp_path)
    assert (len(train), train.labels.tolist(), train.classes) == (5, [-1] * 5, ())
    with pytest.raises(BadData, match="no test split, and none can be drawn: its images have no labels"):
        open_images("flat", "test")


# ------------------------------------------------------------------------------------------------ several labels


def test_several_labels_of_a_table_in_one_column_or_in_many(tmp_path):
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
        for i in range(4):
            (tmp_path / name / f"{i}.png").write_bytes(picture(i))
    (tmp_path / "one" / "t.csv").write_text("file;labels\n0;sun|sea\n1;sea\n2;\n3;sun\n")
    (tmp_path / "many" / "t.csv").write_text("file,sea,sun\n0.png,1,1\n1.png,1,0\n2.png,0,0\n3.png,0,1\n")
    for name in ("one", "many"):
        (index,) = own_splits(str(tmp_path / name)).values()
        assert index.classes == ("sea", "sun")
        assert index.labels.tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]


def test_coco_and_voc_boxes_become_labels_of_images(tmp_path):
    coco = tmp_path / "coco"
    (coco / "annotations").mkdir(parents=True)
    for split in ("train", "val"):
        (coco / split).mkdir()
        images = [{"id": i, "file_name": f"{split}{i}.png"} for i in range(3)]
        for i in range(2):  # the third is annotated, but not there
            (coco / split / f"{split}{i}.png").write_bytes(picture(i))
        boxes = [
            {"image_id": 0, "category_id": 7},
            {"image_id": 0, "category_id": 3},
            {"image_id": 1, "category_id": 7},
        ]
        facts = {
            "images": images,
            "annotations": boxes,
            "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "ant"}],
        }
        (coco / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(facts))
    train, test = open_images("boxes", "train", coco), open_images("boxes", "test")
    assert (train.classes, train.labels.tolist()) == (("ant", "cat"), [[1, 1], [0, 1]])
    assert test.labels.tolist() == [[1, 1], [0, 1]]
    assert train.skipped == {"train2.png": "is annotated, but there is no such image"}
    box = (1, 1, 20, 20)
    for split in ("train", "test"):
        voc(tmp_path / "voc", {f"{split}a": [("red", 0, box)], f"{split}b": [("blue", 0, box)]}, split=split)
    assert open_images("scenes", "train", tmp_path / "voc").labels.tolist() == [[0, 1], [1, 0]]


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("name,x,y\n0.png,a,b\n", None),
        ("a,b\n0.png,1\n", r"no column of file names; it has a, b. Name it `file`"),
        ("file,colour,shape\n0.png,red,round\n", "which column is the label: colour, shape"),
        ("file,label,split\n0.png,a,later\n", "0.png is in the split 'later'; allowed: train, test, val"),
        ("file,label\n0.png,a\n0.png,b\n", r"0\.png has two rows"),
        ("file,label\n0.png,0.5\n", "there is a label 0.5"),
        ("file,label\nnone.png,a\n", "none of the 1 files that it names is an image"),
    ],
)
def test_a_table_that_cannot_be_understood_says_what_it_has(tmp_path, rows, said):
    (tmp_path / "0.png").write_bytes(picture(0))
    (tmp_path / "t.csv").write_text(rows)
    if said is None:
        (index,) = own_splits(str(tmp_path)).values()
        assert index.classes == ("b",)  # the column y
        return
    with pytest.raises(BadData, match=said):
        own_splits(str(tmp_path))


def test_files_that_only_the_table_or_only_the_folder_has_are_left_out_and_named(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(picture(i))
    (tmp_path / "t.csv").write_text("file,label\n0.png,7\n1.png,100\nlost.png,7\n")
    (index,) = own_splits(str(tmp_path)).values()
    assert (index.classes, index.labels.tolist()) == (("7", "100"), [0, 1])  # numbers with gaps are names
    assert set(index.skipped) == {"lost.png", "2.png"}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.zeros((2, 8, 8, 3), np.float32)}, r"images is float32 \(2, 8, 8, 3\); allowed: uint8"),
        ({"images": np.zeros((2, 8, 8, 5), np.uint8)}, "1, 3 or 4 channels"),
        ({"images": np.zeros((2, 8, 8), np.uint8), "labels": np.zeros(3, int)}, "2 images, but labels"),
        ({"pictures": np.zeros((2, 8, 8), np.uint8)}, r"no images among its arrays \['pictures'\]"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadData, match=said):
        own_splits(str(tmp_path / "a.npz"))


def test_an_empty_folder_and_one_of_broken_pictures_are_refused_and_nothing_is_kept(tmp_path):
    with pytest.raises(BadData, match="no image in it"):
        open_images("none", "train", tmp_path)
    (tmp_path / "0.png").write_bytes(b"broken")
    with pytest.raises(BadData, match="none of its images can be decoded"):
        open_images("none", "train", tmp_path)
    assert not facts_file("none").exists()


@pytest.mark.parametrize(("name", "said"), [("cifar10", "a data set of this package"), ("My-Birds", "such as mybirds")])
def test_a_name_that_cannot_be_one_is_refused(tmp_path, name, said):
    with pytest.raises(BadData, match=said):
        survey(name, str(tmp_path))


def test_unknown_names_say_how_a_data_set_gets_one_and_damaged_facts_what_to_do():
    with pytest.raises(UnknownName, match=r"A data set of your own gets a name by: zoo data NAME PATH"):
        dataset_row("birds")
    facts_file("birds").parent.mkdir(parents=True)
    facts_file("birds").write_text("{")
    with pytest.raises(CorruptFile, match=r"birds\.json: damaged"):
        dataset_row("birds")


def test_other_classes_under_a_kept_name_are_refused(tmp_path):
    open_images("bugs", "train", in_class_folders(tmp_path / "mine"))
    (tmp_path / "other" / "dog").mkdir(parents=True)
    (tmp_path / "other" / "dog" / "0.png").write_bytes(picture(0))
    with pytest.raises(BadData, match=r"not the classes that are kept for bugs\. Look again: zoo data bugs"):
        open_images("bugs", "train", tmp_path / "other")


# -------------------------------------------------------------------------------------------------------- in use


def test_one_evaluates_on_a_folder_under_a_new_name(tmp_path):
    (result,) = score("pixels:", data={"bugs": in_class_folders(tmp_path / "mine")}, protocols=["knn"])
    assert result.data.name == "bugs"
    assert (result.data.n_train, result.data.n_test) == (24, 6)
    assert dataset_row("bugs").classes == 3


def test_zoo_data_prints_a_page_and_draws_a_contact_sheet(tmp_path, capsys):
    zoo_data("bugs", str(in_class_folders(tmp_path / "mine")), licence="CC0")
    page = capsys.readouterr().out
    for part in (
        "24 images, 0 left out",
        "ant                 8        2",
        "drawn: 20% of each class",
        "32 x 32",
        "CC0",
    ):
        assert part in page
    with Image.open(facts_file("bugs").with_suffix(".png")) as sheet:
        assert (sheet.width, sheet.height) == (12 * 72, 2 * 72)
        assert sheet.convert("L").getextrema()[0] < 20
    zoo_data()
    assert capsys.readouterr().out.startswith("bugs             24 train, 6 test, 3 classes, 32 px")


def test_one_trains_on_it_under_its_name_and_the_encoder_normalises_as_its_images_do(tmp_path):
    place = in_class_folders(tmp_path / "mine")
    open_images("bugs", "train", place)
    recipe = replace(find_recipe("simco-r20-digits"), name="simco-r20-bugs", batch_size=8, epochs=1, warmup_epochs=0)
    encoder = zoo.load(pretrain(recipe, out=tmp_path / "run", knn_every=1))
    assert (encoder.image_size, encoder.card.dataset) == (32, "bugs")
    assert encoder.mean.flatten().tolist() == pytest.approx(read_facts("bugs").mean)


def test_images_of_several_classes_are_trained_on_without_labels(tmp_path):
    for split in ("train", "test"):
        box = (1, 1, 20, 20)
        voc(tmp_path / "voc", {f"{split}{i}": [("red", 0, box), ("blue", 0, box)] for i in range(8)}, split=split)
    open_images("scenes", "train", tmp_path / "voc")
    recipe = replace(find_recipe("simco-r20-digits"), name="simco-r20-scenes", batch_size=8, epochs=1, warmup_epochs=0)
    run = pretrain(recipe, out=tmp_path / "run", knn_every=1)
    assert zoo.load(run).card.training["steps"] == 1


def test_one_image_of_each_class_is_for_training_and_cannot_be_tested_on(tmp_path):
    for label, shade in (("a", 1), ("b", 2)):
        (tmp_path / label).mkdir()
        (tmp_path / label / os.fsdecode(b"caf\xe9.png")).write_bytes(picture(shade))
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    facts = survey("few", str(tmp_path))
    assert "2 classes have one train image: a, b" in facts.warnings
    keep_facts(facts)
    assert open_images("few", "train").labels.tolist() == [0, 1]
    with pytest.raises(BadData, match="none can be drawn: each class has one image"):
        open_images("few", "test")


def test_class_folders_one_level_too_deep_are_refused_with_what_is_there(tmp_path):
    for place in ("a/abbey", "a/airport", "b/bakery"):
        (tmp_path / "train" / place).mkdir(parents=True)
        (tmp_path / "train" / place / "0.png").write_bytes(picture(0))
    with pytest.raises(BadData, match=r"its 2 folders \(a, b\) are to be the 397 classes, .* abbey, airport, bakery"):
        open_images("sun397", "train", tmp_path)


def test_a_data_set_of_the_hub_above_96_px_needs_no_local_copy(tmp_path, monkeypatch):
    """The library reads a folder as it reads the Hub's copy, which needs no network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    cells = [{"bytes": picture(level, side=120), "path": None} for level in (10, 20, 30)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 1]}, features=features)
        table.to_parquet(tmp_path / "hub" / f"{split}.parquet")
    row = replace(DATASETS["pets"], hub=str(tmp_path / "hub"), classes=2, image_size=112)
    monkeypatch.setitem(DATASETS, "pets", row)
    images = open_images("pets", "train")
    assert (images.in_memory, images.classes, images.labels.tolist()) == (False, ("ant", "bee"), [0, 1, 1])
    assert images.pixels()[:].shape == (3, 112, 112, 3)
    assert images.pixels()[2][0, 0].tolist() == [30, 30, 30]
    keep_facts(survey("bugs", f"hf://{tmp_path / 'hub'}"))
    mine = open_images("bugs", "test")
    assert (mine.classes, mine.drawn, mine.size) == (("ant", "bee"), "", 96)
    assert mine.pixels()[:, 0, 0, 0].tolist() == [10, 20, 30]
