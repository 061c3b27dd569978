"""Mean and spread of several trainings of one recipe."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eval.compare import compare_recipes, table
from eval.intervals import welch
from eval.seeds import over_seeds
from zoo.card import Card
from zoo.encoder import Encoder, save_encoder
from zoo.errors import BadData
from zoo.store import read_card

ROW = {
    "key": "knn/digits", "protocol": "k-NN, k = 20", "protocol_version": 1, "metric": "top-1 accuracy", "unit": "share",
    "feature": "backbone", "dataset": "digits", "n_train": 1438, "n_test": 359, "dim": 64, "image_size": 8,
    "data_sha256": ["a", "b"], "collapsed": False, "unseen": 0, "unlabelled": 0, "skipped": 0, "duplicates": 0,
    "encoder_sha256": "e", "hardware": "2 cores", "ci95": [0.1, 0.9], "by_k": {"1": 0.2},
}  # fmt: skip


def run(card: Card, seed: int, value: float, **changed: object) -> Card:
    row = ROW | {"encoder": card.name, "value": value, "weights_sha256": f"w{seed}"} | changed
    baseline = row | {"key": "knn/digits/pixels", "encoder": "pixels"}
    return replace(card, recipe=card.recipe | {"seed": seed}, results=(row, baseline))


def test_the_mean_and_the_sample_deviation_of_three_trainings(card: Card):
    runs = [run(card, 16, 0.5), run(card, 17, 0.6), run(card, 18, 0.7)]
    (row,) = over_seeds(run(card, 15, 0.9), runs)
    assert row["value"] == pytest.approx(0.6)
    assert row["std"] == pytest.approx(0.1)
    assert row["protocol"] == "k-NN, k = 20; mean of 3 trainings"
    assert row["trainings"]["17"] == {"value": 0.6, "weights_sha256": "w17"}
    assert (row["weights_sha256"], row["ci95"]) == ("w15", None)
    assert "by_k" not in row


def test_rows_over_seeds_are_not_averaged_again(card: Card):
    runs = [run(card, 16, 0.5), run(card, 17, 0.6)]
    first = run(card, 15, 0.9)
    (row,) = over_seeds(first, runs)
    assert len(over_seeds(first.with_result(row), runs)) == 1


def test_runs_that_cannot_be_averaged_are_refused_with_the_reason(card: Card):
    one, two = run(card, 16, 0.5), run(card, 17, 0.6)
    longer = replace(two, recipe=two.recipe | {"epochs": 99})
    on_fewer_images = replace(two, training=two.training | {"images": 100})
    renamed = replace(two, name="simco-r20-other")
    cases = [
        ([one], "1 run; a spread over seeds needs two"),
        ([one, one], r"seeds \[16, 16\]: two runs share one"),
        ([one, longer], "differ in more than the seed: epochs$"),
        ([one, on_fewer_images], "differ in more than the seed: images$"),
        ([one, renamed], "simco-r20-other and simco-r20-digits differ in more than the seed: name$"),
        ([one, replace(two, results=())], "seed 17 was not measured by k-NN, k = 20 on digits .* eval.score RUN"),
        ([one, run(card, 17, 0.6, n_test=100)], "seed 17 was not measured"),
    ]
    for runs, message in cases:
        with pytest.raises(BadData, match=message):
            over_seeds(one, runs)


def test_the_command_writes_the_rows_into_the_card_of_the_model_named_first(
    encoder: Encoder, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    from eval.seeds import main

    for seed, value in ((15, 0.5), (16, 0.6)):
        saved = save_encoder(encoder, tmp_path / str(seed), run(card, seed, value))
        row = saved.results[0] | {"weights_sha256": saved.weights.sha256}
        save_encoder(encoder, tmp_path / str(seed), replace(saved, results=(row,)))
    monkeypatch.setattr("sys.argv", ["eval.seeds", *(str(tmp_path / name) for name in ("15", "15", "16"))])
    main()
    assert "| 55.00 ± 7.07 |" in capsys.readouterr().out
    assert read_card(tmp_path / "15").results[-1]["std"] == pytest.approx(0.0707, abs=1e-4)


def test_the_card_of_a_model_that_came_with_the_package_is_left_alone(monkeypatch, capsys):
    from eval.seeds import main

    monkeypatch.setattr("sys.argv", ["eval.seeds", "simco-r20-cifar100", "a", "b"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert "simco-r20-cifar100 keeps its card as it came; to write into it, give its folder: " in str(ending.value.code)


def trained(card: Card, name: str, values: list[float], **changed: object) -> Card:
    """A card with numbers over seeds."""
    card = replace(card, name=name)
    runs = [run(card, seed, value, **changed) for seed, value in enumerate(values)]
    return replace(card, results=(*runs[0].results, *over_seeds(runs[0], runs)))


def test_two_recipes_are_compared_over_their_trainings(card: Card):
    a = trained(card, "simco-r20-digits", [0.50, 0.56, 0.59])
    b = trained(card, "simmoco-r20-digits", [0.45, 0.49])
    (found,) = compare_recipes(a, b)
    # By hand: variances over n are 0.0021 / 3 and 0.0008 / 2, so the deviation of the difference is sqrt(0.0011), with
    # 0.0011^2 / (0.0007^2 / 2 + 0.0004^2) = 2.988 degrees of freedom, whose 97.5 % quantile of t is 3.189.
    assert (found.low, found.high) == pytest.approx((0.08 - 0.1058, 0.08 + 0.1058), abs=2e-4)
    line = "| digits, k-NN | 55.00 ± 4.58, 3 | 47.00 ± 2.83, 2 | +8.00 [-2.58, +18.58] |"
    assert line in table([found], a.name, b.name).splitlines()
    with pytest.raises(BadData, match=r"over seeds: .* has 1, .* has 0, none of the same measure; .*eval.seeds"):
        compare_recipes(a, run(card, 1, 0.5))
    with pytest.raises(BadData, match=r"over seeds: .* has 1, .* has 1, none of the same measure"):
        compare_recipes(a, trained(card, "simmoco-r20-digits", [0.4, 0.5], n_test=100))


def test_the_interval_over_trainings_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [welch(rng.normal(0.5, 0.01, 3).tolist(), rng.normal(0.4, 0.03, 5).tolist()) for _ in range(1000)]
    assert 0.93 < np.mean([low < 0.1 < high for low, high in intervals]) < 0.97
    assert welch([0.5, 0.5], [0.25, 0.25]) == (0.25, 0.25)
    with pytest.raises(BadData, match="1 and 2 trainings"):
        welch([0.5], [0.4, 0.5])
