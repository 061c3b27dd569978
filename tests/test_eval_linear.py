"""The linear probes: against the optimum's own equation, known accuracies, and labels that hold nothing to learn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import OptimizeResult
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from eval.contestants import fingerprint, open_contestant
from eval.features import Features, RawPixels, extract
from eval.fewshot import draw_share, draw_shots, fewshot, labels
from eval.intervals import wilson
from eval.linear import (
    PENALTIES,
    held_out,
    linear,
    logistic_probe,
    regression_path,
    ridge,
    ridge_probe,
    standardised,
)
from eval.linear_sgd import (
    RATES,
    Heads,
    _standardisation,
    cosine,
    feature_batches,
    linear_moco,
    linear_sgd,
    moco_steps,
    train_heads,
)
from eval.logistic import arrived
from eval.metrics import accuracy
from eval.task import Task
from zoo.errors import BadData
from zoo.images.image_set import from_pixels
from zoo.images.opening import open_images

CIFAR = {"train": 1500, "test": 1000}  # images


@pytest.fixture(scope="module")
def task() -> Task:
    """Raw pixels of digits."""
    train, test = open_images("digits", "train"), open_images("digits", "test")
    encoder = RawPixels(8)
    return Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 10)


def planted(n: int = 600, classes: int = 4, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    classes_of = rng.integers(0, classes, n)
    rows = np.eye(classes)[classes_of] + 0.05 * rng.normal(size=(n, classes))
    return Features(rows.astype(np.float32), classes_of)


def overlapping(n: int, *, seed: int) -> Features:
    """Four Gaussian heaps in 20 dimensions, of unequal scales, that no classifier can quite tell apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    rows = 2.0 * np.eye(20)[labels] + rng.normal(size=(n, 20))
    return Features((rows * np.geomspace(0.1, 10, 20)).astype(np.float32), labels)


def fitted(rows: np.ndarray, labels: np.ndarray, penalty: float):
    x = torch.from_numpy(rows)
    return regression_path(x, torch.from_numpy(labels), [penalty], classes=labels.max() + 1, smallest=1e-5)[0]


def test_a_fit_is_the_minimum_of_mean_cross_entropy_plus_half_the_penalty_times_the_squared_weights(task):
    x, y, penalty = standardised(task.bank.rows)[0][:, ::3], task.bank.labels, 1e-2
    line = fitted(x, y, penalty)
    assert line.converged
    weights, bias = line.weight.numpy().astype(float), line.bias.numpy().astype(float)
    logits = x.astype(float) @ weights.T + bias
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    error = (share - np.eye(10)[y]) / len(x)
    assert np.abs(error.T @ x + penalty * weights).max() < 1e-4
    assert np.abs(error.sum(0)).max() < 1e-4


def test_the_last_tenth_of_digits_scores_the_known_accuracies():
    """scikit-learn's digits exercise: logistic regression (C = 1, not standardised) 0.933333."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    rows, cut = (bunch.data / 16).astype(np.float32), int(0.9 * len(bunch.target))
    line = fitted(rows[:cut], bunch.target[:cut], penalty=1 / cut)
    found = line.logits(torch.from_numpy(rows[cut:])).argmax(1)
    assert accuracy(found, bunch.target[cut:]) == pytest.approx(0.933333, abs=1 / 180)


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_scikit_learns_float64_fit_agrees_on_999_of_1000_images_that_are_hard_to_tell_apart(penalty):
    train, test = overlapping(2000, seed=0), overlapping(5000, seed=1)
    x, asked = standardised(train.rows, test.rows)
    exact = LogisticRegression(C=1 / (penalty * len(x)), max_iter=5000, tol=1e-8).fit(x.astype(float), train.labels)
    found = fitted(x, train.labels, penalty).logits(torch.from_numpy(asked)).argmax(1)
    assert accuracy(found, exact.predict(asked.astype(float))) >= 0.999


def test_fewer_images_than_columns_and_classes_that_train_lacks_change_nothing():
    """60 images in 200 columns, classes 1, 4 and 9: scikit-learn's answers at the chosen penalty."""
    rng = np.random.default_rng(0)
    drawn = rng.choice([1, 4, 9], 560)
    heaps = np.eye(10)[drawn] @ rng.normal(size=(10, 200))
    (rows, queries), labels = np.split((heaps + 2 * rng.normal(size=(560, 200))).astype(np.float32), [60]), drawn[:60]
    fit = logistic_probe(Features(rows, labels), queries)
    x, asked = standardised(rows, queries)
    exact = LogisticRegression(C=1 / (fit.penalty * len(x)), max_iter=5000, tol=1e-8).fit(x.astype(float), labels)
    assert accuracy(fit.predicted, exact.predict(asked.astype(float))) >= 0.998
    assert set(fit.predicted) == {1, 4, 9}


def test_the_path_and_scikit_learn_at_the_chosen_penalty_agree_on_every_digit(task):
    fit = logistic_probe(task.bank, task.queries.rows)
    x, queries = standardised(task.bank.rows, task.queries.rows)
    cold = LogisticRegression(C=1 / (fit.penalty * len(x)), max_iter=2000, tol=1e-6).fit(
        x.astype(float), task.bank.labels
    )
    assert accuracy(fit.predicted, cold.predict(queries.astype(float))) >= 0.999  # all 359
    assert fit.converged
    assert list(fit.held_out) == list(PENALTIES)
    assert fit.held_out[fit.penalty] == max(fit.held_out.values())


def exact_answers(train: Features, queries: np.ndarray, penalties: Sequence[float]) -> Iterator[np.ndarray]:
    """scikit-learn's float64 fit of standardised features at each penalty, from strong to weak."""
    x, asked = (rows.astype(float) for rows in standardised(train.rows, queries))
    model = LogisticRegression(max_iter=20000, tol=1e-7, warm_start=True)
    for penalty in penalties:
        yield model.set_params(C=1 / (penalty * len(x))).fit(x, train.labels).predict(asked)


def test_every_penalty_scores_what_scikit_learn_does_down_to_the_weakest(task):
    """On all but one of 359 digits at most: float32 may break a near tie the other way."""
    for penalty, exact in zip(PENALTIES, exact_answers(task.bank, task.queries.rows, PENALTIES), strict=True):
        fit = logistic_probe(task.bank, task.queries.rows, penalties=[penalty])
        assert np.count_nonzero(fit.predicted != exact) <= 1, penalty


def test_the_penalty_chosen_is_the_one_that_scikit_learns_fits_would_choose(task):
    fit, chosen_on = logistic_probe(task.bank, task.queries.rows), held_out(task.bank.labels)
    known = Features(task.bank.rows[~chosen_on], task.bank.labels[~chosen_on])
    truth = task.bank.labels[chosen_on]
    answers = exact_answers(known, task.bank.rows[chosen_on], PENALTIES)
    scores = {p: accuracy(found, truth) for p, found in zip(PENALTIES, answers, strict=True)}
    assert fit.held_out == pytest.approx(scores, abs=1e-9)
    assert fit.penalty == max(scores, key=scores.__getitem__)


@pytest.mark.realdata
def test_scikit_learn_agrees_on_999_of_1000_images_of_cifar100(cifar100):
    """1,500 and 1,000 images through an untrained ResNet-20."""
    encoder = open_contestant("random:r20", "cifar100").encoder
    train, test = (open_images("cifar100", name, data=cifar100).sample(n) for name, n in CIFAR.items())
    bank, queries = extract(encoder, train), extract(encoder, test)
    fit = logistic_probe(bank, queries.rows)
    (exact,) = exact_answers(bank, queries.rows, [fit.penalty])
    assert accuracy(fit.predicted, exact) >= 0.999
    assert abs(accuracy(fit.predicted, queries.labels) - accuracy(exact, queries.labels)) <= 0.002


def test_ridge_answers_as_scikit_learns_ridge_classifier(task):
    fit = ridge_probe(task.bank, task.queries.rows)
    x, queries = standardised(task.bank.rows, task.queries.rows)
    oracle = RidgeClassifier(alpha=fit.penalty * len(x)).fit(x.astype(float), task.bank.labels)
    assert accuracy(fit.predicted, oracle.predict(queries.astype(float))) >= 0.997


def test_every_probe_finds_planted_labels():
    train, test = planted(), planted(seed=1)
    for probe in (logistic_probe, ridge_probe):
        assert accuracy(probe(train, test.rows).predicted, test.labels) == 1.0


def test_labels_that_hold_nothing_score_chance_whatever_is_selected():
    rng = np.random.default_rng(3)
    train = Features(rng.normal(size=(800, 30)).astype(np.float32), rng.integers(0, 4, 800))
    queries, truth = rng.normal(size=(2000, 30)).astype(np.float32), rng.integers(0, 4, 2000)
    low, high = wilson(0.25, 2000, z=3)
    for probe in (logistic_probe, ridge_probe):
        assert low <= accuracy(probe(train, queries).predicted, truth) <= high


def test_a_best_penalty_at_the_end_of_the_path_is_flagged():
    train = planted()
    assert logistic_probe(train, train.rows[:5], penalties=(1e2, 1e1)).grid_edge
    rng = np.random.default_rng(0)
    noisy = Features((train.rows + rng.normal(size=train.rows.shape)).astype(np.float32), train.labels)
    inner = logistic_probe(noisy, train.rows[:5], penalties=(1e4, 1e-2, 1e-9))
    assert inner.grid_edge == (inner.penalty != 1e-2)


def test_the_probe_does_not_depend_on_scale_or_order(task):
    fit = logistic_probe(task.bank, task.queries.rows)
    rescaled = logistic_probe(Features(7 * task.bank.rows + 3, task.bank.labels), 7 * task.queries.rows + 3)
    assert accuracy(fit.predicted, rescaled.predicted) >= 0.99
    half = logistic_probe(task.bank, task.queries.rows[::-1][:100])
    assert half.predicted.tolist() == fit.predicted[::-1][:100].tolist()


def test_a_tenth_of_every_class_is_held_out_and_no_class_loses_its_only_image():
    classes = np.repeat([0, 1, 2], [400, 95, 1])
    chosen = held_out(classes)
    assert [int((chosen & (classes == c)).sum()) for c in range(3)] in ([40, 9, 0], [40, 10, 0])
    assert held_out(np.array([0, 0, 1, 1])).sum() == 1
    with pytest.raises(BadData, match="none can be held out"):
        held_out(np.arange(5))


def test_one_class_is_refused():
    one = Features(np.eye(30, dtype=np.float32), np.zeros(30, np.int64))
    for probe in (logistic_probe, ridge_probe):
        with pytest.raises(BadData, match="one class"):
            probe(one, one.rows)


def test_constant_columns_become_zero_and_harm_nothing():
    rows = np.stack([np.arange(5), np.full(5, 1e6)], 1).astype(np.float32)
    (x,) = standardised(rows)
    assert x[:, 1].tolist() == [0] * 5
    assert x[:, 0].std() == pytest.approx(1)
    assert _standardisation(rows, "cpu")(rows).tolist() == x.tolist()


def test_heads_side_by_side_equal_heads_trained_alone_by_torch(task):
    """Three rates at once against three plain torch trainings of the same batches."""
    x, y = torch.from_numpy(standardised(task.bank.rows)[0][:256]), torch.from_numpy(task.bank.labels[:256])
    rates, steps = (0.01, 0.1, 1.0), 30
    heads = train_heads(feature_batches(x, y, steps, batch=64), 192, 10, rates=rates, steps=steps, schedule=cosine)
    start = 0.01 * torch.randn(10, 192, generator=torch.Generator().manual_seed(0))
    for index, rate in enumerate(rates):
        layer = torch.nn.Linear(192, 10)
        with torch.no_grad():
            layer.weight.copy_(start)
            layer.bias.zero_()
        optimiser = torch.optim.SGD(layer.parameters(), rate, momentum=0.9)
        for step, (some, classes) in enumerate(feature_batches(x, y, steps, batch=64)):
            optimiser.param_groups[0]["lr"] = rate * cosine(step / steps)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(layer(some), classes).backward()
            optimiser.step()
        assert torch.allclose(heads.weight[index], layer.weight, atol=2e-4)
        assert torch.allclose(heads.bias[index], layer.bias, atol=2e-4)


def test_a_head_that_diverged_is_right_about_nothing():
    weight = torch.full((1, 3, 2), torch.nan)
    assert Heads(weight, torch.zeros(1, 3)).predict(torch.ones(4, 2)).tolist() == [[-1]] * 4


def test_the_rate_sweep_is_as_good_as_the_regression_and_knows_no_test_label(task):
    train, test = (overlapping(1500, seed=seed) for seed in (0, 1))
    (outcome,) = linear_sgd(replace(task, bank=train, queries=test, classes=4))
    exact = accuracy(logistic_probe(train, test.rows).predicted, test.labels)
    assert 0.6 < exact < 0.95
    assert outcome.value == pytest.approx(exact, abs=0.02)
    assert outcome.extras["rate"] in RATES
    shuffled = Features(test.rows, test.labels[::-1].copy())
    (blind,) = linear_sgd(replace(task, bank=train, queries=shuffled, classes=4))
    assert blind.predicted.tolist() == outcome.predicted.tolist()


def test_the_fast_stand_in_is_a_few_points_below(task):
    (fast,), (exact,) = ridge(task), linear(task)
    assert exact.value - 0.06 <= fast.value <= exact.value + 0.02


def test_mocos_rate_falls_at_60_and_80_percent():
    assert [moco_steps(p) for p in (0, 0.599, 0.6, 0.799, 0.8, 0.99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_mocos_recipe_learns_digits_from_an_untrained_network_and_leaves_it_as_it_was(encoder):
    train, test = open_images("digits", "train").sample(120), open_images("digits", "test").sample(100)
    before = fingerprint(encoder.train())
    task = Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 10)
    (outcome,) = linear_moco(task)
    assert outcome.value > wilson(0.1, 100)[1]
    assert fingerprint(encoder) == before
    assert not outcome.extras["diverged"]


def test_shots_and_shares_are_counted_by_class():
    classes = np.repeat([0, 1, 2], [100, 30, 3])
    assert np.bincount(classes[draw_shots(classes, 10, seed=0)]).tolist() == [10, 10, 3]
    assert np.bincount(classes[draw_share(classes, 0.1, seed=0)]).tolist() == [10, 3, 2]
    assert draw_shots(classes, 10, seed=0).tolist() != draw_shots(classes, 10, seed=1).tolist()


def test_more_labels_score_more_and_the_spread_over_draws_is_told(task):
    outcomes = fewshot(task)
    values = [outcome.value for outcome in outcomes]
    assert values == sorted(values)
    assert values[0] > 0.3
    assert outcomes[0].extras["std"] == pytest.approx(np.std(outcomes[0].extras["by_seed"], ddof=1))
    few, many = labels(task)
    assert few.value < many.value
    assert [few.extras["n_fit"], many.extras["n_fit"]] == [20, 142]
    assert [few.extras["n_asked"], many.extras["n_asked"]] == [14, 144]


def test_labels_below_zero_reach_no_probe():
    digits = open_images("digits", "train").sample(200)
    known = digits.labels.copy()
    known[::2] = -1
    split = from_pixels("digits", "train", digits.pixels(), known, digits.classes, "c")
    features = extract(RawPixels(8), split)
    assert len(features) == 100
    assert logistic_probe(features, features.rows).predicted.min() >= 0


def test_a_fit_that_rounding_stops_close_to_the_minimum_has_converged_and_one_cut_short_has_not():
    def ended(status: int, gradient: float) -> bool:
        end = OptimizeResult(status=status, success=status == 0, jac=np.array([0, -gradient]))
        return arrived(end, smallest=2e-4)

    stopped, line_search_failed = 1, 2  # scipy's
    assert [ended(0, 1.0), ended(line_search_failed, 2.7e-4)] == [True, True]
    assert [ended(line_search_failed, 5e-4), ended(stopped, 2.7e-4)] == [False, False]
