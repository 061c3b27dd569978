"""From the command line to cards and tables: who is measured, what is refused, what a reader is told."""

import csv
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
from eval_rows import result
from PIL import Image
from safetensors.torch import save_file
from sklearn.neighbors import KNeighborsClassifier

from eval.compare import compare_files, sentence
from eval.contestants import baselines, fingerprint, open_contestant
from eval.features import RawPixels, extract
from eval.intervals import compare_predictions, wilson
from eval.knn import knn_predict
from eval.metrics import confusion, grade, mean_per_class, per_class
from eval.protocols import PROTOCOLS, expand
from eval.results import Results, read_results
from eval.score import main, score
from eval.sources import open_source
from eval.tables import csv_text, details, grouped, markdown, mean_ranks
from zoo.errors import BadData, CorruptFile, UnknownName, ZooError
from zoo.hub.store import read_card
from zoo.images.dataset import DATASETS
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder


def few(models, **more):
    return score(models, data={"digits": None}, **{"max_train": 300, "max_test": 80, **more})


def test_one_call_measures_every_kind_of_encoder(tiny_run, tmp_path):
    names = [tiny_run, "pixels:", "random:r20", "timm:test_resnet"]
    rows = few(names, protocols=["knn", "ridge"], out=tmp_path / "out", max_train=200, max_test=40)
    labels = ["simco-r20-digits", "random r20", "pixels", "random timm:test_resnet"]  # baselines once
    assert [row.encoder.name for row in rows] == [label for label in labels for _ in range(2)]
    by_key = {row.key: row.value for row in rows}
    assert by_key["knn/digits/pixels/200/40"] > by_key["knn/digits/random r20/200/40"] > 0.2
    assert [row["key"].split("/")[2] for row in read_card(tiny_run).results] == [
        label for label in labels[:3] for _ in range(2)
    ]


def test_a_folder_of_results_is_complete_and_is_not_measured_twice(tiny_run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    rows = few(tiny_run, protocols=["knn"], out=out)
    assert json.loads((out / "results.json").read_text()) == [row.to_row() for row in rows]
    (first, *_) = csv.DictReader((out / "results.csv").read_text().splitlines())
    assert (first["encoder"], float(first["value"])) == ("simco-r20-digits", rows[0].value)
    before = (out / "results.md").read_text()

    def refuse(_):
        raise AssertionError("measured again")

    monkeypatch.setitem(PROTOCOLS, "knn", replace(PROTOCOLS["knn"], measure=refuse))
    again = few(tiny_run, protocols=["knn"], out=out)
    assert markdown(again) + "\n" == before
    with pytest.raises(AssertionError, match="measured again"):
        score(tiny_run, data={"digits": None}, max_train=301, max_test=80, protocols=["knn"], out=out)


def test_predictions_are_kept_and_compared_image_by_image(tiny_run, tmp_path):
    rows = few([tiny_run], protocols=["knn", "ridge"], out=tmp_path)
    files = sorted((tmp_path / "predictions").glob("*.npz"))
    assert len(files) == len(rows) == 6
    pixels, random = (
        next(f for f in files if f.name.startswith(f"knn_digits_{name}")) for name in ("pixels", "random")
    )
    result = compare_files(pixels, random)
    values = {row.encoder.name: row.value for row in rows if row.key.startswith("knn")}
    assert (result.a, result.b) == (values["pixels"], values["random r20"])
    assert "is better" in sentence(result, "pixels", "random") or "can be told" in sentence(result, "pixels", "random")
    score(tiny_run, data={"digits": None}, max_train=300, max_test=79, out=tmp_path / "other")
    (other,) = (tmp_path / "other" / "predictions").glob("knn_digits_pixels*")
    with pytest.raises(BadData, match="not made on the same images"):
        compare_files(pixels, other)
    with pytest.raises(FileNotFoundError, match="knn_digits_pixels"):
        compare_files(pixels, tmp_path / "predictions" / "missing.npz")
    other.write_bytes(b"PK")
    with pytest.raises(CorruptFile):
        compare_files(other, other)


def test_mcnemar_and_the_bootstrap_tell_a_difference_and_tell_none():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 2000)
    good, bad = (np.where(rng.random(2000) < share, labels, (labels + 1) % 10) for share in (0.8, 0.7))
    result = compare_predictions(good, bad, labels)
    assert result.low > 0.05
    assert result.high < 0.15
    assert result.p < 1e-6
    assert result.difference == pytest.approx(result.a - result.b)
    same = compare_predictions(good, good, labels)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
    by_hand = compare_predictions(np.array([0] * 10), np.array([1] * 8 + [0] * 2), np.zeros(10, int))
    assert by_hand.p == pytest.approx(2 * 0.5**8)  # 8 of 8 discordant images for A
    with pytest.raises(BadData, match="same images"):
        compare_predictions(good, bad[:5], labels)


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(62, 42), (10, 3), (40, 60), (39, 60), (5, 0), (6, 0), (0, 0), (700, 9)]
)
def test_the_verdict_is_that_of_mcnemars_test_alone(only_a, only_b):
    """(62, 42) of 1,200: the bootstrap interval may leave 0 out where the exact test says p = 0.062."""
    labels = np.zeros(1200, int)
    a, b = labels.copy(), labels.copy()
    b[:only_a] = 1
    a[only_a : only_a + only_b] = 1
    result = compare_predictions(a, b, labels)
    fewer, discordant = min(only_a, only_b), only_a + only_b
    by_hand = min(1.0, 2 * sum(math.comb(discordant, i) for i in range(fewer + 1)) / 2**discordant)
    assert result.p == pytest.approx(by_hand)
    told = sentence(result, "A", "B")
    expected = "no difference can be told" if by_hand >= 0.05 else f"{'A' if only_a > only_b else 'B'} is better"
    assert told.startswith(f"{expected} (McNemar's exact test, p = {by_hand:.2g}). A ")
    assert told.count("better") + told.count("no difference") == 1


def test_the_bootstrap_interval_covers_the_truth_as_often_as_it_says():
    rng, covered = np.random.default_rng(1), 0
    labels = np.zeros(300, int)
    for seed in range(200):
        a, b = ((rng.random(300) > share).astype(int) for share in (0.7, 0.65))
        result = compare_predictions(a, b, labels, seed=seed)
        covered += result.low <= 0.05 <= result.high
    assert 0.90 <= covered / 200 <= 0.99


def test_metrics_from_the_confusion_matrix_by_hand():
    labels, predicted = np.array([0, 0, 0, 1, 1, 3]), np.array([0, 0, 1, 1, 2, 3])
    matrix = confusion(predicted, labels, classes=5)
    assert matrix[0].tolist() == [2, 1, 0, 0, 0]
    assert matrix[1].tolist() == [0, 1, 1, 0, 0]
    assert per_class(matrix)[[0, 1, 3]] == pytest.approx([2 / 3, 1 / 2, 1])
    assert np.isnan(per_class(matrix)[[2, 4]]).all()
    assert mean_per_class(predicted, labels, classes=5) == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)


def test_an_answer_of_no_class_is_a_mistake_and_stands_in_a_column_of_its_own():
    labels, predicted = np.array([0, 0, 1, 2]), np.array([-1, 0, 1, -1])
    assert confusion(predicted, labels, classes=3).tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert mean_per_class(predicted, labels, classes=3) == pytest.approx((1 / 2 + 1 + 0) / 3)


def test_the_interval_of_a_mean_over_classes_is_wilsons_where_they_are_equal_and_wider_where_one_is_small():
    equal = np.repeat([0, 1], 50)
    right = np.where(np.arange(100) % 50 < 40, equal, 1 - equal)  # 80 % of each class
    top, mean = (grade(right, equal, metric=m, classes=2) for m in ("top-1 accuracy", "mean per-class accuracy"))
    assert top == mean == (0.8, pytest.approx(wilson(0.8, 100)))
    skewed = np.repeat([0, 1], [95, 5])
    found = np.where(np.arange(100) % 95 < 76, skewed, 1 - skewed)  # 76 of 95, and 5 of 5
    value, (low, high) = grade(found, skewed, metric="mean per-class accuracy", classes=2)
    assert value == pytest.approx((0.8 + 1) / 2)
    assert (low, high) == pytest.approx(wilson(0.9, 4 / (1 / 95 + 1 / 5)))
    assert high - low > 2 * (wilson(0.9, 100)[1] - wilson(0.9, 100)[0])


@pytest.mark.parametrize(
    "protocols",
    [["knn", "ridge", "fewshot"], pytest.param(["knn", "linear", "linear-sgd", "finetune"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_a_data_set_whose_papers_report_the_mean_over_classes_is_measured_by_it_in_every_protocol(
    tmp_path, monkeypatch, protocols
):
    row = replace(DATASETS["digits"], metric="mean per-class accuracy")
    monkeypatch.setitem(DATASETS, "digits", row)
    options = {"max_train": 60, "max_test": 40, "finetune_steps": 1, "protocols": protocols, "out": tmp_path}
    rows = few("random:r20", **options)
    labels = open_source("digits", None, max_test=40).test.labels
    assert len(np.unique(np.bincount(labels))) > 1  # else it would be the accuracy
    for row in rows:
        expected = mean_per_class(Results(tmp_path).predictions(row), labels, classes=10)
        assert row.metric == "mean per-class accuracy"
        assert row.extras.get("by_seed", [row.value])[0] == pytest.approx(expected, abs=1e-12)
    assert rows[0].extras["by_k"]["20"] == rows[0].value
    assert DATASETS["pets"].metric == DATASETS["aircraft"].metric == "mean per-class accuracy"


def test_unlike_rows_never_share_a_column():
    rows = [
        result("a", 0.5),
        result("b", 0.6, protocol="linear"),
        result("c", 0.7, n_train=9),
        result("d", 0.8, metric="mAP"),
    ]
    rows += [result("e", 0.9, protocol_version=2), result("f", 0.4, data_sha256=["a", "c"])]
    for group in grouped(rows).values():
        assert len({(r.protocol, r.version, r.metric) for r in group}) == 1
    lines = markdown(rows).splitlines()
    columns = {
        next(r.encoder.name for r in rows if f"{100 * r.value:.2f}" in text): text for text in lines if ".00" in text
    }
    assert columns["a"].count("|") == columns["c"].count("|") == 6
    assert columns["a"].split("|")[3:6] == [" 50.00 ", "  ", "  "]
    assert columns["c"].split("|")[3:6] == ["  ", " 70.00 ", "  "]
    assert columns["f"].split("|")[3:6] == ["  ", "  ", " 40.00 "]
    assert columns["b"].count("|") == 4


def test_two_encoders_of_one_name_are_told_apart():
    text = markdown([result("a", 0.5), result("a", 0.6, encoder_sha256="0123456789")])
    assert "a (01234567)" in text
    assert "50.00" in text
    other = {"encoder_sha256": "0123456789", "weights_sha256": "w"}  # other weights of one name, on other images
    lines = markdown([result("a", 0.5, weights_sha256="v"), result("a", 0.6, dataset="y", **other)]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:6]] == ["a (aaaaaaaa)", "a (01234567)"]


def test_a_baseline_that_each_data_set_normalises_and_sizes_is_one_line_with_a_rank():
    rows = [result("random r20", 0.5, encoder_sha256="1" * 8), result("pixels", 0.4, encoder_sha256="")]
    rows += [result("random r20", 0.7, encoder_sha256="2" * 8, dataset="y")]
    rows += [result("pixels", 0.8, encoder_sha256="", image_size=96, dim=27648, dataset="y")]
    lines = markdown(rows).splitlines()
    assert lines[4] == "| random r20 | 4 | 50.00 | 70.00 | 1.5 |"
    assert lines[5] == "| pixels | 4 / 27648 | 40.00 | 80.00 | 1.5 |"


def test_ranks_are_means_over_data_sets_and_equals_share_theirs():
    values = {"a": (0.9, 0.5), "b": (0.8, 0.5), "c": (0.7, 0.9)}
    rows = [result(name, v, dataset=d) for name, pair in values.items() for d, v in zip(("x", "y"), pair, strict=True)]
    assert mean_ranks(rows) == {"a": (1 + 2.5) / 2, "b": (2 + 2.5) / 2, "c": (3 + 1) / 2}
    assert mean_ranks([*rows, result("d", 1.0, dataset="x")]) == mean_ranks(rows[:6])  # d is not everywhere
    assert "mean rank" in markdown(rows)
    assert "mean rank" not in markdown([replace(r, unit="") for r in rows])


def test_a_bar_in_a_name_makes_no_column():
    assert r"| encoder | D | a\|b, 10 / 10 |" in markdown([result("a", 0.5, dataset="a|b")])


def test_trainings_of_one_model_share_a_cell_and_those_that_diverged_are_but_counted():
    lost = {"seed": 2, "diverged": "diverged in step 49 at a rate of 0.015"}
    rows = [result("a", 0.1, seed=0), result("a", 0.9, seed=1), result("a", None, **lost), result("b", None, **lost)]
    rows += [result("a", 0.3, seed=1)]  # measured twice at once: one training
    text = markdown([*rows, result("c", 0.4, seed=0)])
    assert "| a | 4 | 20.00 ± 14.14 (2 of 3 trainings) |" in text  # (0.3 - 0.1) / sqrt 2
    assert "| b | 4 | (0 of 1 training) |" in text
    assert "| c | 4 | 40.00 (1 training) |" in text
    assert "- a on digits, k-NN: the training of seed 2 diverged in step 49 at a rate of 0.015." in text
    elsewhere = [result(name, 0.5, seed=0, dataset="y") for name in "abc"]
    assert mean_ranks([*rows, result("c", 0.4, seed=0), *elsewhere]) == {"a": 1.75, "c": 1.25}  # b is not everywhere


def test_doubtful_numbers_are_noted_once():
    rows = [
        result("a", 0.5, grid_edge=True, converged=False, unseen=3),
        result("b", 0.5, collapsed=True, duplicates=10, unseen=3, n_fit=20, n_asked=14),
        result("c", 0.5, n_fit=142, n_asked=144, held_out={"1": 0.4, "0.1": 0.5, "0.01": 0.5}),
        result("d", 0.5, held_out={"1": 0.4, "0.1": 0.5}),
    ]
    text = markdown(rows)
    assert text.count("labels were used") == text.count("20 labels were used, not 14: of each class two at least") == 1
    for note in ("edge of those tried", "did not converge", "has collapsed", "10 test images are in train"):
        assert text.count(note) == 1
    assert text.count("the settings 0.1 and 0.01 were equally good on the held-out images") == 1
    assert text.count("equally good") == 1
    assert text.count("3 test images of classes that train lacks") == 1
    assert "nan" not in csv_text(rows)


def test_the_best_k_and_t_are_a_detail_that_says_what_chose_them():
    (one,) = score("pixels:", data={"digits": None}, max_train=300, max_test=80)
    cells = {(k, t): v for t, by_k in one.extras["by_temperature"].items() for k, v in by_k.items()}
    k, t = max(cells, key=cells.__getitem__)
    assert cells[k, t] > one.value
    best = f"at best {100 * cells[k, t]:.2f} % (k = {k}, T = {t})"
    assert details([one]) == [f"- pixels on digits, k-NN: {best}, but chosen on the test images."]
    assert "at best" not in markdown([one])  # in the report alone: in nearly every line it would hide the other notes


def test_an_unknown_protocol_kind_or_network_is_told_with_the_nearest_names():
    assert expand("knn") == ["knn"]
    assert expand("knn, ridge") == ["knn", "ridge"]
    assert expand(["transfer", "linear"]) == ["linear", "fewshot", "labels", "finetune"]
    with pytest.raises(UnknownName, match="knn"):
        expand(["knnn"])
    with pytest.raises(UnknownName, match="timm:"):
        open_contestant("tim:resnet18", "digits")
    with pytest.raises(UnknownName, match="resnet18"):
        open_contestant("timm:resnet_18", "digits")
    with pytest.raises(BadData, match="--data"):
        score("pixels:")


def test_timm_weights_from_a_file_are_loaded_whole_or_refused(tmp_path):
    network = timm.create_model("test_resnet", pretrained=False)  # with its classifier
    save_file(network.state_dict(), tmp_path / "whole.safetensors")
    loaded = open_contestant(f"timm:test_resnet={tmp_path / 'whole.safetensors'}", "digits")
    assert isinstance(loaded.encoder, Encoder)
    assert (loaded.encoder.backbone.conv1[0].weight == network.conv1[0].weight).all()
    assert loaded.sha256 != open_contestant("timm:test_resnet", "digits").sha256
    save_file(
        {f"module.{key}": value for key, value in network.state_dict().items()}, tmp_path / "prefixed.safetensors"
    )
    with pytest.raises(CorruptFile, match="unknown to the network"):
        open_contestant(f"timm:test_resnet={tmp_path / 'prefixed.safetensors'}", "digits")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        open_contestant("timm:test_resnet=nowhere", "digits")


def test_the_fingerprint_sees_every_buffer_and_the_untrained_twin_is_always_the_same(encoder, tiny_run):
    before = fingerprint(encoder)
    encoder.backbone.bn1.running_mean[0] += 1
    assert fingerprint(encoder) != before
    one, two = (baselines(open_contestant(str(tiny_run), "digits")) for _ in range(2))
    assert [b.sha256 for b in one] == [b.sha256 for b in two]


def test_an_encoder_that_changes_while_it_is_measured_is_refused(tiny_run, monkeypatch):
    def stir(task):
        if isinstance(task.encoder, Encoder):
            task.encoder.train()(__import__("torch").rand(4, 3, 8, 8))
        return []

    monkeypatch.setitem(PROTOCOLS, "knn", replace(PROTOCOLS["knn"], measure=stir))
    with pytest.raises(BadData, match="changed while it was measured"):
        few(tiny_run)


def test_results_and_a_training_that_saves_wait_for_each_other(encoder, card, tiny_run):
    """While the folder is locked, neither writes; afterwards the results of replaced weights are refused."""
    from threading import Thread

    from eval.card_results import add_results
    from zoo.files import locked
    from zoo.model.encoder import save_encoder

    (measured, *_) = few(tiny_run, protocols=["knn"])
    before = (tiny_run / "card.json").read_text()
    encoder.backbone.conv1.weight.data.add_(1)
    saving = Thread(target=save_encoder, args=(encoder, tiny_run, replace(card, results=())))
    with locked(tiny_run):
        saving.start()
        saving.join(0.3)
        assert saving.is_alive()
        assert (tiny_run / "card.json").read_text() == before
    saving.join()
    with pytest.raises(ZooError, match="changed while they were measured"):
        add_results(tiny_run, [measured])
    assert read_card(tiny_run).results == ()


def test_a_model_inside_the_package_keeps_its_card_unless_its_folder_is_given(tiny_run, tmp_path, monkeypatch, capsys):
    inside = tmp_path / "weights" / "simco-r20-digits"
    shutil.copytree(tiny_run, inside)
    monkeypatch.setattr("zoo.hub.store.BUNDLED", inside.parent)
    before = (inside / "card.json").read_bytes()
    monkeypatch.setattr(sys, "argv", ["eval.score", inside.name, "--max-train", "60", "--max-test", "30"])
    main()
    said = capsys.readouterr()
    assert "simco-r20-digits is not yours to change: its card stays as it is" in said.err
    assert "random r20" in said.out
    assert (inside / "card.json").read_bytes() == before
    score(str(inside), max_train=60, max_test=30)
    assert len(read_card(inside).results) == 3


def test_a_constant_encoder_scores_chance_and_is_called_collapsed(tiny_run):
    import torch

    from zoo.hub.load import load_encoder
    from zoo.model.encoder import save_encoder

    encoder = load_encoder(tiny_run)
    for parameter in encoder.backbone.layer3[-1].parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.zeros_(encoder.backbone.layer3[-2].bn2.weight)
    for module in encoder.backbone.layer3:
        torch.nn.init.zeros_(module.bn2.weight)
        torch.nn.init.zeros_(module.bn2.bias)
    torch.nn.init.zeros_(encoder.backbone.layer2[-1].bn2.weight)
    torch.nn.init.zeros_(encoder.backbone.conv1.weight)
    save_encoder(encoder, tiny_run, replace(read_card(tiny_run), weights=None))
    rows = few(tiny_run, protocols=["knn", "linear"])
    for one in rows[:2]:
        assert one.collapsed
        assert one.value <= wilson(0.1, 80, z=3)[1]
    assert "has collapsed" in markdown(rows)
    assert not rows[-1].collapsed


def image_folder(folder: Path, classes: dict[str, list[str]], rng) -> Path:
    for split, names in classes.items():
        for name in names:
            (folder / split / name).mkdir(parents=True)
            for i in range(12 if split == "train" else 3):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / split / name / f"{i}.png")
    return folder


def test_test_images_of_a_class_that_train_lacks_count_as_mistakes_and_are_counted(tmp_path):
    folder = image_folder(tmp_path, {"train": ["a", "b"], "test": ["a", "b", "c"]}, np.random.default_rng(0))
    source = open_source("digits", folder)
    assert (source.measured.unseen, len(source.test)) == (3, 9)
    rows = score("pixels:", data={"digits": folder}, protocols=["knn", "linear"])
    assert all(r.data.n_test == 9 and r.value <= 6 / 9 for r in rows)
    assert "3 test images of classes that train lacks" in markdown(rows)


@pytest.mark.parametrize("test", [["A", "B"], ["c"]])
def test_test_images_all_of_classes_that_train_lacks_are_a_mistake_of_layout(tmp_path, test):
    folder = image_folder(tmp_path, {"train": ["a", "b"], "test": test}, np.random.default_rng(0))
    with pytest.raises(
        BadData, match=f"no test image is of a class that train has.* a, b in train, {', '.join(test)} in"
    ):
        open_source("digits", folder)


def test_a_test_split_that_is_a_copy_of_train_is_refused_and_single_duplicates_are_counted(tmp_path):
    folder = image_folder(tmp_path, {"train": ["a", "b"], "test": ["a", "b"]}, np.random.default_rng(0))
    (folder / "test" / "a" / "0.png").write_bytes((folder / "train" / "b" / "5.png").read_bytes())
    assert open_source("digits", folder).measured.duplicates == 1
    for i in range(3):
        for name in "ab":
            (folder / "test" / name / f"{i}.png").write_bytes((folder / "train" / name / f"{i}.png").read_bytes())
    with pytest.raises(BadData, match="6 of 6 test images are train images"):
        open_source("digits", folder)


@pytest.mark.parametrize(("protocol", "split"), [("knn", "train"), ("linear", "train"), ("retrieval", "test")])
def test_a_run_on_one_class_is_refused(tmp_path, protocol, split):
    folder = image_folder(tmp_path, {"train": ["a"], "test": ["a"]}, np.random.default_rng(0))
    with pytest.raises(BadData, match=f"{split} images are of one class"):
        score("pixels:", data={"digits": folder}, protocols=[protocol])


def test_a_protocol_that_fails_is_a_result_that_says_why_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    """All test images are of one class, so retrieval has nothing to tell apart; the bank has all."""
    folder = image_folder(tmp_path / "data", {"train": ["a", "b"], "test": ["a"]}, np.random.default_rng(0))
    out = tmp_path / "out"
    words = ["eval.score", "pixels:", "--data", f"digits={folder}", "--protocol", "retrieval,knn", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"error: 1 of 2 measurements failed; the notes below the tables say why"):
        main()
    shown = capsys.readouterr().out
    assert "- pixels on digits, retrieval: failed: all 3 test images are of one class; two are needed." in shown
    assert "Change what it names, or leave this protocol out" in shown
    failed, measured = read_results(out / "results.json")
    assert (failed.value, failed.protocol, measured.value is None) == (None, "retrieval", False)
    assert shown.strip() == (out / "results.md").read_text().strip()
    assert len(list((out / "rows").iterdir())) == 1  # a later call tries again what failed


def test_an_error_that_no_protocol_foresaw_is_named_with_its_kind(monkeypatch):
    def singular(_):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setitem(PROTOCOLS, "ridge", replace(PROTOCOLS["ridge"], measure=singular))
    measured, failed = few("pixels:", protocols="knn,ridge")
    assert measured.value > 0.5
    assert failed.failure.startswith("LinAlgError: Eigenvalues did not converge. ")
    with pytest.raises(BadData, match="LinAlgError: Eigenvalues did not converge"):
        few("pixels:", protocols="ridge")  # nothing at all was measured


def test_a_failure_is_in_no_card(tiny_run, monkeypatch):
    def fail(task):
        raise BadData("no")

    monkeypatch.setitem(PROTOCOLS, "ridge", replace(PROTOCOLS["ridge"], measure=fail))
    assert [one.failure[:2] for one in few(tiny_run, protocols=["knn", "ridge"])] == ["", "no"] * 3
    assert [row["key"].split("/")[0] for row in read_card(tiny_run).results] == ["knn"] * 3


def test_tables_and_report_hold_every_encoder_that_is_finished_when_the_next_one_is_stopped(tmp_path, monkeypatch):
    knn = PROTOCOLS["knn"].measure

    def stop_at_the_second(task):
        if not isinstance(task.encoder, RawPixels):
            raise KeyboardInterrupt
        return knn(task)

    monkeypatch.setitem(PROTOCOLS, "knn", replace(PROTOCOLS["knn"], measure=stop_at_the_second))
    with pytest.raises(KeyboardInterrupt):
        few(["pixels:", "random:r20"], out=tmp_path)
    (finished,) = read_results(tmp_path / "results.json")
    assert finished.encoder.name == "pixels"
    number = f"{100 * finished.value:.2f}"
    assert all(number in (tmp_path / name).read_text() for name in ("results.md", "report.html"))


def test_raw_pixels_are_left_out_where_a_protocol_trains_a_network():
    assert score("pixels:", data={"digits": None}, protocols=["linear-moco", "finetune"], max_test=50) == []
    assert RawPixels(8).dim == 192


def test_the_command_line_writes_a_folder_and_tells_errors_in_one_line(tmp_path, monkeypatch, capsys):
    words = ["eval.score", "pixels:", "--protocol", "knn, ridge", "--out", str(tmp_path), "--max-test", "90", "--data"]
    monkeypatch.setattr(sys, "argv", [*words, "digits"])
    main()
    assert capsys.readouterr().out.strip() == (tmp_path / "results.md").read_text().strip()
    monkeypatch.setattr(sys, "argv", [*words, "digit"])
    with pytest.raises(SystemExit, match="error: unknown data set 'digit'; nearest: digits, signdigits"):
        main()


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "folder"), [("rsscn7", "rsscn7_64"), ("signdigits", "signdigits")])
def test_mean_and_std_of_the_transfer_sets_are_those_of_their_train_splits(realdata, name, folder):
    train = open_images(name, "train", data=realdata / folder)
    pixels = train.pixels().reshape(-1, 3) / 255
    assert DATASETS[name].mean == pytest.approx(pixels.mean(0), abs=1e-4)
    assert DATASETS[name].std == pytest.approx(pixels.std(0), abs=1e-4)
    assert len(train.classes) == DATASETS[name].classes


@pytest.mark.realdata
def test_scikit_learn_agrees_on_raw_pixels_of_cifar10(realdata):
    source = open_source("cifar10", realdata / "cifar10", max_train=3000, max_test=1000)
    bank, queries = (extract(RawPixels(32), part) for part in (source.train, source.test))
    for k, classes in knn_predict(bank.rows, bank.labels, queries.rows, ks=(5, 20)).items():
        oracle = KNeighborsClassifier(
            k[0], metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / 0.07)
        ).fit(bank.rows, bank.labels)
        assert (oracle.predict(queries.rows) == classes).mean() >= 0.999
