"""Several labels an image: 11-point average precision, one-vs-rest regression, and a folder in VOC layout."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from voc_folder import voc

from eval.average_precision import (
    average_precisions,
    bootstrap,
    eleven_point,
    mean_average_precision,
    paired_bootstrap,
)
from eval.compare import compare_files, sentence
from eval.contestants import fingerprint, open_contestant
from eval.features import Features, RawPixels, extract, labelled
from eval.finetune import Schedule, answers, finetune, loss, train
from eval.intervals import compare_scores
from eval.linear import PENALTIES, held_out, linear, one_vs_rest, regression_path, standardised, strata
from eval.protocols import expand
from eval.results import Results
from eval.score import main, score
from eval.sources import open_source
from eval.tables import markdown
from eval.task import Task
from zoo.errors import BadData
from zoo.images.opening import open_images
from zoo.images.voc import labelled_images
from zoo.model.encoder import Encoder, build_backbone

WHOLE, HALF = (1, 1, 96, 96), (1, 1, 96, 48)


def ranked(*labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores that fall along these labels."""
    return -np.arange(len(labels), dtype=float), np.array(labels)


def test_the_average_precision_of_three_right_among_six_by_hand():
    """Precision is 1 up to recall 1/3 (4 levels), 2/3 up to 2/3 (3 levels), 1/2 up to 1 (4 levels)."""
    assert eleven_point(*ranked(1, 0, 1, 0, 0, 1)) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 / 2) / 11, abs=1e-12)
    assert eleven_point(*ranked(1, 1, 0)) == 1
    assert eleven_point(*ranked(0, 0, 0, 1)) == 1 / 4


def test_a_recall_of_exactly_a_level_reaches_it():
    """The second of ten right ones comes at recall 0.2; in floating point, 3 x 0.1 and 0.3 would differ."""
    scores, labels = ranked(*[1] * 3, *[0] * 10, *[1] * 7)
    assert eleven_point(scores, labels) == pytest.approx((4 * 1 + 7 * 10 / 20) / 11, abs=1e-12)


def test_difficult_images_count_neither_way():
    assert eleven_point(*ranked(-1, 1, -1, 0, 1, 0, 0, 1, -1)) == eleven_point(*ranked(1, 0, 1, 0, 0, 1))


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_is_that_of_the_definition_with_equal_scores_and_difficult_images_among_them(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 0, 1], 60, p=[0.1, 0.6, 0.3])
    scores = np.round(rng.normal(size=60) + labels, seed % 3)  # rounded: many are equal
    assert eleven_point(scores, labels) == pytest.approx(reference.eleven_point_ap(scores, labels), abs=1e-12)


def test_the_order_of_images_of_one_score_changes_nothing():
    labels = np.array([1, 1, 0, 0, 1, 0])
    assert eleven_point(np.zeros(6), labels) == eleven_point(np.zeros(6), labels[::-1]) == 1 / 2


def test_the_mean_is_over_the_classes_that_have_images_and_lies_in_its_interval():
    rng = np.random.default_rng(0)
    labels = np.hstack([rng.integers(0, 2, (300, 2)), np.zeros((300, 1), int)])
    scores = labels + rng.normal(size=labels.shape)
    values = average_precisions(scores, labels)
    assert np.isnan(values[2])
    assert mean_average_precision(scores, labels) == pytest.approx(values[:2].mean())
    low, high = bootstrap(scores, labels)
    assert low < mean_average_precision(scores, labels) < high < low + 0.15
    with pytest.raises(BadData, match="none of the 300 images is surely of any class"):
        mean_average_precision(scores, np.minimum(labels, 0))


def test_the_interval_of_a_difference_is_that_of_the_same_images_for_both():
    """Each of 300 images is drawn for A and B alike, so that equal noise cancels; drawn apart it would not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (300, 2))
    a = labels + rng.normal(size=labels.shape)
    b = a + 0.05 * rng.normal(size=labels.shape)
    low, high = paired_bootstrap(a, b, labels)
    alone = bootstrap(a, labels)
    assert low < mean_average_precision(a, labels) - mean_average_precision(b, labels) < high
    assert high - low < (alone[1] - alone[0]) / 3
    found = compare_scores(a, labels + 3 * rng.normal(size=labels.shape), labels)
    assert 0 < found.low < found.difference == found.a - found.b < found.high


@pytest.mark.slow
def test_the_bootstrap_interval_of_an_mean_average_precision_covers_that_of_a_very_large_sample():
    def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        labels = (rng.random((n, 2)) < 0.3).astype(int)
        return labels + rng.normal(size=labels.shape), labels

    truth = mean_average_precision(*drawn(100_000, 0))
    intervals = [bootstrap(*drawn(200, seed)) for seed in range(1, 41)]
    assert sum(low <= truth <= high for low, high in intervals) >= 34  # 38 expected


def heaps(n: int, *, seed: int) -> Features:
    """Three classes, each on or off, in 12 overlapping dimensions; a tenth of the labels is not known."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 3)) < [0.5, 0.3, 0.1]).astype(np.int64)
    rows = labels @ np.eye(3, 12) * 2 + rng.normal(size=(n, 12))
    labels[rng.random(labels.shape) < 0.1] = -1
    return Features((rows * np.geomspace(0.1, 10, 12)).astype(np.float32), labels)


def test_one_vs_rest_is_scikit_learns_fit_of_each_class_on_the_images_where_it_is_known():
    train, test = heaps(800, seed=0), heaps(500, seed=1)
    fit = one_vs_rest(train, test.rows)
    x, asked = (rows.astype(float) for rows in standardised(train.rows, test.rows))
    for c in range(3):
        known = train.labels[:, c] >= 0
        exact = LogisticRegression(C=1 / (fit.penalty * len(x)), tol=1e-8, max_iter=5000)
        exact.fit(x[known], train.labels[known, c])
        assert np.abs(fit.predicted[:, c] - exact.decision_function(asked)).max() < 5e-3
    assert list(fit.held_out) == list(PENALTIES)
    assert fit.held_out[fit.penalty] == max(fit.held_out.values())
    assert mean_average_precision(fit.predicted, test.labels) > 0.8


def test_a_label_that_is_not_known_changes_nothing():
    train = heaps(300, seed=0)
    x = torch.from_numpy(standardised(train.rows)[0])
    alone = np.where(np.arange(3) == 1, train.labels, -1)
    whole, one = (
        regression_path(x, torch.from_numpy(labels), [1e-2], classes=3, smallest=1e-5)[0]
        for labels in (train.labels, alone)
    )
    assert np.abs(whole.logits(x)[:, 1] - one.logits(x)[:, 1]).max() < 1e-3
    assert np.abs(one.logits(x)[:, [0, 2]]).max() < 1e-6


def test_labels_that_hold_nothing_rank_no_better_than_by_lot():
    rng = np.random.default_rng(0)
    train, test = (Features(rng.normal(size=(n, 12)).astype(np.float32), heaps(n, seed=0).labels) for n in (800, 2000))
    found = average_precisions(one_vs_rest(train, test.rows).predicted, test.labels)
    drawn = np.array([average_precisions(rng.normal(size=test.labels.shape), test.labels) for _ in range(50)])
    assert (np.abs(found - drawn.mean(0)) < 4 * drawn.std(0)).all()


def test_the_rarest_class_of_each_image_is_what_a_tenth_is_held_out_of():
    labels = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, -1, 0], [0, 0, 0]])
    assert strata(labels).tolist() == [1, 2, 3, 1, 0]


@pytest.fixture
def squares(tmp_path):
    """60 train and 24 test images with a red square, a blue one, both or none; of every fifth the red one is hard."""
    rng = np.random.default_rng(0)
    for split, n in {"trainval": 60, "test": 24}.items():
        scenes = {}
        for i in range(n):
            left, top = rng.integers(1, 40, 2).tolist()
            red = [("red", int(i % 5 == 0), (left, top, left + 20, top + 20))] if i % 2 else []
            blue = [("blue", 0, (left + 25, top + 25, left + 50, top + 50))] if i % 3 else []
            scenes[f"{split}{i:02d}"] = [*red, *blue]
        voc(tmp_path / "voc", scenes, split=split)
    return tmp_path / "voc"


def test_a_class_is_there_not_there_or_only_difficult(tmp_path):
    both = [("red", 1, HALF), ("red", 0, WHOLE)]
    voc(tmp_path, {"a": [("red", 1, WHOLE)], "b": both, "c": [("blue", 0, HALF)]}, split="trainval")
    voc(tmp_path, {"d": [("green", 0, HALF)]}, split="test")
    paths, labels, classes = labelled_images(tmp_path, "train")
    assert (classes, [path.name for path in paths]) == (["blue", "green", "red"], ["a.jpg", "b.jpg", "c.jpg"])
    assert labels.tolist() == [[0, 0, -1], [0, 0, 1], [1, 0, 0]]
    assert labelled_images(tmp_path, "test")[1].tolist() == [[0, 1, 0]]
    split = open_images("voc2007", "train", data=tmp_path)
    assert (split.labels.tolist(), split.classes) == (labels.tolist(), ("blue", "green", "red"))
    assert split.pixels()[2:3].shape == (1, 224, 224, 3)


def test_a_folder_in_voc_layout_is_measured_by_mean_average_precision(squares, tmp_path):
    (row,) = score("pixels:", data={"voc2007": squares}, protocols=["transfer"], out=tmp_path / "out", pictures=True)
    source = open_source("voc2007", squares)
    bank, test = (extract(RawPixels(32), part) for part in (source.train, source.test))
    expected = np.mean([reference.eleven_point_ap(s, y) for s, y in
                        zip(one_vs_rest(bank, test.rows).predicted.T, test.labels.T, strict=True)])  # fmt: skip
    assert row.value == pytest.approx(expected, abs=1e-9)
    assert row.value > 0.8
    assert row.interval[0] <= row.value <= row.interval[1]
    assert (row.metric, row.data.n_train, row.data.n_test) == ("11-point mAP", 60, 24)
    assert row.data.difficult == 6 + 2  # of 60 and 24, every tenth
    assert "8 times an image has but difficult objects of a class" in markdown([row])
    assert Results(tmp_path / "out").predictions(row).shape == (24, 2)
    drawn = sorted(path.stem.rpartition("-")[2] for path in (tmp_path / "out" / "plots").iterdir())
    assert drawn == ["classes", "neighbours", "spectrum"]
    (file,) = (tmp_path / "out" / "predictions").iterdir()
    same = compare_files(file, file)
    assert (same.n, same.a, same.difference, same.low, same.high) == (24, pytest.approx(expected), 0, 0, 0)
    assert sentence(same, "A", "B").startswith(
        "no difference can be told (95 % interval of the difference of the 11-point mAP"
    )


def test_a_network_is_measured_on_it_from_the_command_line(squares, tmp_path, monkeypatch, capsys):
    words = ["eval.score", "timm:test_resnet", "--data", f"voc2007={squares}", "--protocol", "linear,geometry"]
    monkeypatch.setattr(sys, "argv", [*words, "--max-train", "30", "--max-test", "12", "--out", str(tmp_path / "out")])
    main()
    assert "one-vs-rest logistic regression, standardised, penalty chosen on 10 % of train, v3: 11-point mAP" in (
        capsys.readouterr().out
    )
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["metric"] for row in rows].count("11-point mAP") == 1
    assert len(rows) == 7


def test_the_loss_of_several_labels_is_by_hand_and_what_is_not_known_has_no_gradient():
    """Of logits 0 and ln 3 for yes, and -ln 3 for no: ln 2, ln 4/3, ln 4/3; the gradient is (sigmoid - label) / 3."""
    logits = torch.tensor([[0.0, np.log(3)], [-np.log(3), 7.0]], requires_grad=True)
    value = loss(logits, torch.tensor([[1, 1], [0, -1]]))
    assert value.item() == pytest.approx((np.log(2) + 2 * np.log(4 / 3)) / 3, abs=1e-6)
    value.backward()
    assert logits.grad.tolist() == [pytest.approx([-1 / 6, -1 / 12]), pytest.approx([1 / 12, 0])]


@pytest.fixture
def fine(squares):
    """The squares at 12 px before a 20-layer network; one step of each fine-tuning."""
    torch.manual_seed(0)
    encoder = Encoder(build_backbone("r20", image_size=12), mean=(0.4,) * 3, std=(0.3,) * 3, image_size=12).eval()
    source = open_source("voc2007", squares).seen_by(encoder)
    bank, queries = (extract(encoder, part) for part in (source.train, source.test))
    return Task(encoder, source.train, source.test, bank, queries, 2, finetune_steps=1, metric=source.metric)


def test_fine_tuning_on_several_labels_learns_each_of_them(fine):
    index = labelled(fine.train)
    before = fingerprint(fine.encoder)
    network = train(fine, index, Schedule(rate=0.03, decay=0, steps=25))
    scores = answers(network, fine.test, labelled(fine.test), fine)
    assert scores.shape == (24, 2)
    assert min(average_precisions(scores, fine.queries.labels)) > 0.9
    assert fingerprint(fine.encoder) == before
    with torch.no_grad():
        network[1].bias.fill_(torch.nan)
    assert np.unique(answers(network, fine.test, labelled(fine.test), fine)).tolist() == [np.finfo(np.float32).min]


def test_fine_tuning_on_several_labels_is_chosen_and_graded_by_the_mean_average_precision(fine):
    (outcome,) = finetune(fine)
    columns = zip(outcome.predicted.T, fine.queries.labels.T, strict=True)
    assert outcome.value == pytest.approx(np.mean([reference.eleven_point_ap(s, y) for s, y in columns]), abs=1e-9)
    assert (outcome.name, outcome.metric) == ("finetune-1", "11-point mAP")
    assert outcome.protocol.startswith("fine-tuning, one-vs-rest, 1 steps of 64 images")
    index, aside = labelled(fine.train), held_out(strata(fine.bank.labels))
    network = train(fine, index[~aside], Schedule(0.1, 0.0, 1))
    expected = mean_average_precision(answers(network, fine.train, index[aside], fine), fine.bank.labels[aside])
    assert outcome.extras["held_out"]["0.1, 0"] == pytest.approx(expected)
    assert outcome.extras["held_out"][f"{outcome.extras['rate']:g}, {outcome.extras['decay']:g}"] == max(
        outcome.extras["held_out"].values()
    )


def test_a_test_image_of_a_class_that_train_lacks_is_counted(squares):
    voc(squares, {"extra": [("green", 0, WHOLE)], "hard": [("violet", 1, WHOLE)]}, split="test")
    counts = open_source("voc2007", squares).measured
    assert (counts.unseen, counts.difficult, counts.unlabelled) == (1, 6 + 1, 0)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("protocol", [linear, finetune])
def test_classes_that_all_images_have_or_none_are_refused_though_their_mean_would_be_100_percent(fine, protocol, split):
    labels = np.tile([[1, 0]], (24, 1))
    labels[0] = -1, 0  # what is not known is no difference
    part = "bank" if split == "train" else "queries"
    with pytest.raises(BadData, match=f"each class is on all 24 {split} images or on none of them"):
        protocol(replace(fine, **{part: Features(getattr(fine, part).rows[:24], labels)}))


def test_protocols_that_want_one_class_an_image_are_refused_and_a_suite_leaves_them_out(squares):
    assert expand(["transfer"], several_labels=True) == ["linear", "finetune"]
    with pytest.raises(BadData, match="for images of several there are linear, finetune, geometry"):
        score("pixels:", data={"digits": None, "voc2007": squares}, protocols=["linear", "knn"])


def test_other_layouts_missing_lists_and_too_many_classes_are_refused(squares, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "folders" / split / "dog").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "folders" / split / "dog" / "0.png")
    with pytest.raises(BadData, match=r"trainval.txt: no such list; there are none. A VOC folder has ImageSets/Main"):
        open_images("voc2007", "train", data=tmp_path / "folders")
    (squares / "ImageSets/Main/test.txt").rename(squares / "ImageSets/Main/val.txt")
    with pytest.raises(BadData, match=r"test.txt: no such list; there are \['trainval', 'val'\]"):
        open_images("voc2007", "train", data=squares)
    voc(squares, {f"t{i}": [(f"class {i}", 0, WHOLE)] for i in range(20)}, split="test")
    with pytest.raises(BadData, match="22 classes, allowed 20"):
        open_images("voc2007", "test", data=squares)


@pytest.mark.realdata
def test_blood_cells_agree_with_scikit_learn_and_the_second_formula(realdata):
    """BCCD, 292 and 72 images: red cells on nearly all, white ones on most, platelets on half."""
    source = open_source("voc2007", realdata / "bccd")
    assert source.train.classes == ("Platelets", "RBC", "WBC")
    encoder = open_contestant("pixels:", "voc2007").encoder
    source = source.seen_by(encoder)
    bank, test = (extract(encoder, part) for part in (source.train, source.test))
    fit = one_vs_rest(bank, test.rows)
    x, asked = (rows.astype(float) for rows in standardised(bank.rows, test.rows))
    for c in range(3):
        exact = LogisticRegression(C=1 / (fit.penalty * len(x)), tol=1e-6, max_iter=5000).fit(x, bank.labels[:, c])
        scores = exact.decision_function(asked)
        assert np.corrcoef(scores, fit.predicted[:, c])[0, 1] > 0.9999
        expected = reference.eleven_point_ap(scores, test.labels[:, c])
        assert eleven_point(fit.predicted[:, c], test.labels[:, c]) == pytest.approx(expected, abs=0.01)
