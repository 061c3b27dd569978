"""Detection: boxes are read and mirrored right, both necks learn two pictures, and the encoder stays as it was."""

import numpy as np
import pytest
import torch
from PIL import Image
from voc_folder import voc

from eval.contestants import fingerprint, open_contestant
from eval.detect import average_precision, detector, fit, mirrored, rate
from zoo.errors import BadData
from zoo.voc import class_names, read_voc


def test_boxes_count_from_0_and_difficult_or_empty_ones_are_left_out(tmp_path):
    objects = [("red", 0, (11, 21, 50, 60)), ("blue", 1, (1, 1, 9, 9)), ("blue", 0, (30, 30, 29, 40))]
    (scene,) = read_voc(voc(tmp_path, {"one": objects}), "train")
    assert scene.boxes.tolist() == [[10, 20, 50, 60]]
    assert scene.names == ("red",)
    assert np.asarray(Image.open(scene.image))[20:60, 10:50, 0].mean() > 230


def test_a_folder_that_is_not_voc_is_told_what_is_missing(tmp_path):
    folder = voc(tmp_path, {"one": [("red", 0, (11, 21, 50, 60))]})
    with pytest.raises(BadData, match=r"val.txt: no such list; there are \['train'\]"):
        read_voc(folder, "val")
    (folder / "Annotations" / "one.xml").write_text("<annotation>")
    with pytest.raises(BadData, match=r"one.xml: not an annotation"):
        read_voc(folder, "train")


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
    model = detector(encoder, classes=2, neck=neck, sides=(96,))
    losses = fit(model, scenes, class_names(scenes), steps=steps, batch=2)
    assert np.isfinite(losses).all()
    assert steps == 1 or losses[-1] < losses[0]
    assert fingerprint(encoder) == before
    found = average_precision(model, scenes, class_names(scenes))
    assert list(found) == ["AP", "AP50", "AP75"]
    assert 0 <= found["AP"] <= found["AP50"] <= 1


def test_answers_that_are_the_truth_score_1_and_a_wrong_class_scores_0(tmp_path):
    squares = {"a": [("red", 0, (11, 11, 60, 60))], "b": [("blue", 0, (31, 21, 90, 80))]}
    scenes = read_voc(voc(tmp_path, squares), "train")

    class Oracle(torch.nn.Module):
        def __init__(self, labels):
            super().__init__()
            self.answers, self.nothing = iter(zip(scenes, labels, strict=True)), torch.nn.Parameter(torch.zeros(1))

        def forward(self, images):
            scene, label = next(self.answers)
            return [{"boxes": torch.from_numpy(scene.boxes), "labels": torch.tensor([label]), "scores": torch.ones(1)}]

    names = class_names(scenes)  # blue 1, red 2
    assert average_precision(Oracle([2, 1]), scenes, names) == {"AP": 1, "AP50": 1, "AP75": 1}
    assert average_precision(Oracle([1, 2]), scenes, names)["AP"] == 0


def test_a_backbone_without_stages_is_refused(encoder):
    with pytest.raises(BadData, match="layer4"):
        detector(encoder, classes=2, neck="fpn")
