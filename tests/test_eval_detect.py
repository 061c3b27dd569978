"""Detection: boxes are read and mirrored right, both necks learn two pictures, and the encoder stays as it was."""

import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from voc_folder import voc

from eval.contestants import fingerprint, open_contestant
from eval.detect import main
from eval.detection import Diverged, average_precision, fit, mirrored, rate
from eval.detector import detector
from eval.results import read_results
from eval.scenes import read_lists
from zoo.errors import BadData, BadImage
from zoo.hub.load import load_encoder
from zoo.hub.store import BUNDLED, read_card
from zoo.images.voc import class_names, read_voc
from zoo.model.encoder import save_encoder

RED, BLUE = ("red", 0, (11, 11, 60, 60)), ("blue", 0, (31, 21, 90, 80))


def test_boxes_count_from_0_and_those_without_an_area_are_left_out(tmp_path):
    objects = [("red", 0, (11, 21, 50, 60)), ("blue", 1, (1, 1, 9, 9)), ("blue", 0, (30, 30, 29, 40))]
    (scene,) = read_voc(voc(tmp_path, {"one": objects}), "train")
    assert scene.boxes.tolist() == [[10, 20, 50, 60], [0, 0, 9, 9]]
    assert (scene.names, scene.difficult.tolist()) == (("red", "blue"), [False, True])
    assert np.asarray(Image.open(scene.image))[20:60, 10:50, 0].mean() > 230


def test_a_folder_that_is_not_voc_is_told_what_is_missing(tmp_path):
    folder = voc(tmp_path, {"one": [("red", 0, (11, 21, 50, 60))]})
    with pytest.raises(BadData, match=r"val.txt: no such list; there are \['train'\]"):
        read_voc(folder, "val")


BOX = "<bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("<annotation>", "no element found"),
        ("<html></html>", "it is a html"),
        ("<?xml version='1.0' encoding='such'?><annotation/>", "unknown encoding: such"),
        (f"<annotation><object>{BOX.format(1)}</object></annotation>", "an object without a name"),
        ("<annotation><object><name>red</name></object></annotation>", "could not convert string to float: ''"),
        (f"<annotation><object><name>red</name>{BOX.format('inf')}</object></annotation>", r"a box with .*\[inf, 1"),
        (f"<annotation><object><name>red</name>{BOX.format('nan')}</object></annotation>", r"a box with .*\[nan, 1"),
        (
            f"<annotation><object><name>red</name>{BOX.format('1e39')}</object></annotation>",
            r"a box with .*\[1e\+39, 1",
        ),
    ],
)
def test_an_annotation_that_is_none_is_told_with_its_name(tmp_path, annotation, told):
    folder = voc(tmp_path, {"one": [("red", 0, (11, 21, 50, 60))]})
    (folder / "Annotations" / "one.xml").write_text(annotation)
    with pytest.raises(BadData, match=rf"one.xml: not an annotation \({told}"):
        read_voc(folder, "train")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\n \n", "train.txt: lists no image"),
        (b"one\ntwo\none\n", "train.txt: one stands there 2 times"),
        (b"one\n\xff\n", "train.txt: not a list of images .*0xff"),
    ],
)
def test_a_list_that_is_none_is_told_and_one_of_windows_is_read(tmp_path, text, told):
    folder = voc(tmp_path, {name: [("red", 0, (11, 21, 50, 60))] for name in ("one", "two")})
    path = folder / "ImageSets/Main/train.txt"
    path.write_bytes(text)
    with pytest.raises(BadData, match=told):
        read_voc(folder, "train")
    path.write_bytes("\ufeffone -1\r\ntwo 1\r\n".encode())
    assert [scene.image.stem for scene in read_voc(folder, "train")] == ["one", "two"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "models = 0; at least 1 is needed"),
        (["m", "--sides"], "sides = 0; at least 1"),
        (["m", "--batch-size", "0"], "batch_size = 0; at least 1"),
        (["m", "--rate", "nan"], "rate = nan; a number above 0 is needed"),
        (["m", "--test", "train"], "2 images are on both lists, train and train"),
        (["m", "--test", "hard"], "hard.txt: no box to find in 1 images"),
        (["m", "--test", "cut"], "cut.jpg: cannot be decoded"),
        (["m", "--test", "beside"], "beside.jpg: 96 x 96 pixels, and a box of its annotation lies beside them"),
        (["m", "--steps", "1", "--steps", "2"], "--steps is given twice"),
    ],
)
def test_what_cannot_be_trained_or_tested_is_told_before_anything_is_trained(tmp_path, monkeypatch, words, told):
    voc(tmp_path, {name: [("red", 0, (11, 21, 50, 60))] for name in ("one", "two")})
    voc(tmp_path, {"three": [("red", 1, (11, 21, 50, 60))]}, split="hard")
    voc(tmp_path, {"beside": [("red", 0, (97, 21, 120, 60))]}, split="beside")
    cut = voc(tmp_path, {"cut": [("red", 0, (11, 21, 50, 60))]}, split="cut") / "JPEGImages/cut.jpg"
    cut.write_bytes(cut.read_bytes()[:400])
    words = ["eval.detect", *words, "--data", str(tmp_path), "--train", "train"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match=told):
        main()


def test_a_picture_that_cannot_be_decoded_is_told_with_its_name(tmp_path):
    (scene,) = read_voc(voc(tmp_path, {"one": [("red", 0, (11, 21, 50, 60))]}), "train")
    scene.image.write_bytes(scene.image.read_bytes()[:400])
    with pytest.raises(BadImage, match=r"one.jpg: cannot be decoded"):
        average_precision(torch.nn.Linear(1, 1), [scene], ["red"])


def test_mirrored_boxes_are_where_the_mirror_image_has_them():
    boxes = torch.tensor([[10.0, 5, 30, 20]])
    image = torch.zeros(1, 40, 100)
    image[:, 5:20, 10:30] = 1
    left, top, right, bottom = mirrored(boxes, 100)[0].int().tolist()
    assert image.flip(2)[:, top:bottom, left:right].min() == 1
    assert (right - left, bottom - top) == (20, 15)


def test_the_rate_warms_up_and_falls_as_mocos():
    at = [rate(step, 24_000, 16) for step in (0, 99, 17_999, 18_000, 22_000)]
    assert at == pytest.approx([0.0002, 0.02, 0.02, 0.002, 0.0002])
    assert rate(500, 24_000, 4) == pytest.approx(0.005)


@pytest.mark.parametrize(("neck", "steps"), [("fpn", 1), ("c4", 6)])
def test_both_necks_learn_and_the_encoder_stays_as_it_was(tmp_path, neck, steps):
    squares = {"a": [("red", 0, (11, 11, 60, 60))], "b": [("blue", 0, (31, 21, 90, 80))]}
    scenes = read_voc(voc(tmp_path, squares), "train")
    encoder = open_contestant("timm:test_resnet", "digits").encoder
    before = fingerprint(encoder)
    torch.manual_seed(0)
    model = detector(encoder, classes=2, neck=neck, sides=(96,), regions=32)
    losses = fit(model, scenes, class_names(scenes), steps=steps, batch=2)
    assert np.isfinite(losses).all()
    assert steps == 1 or losses[-1] < losses[0]
    assert fingerprint(encoder) == before
    found = average_precision(model, scenes, class_names(scenes))
    assert list(found) == ["AP", "AP50", "AP75"]
    assert 0 <= found["AP"] <= found["AP50"] <= 1


def test_a_network_that_its_last_step_made_infinite_has_diverged(tmp_path):
    scenes = read_voc(voc(tmp_path, {"a": [RED], "b": [BLUE]}), "train")
    model = detector(open_contestant("timm:test_resnet", "digits").encoder, classes=2, neck="c4", sides=(16,))
    torch.nn.init.constant_(model.roi_heads.box_predictor.cls_score.bias, 3e38)  # of all classes: the loss is finite
    with pytest.raises(Diverged, match=r"^diverged in step 0, the last, at a rate of 1.25e\+38$"):
        fit(model, scenes, class_names(scenes), steps=1, batch=2, peak=1e39)  # the decay times the rate is infinite


class Oracle(torch.nn.Module):
    """Answers with the boxes of the scenes, one after another, and with the labels given."""

    def __init__(self, scenes, labels):
        super().__init__()
        self.answers, self.nothing = iter(zip(scenes, labels, strict=True)), torch.nn.Parameter(torch.zeros(1))

    def forward(self, images):
        scene, labels = next(self.answers)
        scores = torch.linspace(1, 0.5, len(labels))
        return [{"boxes": torch.from_numpy(scene.boxes), "labels": torch.tensor(labels), "scores": scores}]


def test_answers_that_are_the_truth_score_1_and_a_wrong_class_scores_0(tmp_path):
    squares = {"a": [("red", 0, (11, 11, 60, 60))], "b": [("blue", 0, (31, 21, 90, 80))]}
    scenes = read_voc(voc(tmp_path, squares), "train")

    names = class_names(scenes)  # blue 1, red 2
    assert average_precision(Oracle(scenes, [[2], [1]]), scenes, names) == {"AP": 1, "AP50": 1, "AP75": 1}
    assert average_precision(Oracle(scenes, [[1], [2]]), scenes, names)["AP"] == 0


def test_an_answer_about_a_difficult_object_counts_neither_way(tmp_path):
    objects = [("red", 1, (11, 11, 40, 40)), ("red", 0, (51, 51, 90, 90))]
    scenes = read_voc(voc(tmp_path, {"a": objects}), "train")
    assert average_precision(Oracle(scenes, [[1, 1]]), scenes, ["red"])["AP"] == 1
    (scene,) = scenes
    wrong = scene._replace(boxes=scene.boxes[:, [1, 0, 3, 2]] + np.float32([0, 50, 0, 50]))
    assert average_precision(Oracle([wrong], [[1, 1]]), scenes, ["red"])["AP"] == 0
    alone = scene._replace(boxes=scene.boxes[:1], names=("red",))
    assert average_precision(Oracle([alone], [[1]]), scenes, ["red"])["AP"] == 0


def test_a_backbone_without_stages_is_refused(encoder):
    with pytest.raises(BadData, match="layer4"):
        detector(encoder, classes=2, neck="fpn")


@pytest.mark.parametrize(("neck", "side"), [("c4", 15), ("fpn", 32)])
def test_sides_too_short_for_anchors_or_for_the_last_stage_are_refused(neck, side):
    encoder = open_contestant("timm:test_resnet", "digits").encoder
    with pytest.raises(BadData, match=f"sides = {side}; {neck} needs {side + 1} pixels at least"):
        detector(encoder, classes=2, neck=neck, sides=(side, 96))
    assert detector(encoder, classes=2, neck=neck, sides=(side + 1, 96)).transform.min_size == (side + 1, 96)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8 by force")
def test_a_folder_whose_name_is_no_utf8_has_one_that_tables_can_hold(folder):
    strange = folder.rename(folder.parent / os.fsdecode(b"a\xff"))
    assert read_lists(strange, "train", "test").name == "a\ufffd"


TINY = ["--train", "train", "--steps", "1", "--batch-size", "2", "--sides", "16", "--regions", "8"]
TRAINED, UNTRAINED = "simco-r18-cifar100-cpu", "random:simco-r18-cifar100-cpu"


@pytest.fixture
def folder(tmp_path):
    """Two pictures to learn from, one to be tested on."""
    voc(tmp_path / "squares", {"a": [RED], "b": [BLUE]})
    return voc(tmp_path / "squares", {"c": [("red", 0, (21, 15, 70, 70))]}, split="test")


def compared(monkeypatch, folder, models, *flags):
    """`python -m eval.detect`, and its results by model, seed and metric."""
    out = folder.parent / "out"
    monkeypatch.setattr("sys.argv", ["eval.detect", *models, "--data", str(folder), "--out", str(out), *TINY, *flags])
    try:
        main()
    finally:
        rows = read_results(out / "results.json")
    return {(row.encoder.name, row.extras["seed"], row.extras["rate"], row.metric): row for row in rows}


def test_trainings_are_kept_and_the_same_command_trains_only_those_that_are_missing(folder, monkeypatch, capsys):
    first = compared(monkeypatch, folder, [TRAINED], "--seeds", "2")
    shown = capsys.readouterr().out
    assert len(first) == 6
    row = first[TRAINED, 1, 0.02, "AP50"]
    card = read_card(BUNDLED / TRAINED)
    assert (row.encoder.weights_sha256, row.data.n_train, row.data.n_test) == (card.weights.sha256, 2, 1)
    assert [row.extras[flag] for flag in ("neck", "steps", "batch_size", "sides", "regions")] == ["c4", 1, 2, [16], 8]
    assert row.data.sha256 == read_lists(folder, "train", "test").sha256
    assert row.provenance.command.endswith("--seeds 2")
    assert {"torch", "torchvision", "torchmetrics", "pycocotools"} <= row.provenance.versions.keys()

    lost, kept = sorted((folder.parent / "out/rows").iterdir())
    lost.unlink()
    (folder.parent / "out/results.json").unlink()
    time = kept.stat().st_mtime_ns
    again = compared(monkeypatch, folder, [TRAINED], "--seeds", "2")
    assert {key: row.value for key, row in again.items()} == {key: row.value for key, row in first.items()}
    assert capsys.readouterr().out == shown
    assert kept.stat().st_mtime_ns == time

    both = compared(monkeypatch, folder, [TRAINED, str(BUNDLED / TRAINED)], "--rate", "0.01")  # two names of one model
    assert len(both) == 9
    assert both[TRAINED, 0, 0.01, "AP"].protocol != both[TRAINED, 0, 0.02, "AP"].protocol
    tables = (folder.parent / "out/results.md").read_text()
    assert tables.count("(2 trainings)") == tables.count("(1 training)") == 3


def test_a_training_that_diverges_is_told_and_counted_while_the_others_go_on(folder, monkeypatch, capsys):
    encoder = load_encoder(BUNDLED / TRAINED)
    with torch.no_grad():
        encoder.backbone.layer4[1].bn2.weight.fill_(3e38)
    run = folder.parent / "run"
    save_encoder(encoder, run, replace(read_card(BUNDLED / TRAINED), name="simco-r18-cifar100", weights=None))
    with pytest.raises(SystemExit, match=r"error: 1 of 2 trainings diverged, and are in no mean; a lower --rate"):
        compared(monkeypatch, folder, [str(run), UNTRAINED])
    lines = capsys.readouterr().out.splitlines()
    assert f"| {run} | 0 | diverged in step 0 at a rate of 0.0025 | | |" in lines
    assert f"| {run} | 0 of 1 training | diverged in step 0 at a rate of 0.0025 | | |" in lines
    assert any(line.startswith(f"| {UNTRAINED} | 1 training | ") for line in lines)
    rows = read_results(folder.parent / "out/results.json")
    assert {row.encoder.name: row.value is None for row in rows} == {"simco-r18-cifar100": True, UNTRAINED: False}
    tables = (folder.parent / "out/results.md").read_text()
    assert "| simco-r18-cifar100 | 512 | (0 of 1 training) |" in tables
    assert "- simco-r18-cifar100 on squares, detection: the training of seed 0 diverged in step 0 at a rate" in tables


def test_the_hash_of_a_list_follows_boxes_and_pictures_and_copies_are_counted(folder):
    before = read_lists(folder, "train", "test")
    assert (before.duplicates, before.unseen, before.classes) == (0, 0, ["blue", "red"])
    voc(folder, {"c": [("red", 0, (21, 15, 70, 71))]}, split="test")
    moved = read_lists(folder, "train", "test")
    assert moved.sha256[0] == before.sha256[0]
    assert moved.sha256[1] != before.sha256[1]
    voc(folder, {"c": [("green", 0, (11, 11, 60, 60))]}, split="test")
    shutil.copy(folder / "JPEGImages/a.jpg", folder / "JPEGImages/c.jpg")
    copied = read_lists(folder, "train", "test")
    assert (copied.duplicates, copied.unseen) == (1, 1)
