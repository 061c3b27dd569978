"""Mean and spread of several trainings of one recipe."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import t, ttest_ind

from eval.compare import compare_recipes, table
from eval.intervals import holm, welch
from eval.seeds import mean_results
from eval.tables import markdown, notes
from zoo.errors import BadData, CorruptFile
from zoo.hub.store import read_card
from zoo.model.card import Card, Weights, parse_card
from zoo.model.encoder import Encoder, save_encoder
from zoo.release.model_card import model_card

ROW = {
    "key": "knn/digits", "protocol": "k-NN, k = 20", "protocol_version": 1, "metric": "top-1 accuracy", "unit": "share",
    "feature": "backbone", "dataset": "digits", "n_train": 1438, "n_test": 359, "dim": 64, "image_size": 8,
    "data_sha256": ["a", "b"], "collapsed": False, "unseen": 0, "unlabelled": 0, "skipped": 0, "duplicates": 0,
    "encoder_sha256": "e", "hardware": "2 cores", "ci95": [0.1, 0.9], "by_k": {"1": 0.2},
}  # fmt: skip


def run(card: Card, seed: int, value: float, **changed: object) -> Card:
    row = ROW | {"encoder": card.name, "value": value, "weights_sha256": f"w{seed}"} | changed
    baseline = row | {"key": "knn/digits/pixels", "encoder": "pixels"}
    weights = Weights(file="model.safetensors", sha256=row["weights_sha256"], bytes=1)
    return replace(card, recipe=card.recipe | {"seed": seed}, results=(row, baseline), weights=weights)


def test_the_mean_and_the_sample_deviation_of_three_trainings(card: Card):
    runs = [run(card, 16, 0.5), run(card, 17, 0.6), run(card, 18, 0.7)]
    (row,) = mean_results(run(card, 15, 0.9), runs)
    assert row.value == pytest.approx(0.6)
    assert row.extras["std"] == pytest.approx(0.1)
    assert row.protocol == "k-NN, k = 20; mean ± std over trainings"
    assert row.extras["trainings"]["17"] == {"value": 0.6, "weights_sha256": "w17"}
    assert (row.encoder.sha256, row.encoder.weights_sha256, row.interval) == ("", "", None)  # of no single weights
    assert "by_k" not in row.extras
    assert markdown([row]).splitlines()[-1] == "| simco-r20-digits | 64 | 60.00 ± 10.00 (3 trainings) |"


def test_a_mean_has_the_doubts_of_each_training_behind_it(card: Card):
    sound, first = run(card, 16, 0.5), run(card, 15, 0.9)
    (row,) = mean_results(first, [sound, run(card, 17, 0.6, collapsed=True, grid_edge=True, converged=False)])
    assert row.collapsed
    once = "- simco-r20-digits on digits, k-NN: in one training run at least, "
    doubts = ("has collapsed.", "at the edge of those tried.", "the last fit did not converge.")
    for note, doubt in zip(notes([row]), doubts, strict=True):
        assert note.startswith(once)
        assert note.endswith(doubt)
    (row,) = mean_results(first, [sound, run(card, 17, 0.6)])
    assert (row.collapsed, notes([row])) == (False, [])


def test_a_mean_is_no_number_of_the_weights_that_its_card_names(card: Card):
    told = {"command": "python -m eval.score", "date": "2026-01-31"}
    first = run(card, 15, 0.9, **told)
    (row,) = mean_results(first, [run(card, 16, 0.5), run(card, 17, 0.6)])
    both = first.with_result(row.to_row())
    assert both.measured == both.accuracies == [first.results[0]]
    text = model_card(both, "someone/x", ())
    header = yaml.safe_load(text.split("---")[1])
    (indexed,) = header["model-index"][0]["results"]
    assert indexed["metrics"][0]["value"] == 90
    assert "| 55.00 ± 7.07 % (2 trainings) |" in text


def test_rows_over_seeds_are_not_averaged_again(card: Card):
    runs = [run(card, 16, 0.5), run(card, 17, 0.6)]
    first = run(card, 15, 0.9)
    (row,) = mean_results(first, runs)
    assert len(mean_results(first.with_result(row.to_row()), runs)) == 1


def test_runs_that_cannot_be_averaged_are_refused_with_the_reason(card: Card):
    one, two = run(card, 16, 0.5), run(card, 17, 0.6)
    longer = replace(two, recipe=two.recipe | {"epochs": 99})
    on_fewer_images = replace(two, training=two.training | {"images": 100})
    renamed = replace(two, name="simco-r20-other")
    cases = [
        ([one], "1 run; a spread over seeds needs two"),
        ([one, one], r"seeds \[16, 16\]: two runs share one"),
        ([one, longer], "^run 2 of 2 and the model differ in more than the seed: epochs 99, not 3$"),
        ([one, on_fewer_images], "differ in more than the seed: images 100, not None$"),
        ([one, renamed], "differ in more than the seed: name simco-r20-other, not simco-r20-digits$"),
        ([replace(one, recipe={}), two], "^run 1 of 2: its card tells no seed"),
        ([one, replace(two, weights=one.weights)], "seed 17 was not measured"),  # but other weights were
        ([one, replace(two, results=())], "^the run of seed 17 was not measured by k-NN, k = 20 on the same 1,438 "),
        ([one, run(card, 17, 0.6, n_test=100)], "seed 17 was not measured"),
    ]
    for runs, message in cases:
        with pytest.raises(BadData, match=message):
            mean_results(one, runs)
    with pytest.raises(BadData, match=r"^simco-r20-digits has no numbers yet: zoo score"):
        mean_results(card, [one, two])


def test_a_row_that_another_version_wrote_is_an_error_that_names_what_it_lacks(card: Card):
    one, two = run(card, 16, 0.5), run(card, 17, 0.6)
    old = replace(two, results=({key: value for key, value in two.results[0].items() if key != "unseen"},))
    for first, runs in ((one, [one, old]), (old, [one, two])):
        with pytest.raises(CorruptFile, match="knn/digits lacks unseen; another version wrote it"):
            mean_results(first, runs)
    a = trained(card, "simco-r20-digits", [0.5, 0.6])
    for broken in ({"15": {"value": "0.5"}}, {"15": 0.5}, [0.5]):
        with pytest.raises(CorruptFile, match="not a card"):
            parse_card(replace(a, results=(a.results[-1] | {"trainings": broken},), weights=None).to_json(), where="x")
    with pytest.raises(CorruptFile, match="seeds/knn/digits lacks feature; another version wrote it"):
        compare_recipes(replace(a, results=({k: v for k, v in a.results[-1].items() if k != "feature"},)), a)


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
    assert "| 55.00 ± 7.07 (2 trainings) |" in capsys.readouterr().out
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
    own = [changed | {"weights_sha256": f"{name} {seed}"} for seed in range(len(values))]
    runs = [run(card, seed, value, **more) for (seed, value), more in zip(enumerate(values), own, strict=True)]
    return replace(card, results=(*runs[0].results, *(mean.to_row() for mean in mean_results(runs[0], runs))))


def test_two_recipes_are_compared_over_their_trainings(card: Card):
    a = trained(card, "simco-r20-digits", [0.50, 0.56, 0.59])
    b = trained(card, "simmoco-r20-digits", [0.45, 0.49])
    (found,) = compare_recipes(a, b)
    # By hand: variances over n are 0.0021 / 3 and 0.0008 / 2, so the deviation of the difference is sqrt(0.0011), with
    # 0.0011^2 / (0.0007^2 / 2 + 0.0004^2) = 2.988 degrees of freedom, whose 97.5 % quantile of t is 3.189.
    low, high, p = found.difference
    assert (low, high) == pytest.approx((0.08 - 0.1058, 0.08 + 0.1058), abs=2e-4)
    assert p == pytest.approx(2 * t.sf(0.08 / 0.0011**0.5, 2.988), abs=1e-4)
    cells = [
        "k-NN, top-1 accuracy (%)",
        "digits, 1,438 / 359",
        "55.00 ± 4.58 (3 trainings)",
        "47.00 ± 2.83 (2 trainings)",
    ]
    line = f"| {' | '.join([*cells, '+8.00 [-2.58, +18.58]', '0.095', ''])} |"
    assert line in table([found], a.name, b.name).splitlines()
    with pytest.raises(BadData, match=r"first model has 1, the second 0, none of the same measure; .*zoo seeds"):
        compare_recipes(a, run(card, 1, 0.5))
    with pytest.raises(BadData, match=r"first model has 1, the second 1, none of the same measure"):
        compare_recipes(a, trained(card, "simmoco-r20-digits", [0.4, 0.5], n_test=100))
    with pytest.raises(BadData, match="the two models have training runs in common"):
        compare_recipes(a, a)


def test_a_number_that_is_no_share_is_compared_in_its_own_unit(card: Card):
    rank = {"metric": "RankMe, of 64", "unit": ""}
    a = trained(card, "simco-r20-digits", [30.0, 32.0], **rank)
    (found,) = compare_recipes(a, trained(card, "simmoco-r20-digits", [20.0, 20.0], **rank))
    assert "| 31.00 ± 1.41 (2 trainings) | 20.00 ± 0.00 (2 trainings) | +11.00 [" in table([found], "a", "b")


def test_of_many_comparisons_only_those_that_are_told_after_holms_correction_name_a_better_recipe(card: Card):
    """One of five metrics differs with p = 0.017: told alone, not told among five."""
    a, b = ("simco-r20-digits", [0.50, 0.56, 0.59]), ("simmoco-r20-digits", [0.40, 0.43])
    (alone,) = compare_recipes(trained(card, *a), trained(card, *b))
    assert 0.01 < alone.difference.p < 0.05
    assert table([alone], "A", "B").splitlines()[2].endswith("| A |")
    (same,) = compare_recipes(trained(card, *a), trained(card, b[0], [0.50, 0.60]))
    five = table([alone, same, same, same, same], "A", "B").splitlines()[2:7]
    assert [line.split("|")[-2].strip() for line in five] == [""] * 5
    assert float(five[0].split("|")[-3]) == pytest.approx(5 * alone.difference.p, rel=0.05)


def test_holms_correction_is_the_one_of_its_paper():
    """Holm 1979: the smallest of 4 times 4, the next times 3, ..., never falling, at most 1."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == pytest.approx([1, 1])
    assert holm([0.2]) == [0.2]


def test_the_interval_over_trainings_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [welch(rng.normal(0.5, 0.01, 3).tolist(), rng.normal(0.4, 0.03, 5).tolist()) for _ in range(1000)]
    assert 0.93 < np.mean([low < 0.1 < high for low, high, _ in intervals]) < 0.97
    a, b = [0.50, 0.56, 0.59], [0.45, 0.49]
    of_a, of_b = np.var(a, ddof=1) / 3, np.var(b, ddof=1) / 2  # Welch's formulas, written out
    freedom = (of_a + of_b) ** 2 / (of_a**2 / 2 + of_b**2 / 1)
    half = t.ppf(0.975, freedom) * (of_a + of_b) ** 0.5
    difference = np.mean(a) - np.mean(b)
    p = ttest_ind(a, b, equal_var=False).pvalue
    assert welch(a, b) == pytest.approx((difference - half, difference + half, p))
    assert welch([0.5, 0.5], [0.25, 0.25]) == (-np.inf, np.inf, 1)
    # One side alike: the other's deviation sqrt(0.02 / 2) with 1 degree of freedom, whose quantile is 12.706.
    assert welch([0.5, 0.5], [0.4, 0.6])[:2] == pytest.approx((-1.2706, 1.2706), abs=1e-4)
    with pytest.raises(BadData, match="1 and 2 training runs"):
        welch([0.5], [0.4, 0.5])
