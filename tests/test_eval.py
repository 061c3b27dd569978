"""k-NN and features: against a plain loop, scikit-learn, and answers known beforehand."""

import numpy as np
import pytest
import reference
import torch
from sklearn.neighbors import KNeighborsClassifier

from eval.features import BATCH, Features, RawPixels, batch_of, extract
from eval.intervals import wilson
from eval.knn import KS, knn, knn_predict
from eval.metrics import accuracy
from eval.score import score
from eval.tables import markdown
from eval.task import Task
from zoo.errors import BadData
from zoo.hub.store import read_card
from zoo.images.image_set import from_pixels
from zoo.images.opening import open_images

T = 0.07


@pytest.fixture(scope="module")
def digits() -> tuple[Features, Features]:
    """Raw pixels of digits: bank and queries."""
    parts = [extract(RawPixels(8), open_images("digits", split)) for split in ("train", "test")]
    return parts[0], parts[1]


def test_every_k_equals_a_loop_over_sorted_neighbours(digits):
    bank, queries = digits
    few = queries.rows[:40]
    predicted = knn_predict(bank.rows, bank.labels, few, ks=(1, 5, 20, 200), temperatures=(0.07, 0.5))
    for (k, temperature), classes in predicted.items():
        by_hand = [
            reference.knn_votes(bank.rows.astype(float), bank.labels, q.astype(float), k, temperature) for q in few
        ]
        assert classes.tolist() == by_hand


def test_scikit_learn_agrees_on_all_digits(digits):
    bank, queries = digits
    predicted = knn_predict(bank.rows, bank.labels, queries.rows)
    for k in (1, 20, 200):
        oracle = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / T))
        agreement = accuracy(predicted[k, T], oracle.fit(bank.rows, bank.labels).predict(queries.rows))
        assert agreement >= 0.997  # 1 of 359 may tie


def test_raw_pixels_of_half_the_digits_score_the_known_accuracies():
    """First half against second half, unshuffled: .9577, .9533, .9499, .9233 (measured elsewhere with scikit-learn)."""
    parts = [open_images("digits", split) for split in ("train", "test")]
    rows = np.concatenate([extract(RawPixels(8), part).rows for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    half = len(rows) // 2
    predicted = knn_predict(rows[:half], labels[:half], rows[half:], ks=(1, 5, 20, 200))
    scores = [accuracy(predicted[k, T], labels[half:]) for k in (1, 5, 20, 200)]
    assert scores == pytest.approx([0.9577, 0.9533, 0.9499, 0.9233], abs=2e-3)


def test_scale_order_and_chunks_change_no_prediction(digits):
    bank, queries = digits
    predicted = knn_predict(bank.rows, bank.labels, queries.rows)
    order = np.random.default_rng(0).permutation(len(bank))
    again = knn_predict(3 * bank.rows[order], bank.labels[order], queries.rows / 7)
    one_by_one = [knn_predict(bank.rows, bank.labels, queries.rows[i : i + 1]) for i in range(20)]
    for key, classes in predicted.items():
        assert accuracy(classes, again[key]) >= 0.997  # exact ties may fall the other way
        assert classes[:20].tolist() == [int(single[key][0]) for single in one_by_one]


def test_planted_labels_are_found_and_shuffled_labels_give_chance():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 4000)
    planted = np.eye(10, dtype=np.float32)[labels] + 0.01 * rng.normal(size=(4000, 10)).astype(np.float32)
    found = knn_predict(planted[:3000], labels[:3000], planted[3000:], ks=(20,))[20, T]
    assert accuracy(found, labels[3000:]) == 1.0
    shuffled = rng.permutation(labels)
    chance = accuracy(knn_predict(planted[:3000], shuffled[:3000], planted[3000:], ks=(20,))[20, T], shuffled[3000:])
    low, high = wilson(0.1, 1000)
    assert low - 0.02 <= chance <= high + 0.02


def test_every_temperature_of_one_pass_is_that_of_a_pass_of_its_own(digits):
    bank, queries = digits
    task = Task(RawPixels(8), *(open_images("digits", s) for s in ("train", "test")), bank, queries, 10)
    (outcome,) = knn(task)
    assert list(outcome.extras["by_temperature"]) == ["0.02", "0.05", "0.07", "0.1", "0.2"]
    for temperature, by_k in outcome.extras["by_temperature"].items():
        alone = knn_predict(bank.rows, bank.labels, queries.rows, temperatures=(float(temperature),))
        assert by_k == {str(k): accuracy(classes, queries.labels) for (k, _), classes in alone.items()}
    assert outcome.extras["by_k"] == outcome.extras["by_temperature"]["0.07"]
    assert (outcome.value, "k = 20, T = 0.07" in outcome.protocol) == (outcome.extras["by_k"]["20"], True)


def test_small_temperatures_do_not_overflow_and_equal_the_nearest_neighbour(digits):
    bank, queries = digits
    predicted = knn_predict(bank.rows, bank.labels, queries.rows, ks=(1, 50), temperatures=(1e-6,))
    assert accuracy(predicted[50, 1e-6], predicted[1, 1e-6]) == 1.0


def test_a_k_above_the_bank_is_left_out_and_none_at_all_is_an_error():
    rows = np.eye(4, dtype=np.float32)
    assert set(knn_predict(rows, np.arange(4), rows, ks=KS)) == {(1, T)}
    with pytest.raises(BadData, match="smaller than every k"):
        knn_predict(rows, np.arange(4), rows, ks=(5,))


@pytest.mark.parametrize("which", ["bank", "query"])
def test_features_that_are_not_finite_are_refused(which):
    rows = np.eye(4, dtype=np.float32)
    broken = rows.copy()
    broken[2, 2] = np.nan
    with pytest.raises(BadData, match=f"{which} features are not finite"):
        knn_predict(broken if which == "bank" else rows, np.arange(4), broken if which == "query" else rows, ks=(1,))


def test_unlabelled_images_stay_out_of_features():
    pixels = np.arange(5 * 8 * 8 * 3, dtype=np.uint8).reshape(5, 8, 8, 3)
    split = from_pixels("digits", "train", pixels, np.array([1, -1, 0, -1, 2]), tuple("0123456789"), "")
    features = extract(RawPixels(8), split, batch_size=2)
    assert features.labels.tolist() == [1, 0, 2]
    assert np.array_equal(features.rows, pixels[[0, 2, 4]].reshape(3, -1).astype(np.float32) / 255)
    with pytest.raises(BadData, match="no labels"):
        extract(RawPixels(8), from_pixels("digits", "test", pixels, np.full(5, -1), (), ""))


def test_features_do_not_depend_on_the_batch_size(tiny_run):
    from zoo.hub.load import load_encoder

    encoder = load_encoder(tiny_run)
    split = open_images("digits", "test").sample(50)
    one, many = extract(encoder, split, batch_size=1), extract(encoder, split, batch_size=64)
    assert np.abs(one.rows - many.rows).max() <= 1e-5 * np.abs(many.rows).max()


def test_a_batch_of_large_images_has_no_more_pixels_than_one_of_96_px():
    assert [batch_of(size) for size in (8, 32, 96)] == [BATCH] * 3
    assert batch_of(224) == 47  # 47 * 224^2 <= 256 * 96^2 < 48 * 224^2
    assert batch_of(10_000) == 1


def test_wilson_intervals_are_the_known_ones():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_score_measures_the_model_and_two_baselines_and_writes_them_into_the_card(tiny_run):
    rows = score(tiny_run, max_train=600, max_test=100)
    assert [row.encoder.name for row in rows] == ["simco-r20-digits", "random r20", "pixels"]
    assert [(row.data.n_train, row.data.n_test) for row in rows] == [(600, 100)] * 3
    bank, queries = (
        extract(RawPixels(8), open_images("digits", s).sample(n)) for s, n in (("train", 600), ("test", 100))
    )
    expected = accuracy(knn_predict(bank.rows, bank.labels, queries.rows)[20, T], queries.labels)
    assert rows[2].value == expected
    card = read_card(tiny_run)
    assert list(card.results) == [row.to_row() for row in rows]
    assert rows[0].encoder.weights_sha256 == card.weights.sha256
    score(tiny_run, max_train=600, max_test=100)
    assert len(read_card(tiny_run).results) == 3  # replaced, not appended
    assert f"{100 * expected:.2f}" in markdown(rows)


@pytest.mark.slow
@pytest.mark.realdata
def test_nearest_raw_pixels_on_cifar100_score_the_published_17_55_percent(cifar100):
    """1-NN by L2 over 50,000 references; cosine k-NN cannot say it, so the same search runs on distances here."""
    train, test = open_images("cifar100", "train", data=cifar100), open_images("cifar100", "test", data=cifar100)
    bank = torch.from_numpy(extract(RawPixels(32), train).rows)
    norms, hits = (bank * bank).sum(1), 0
    for start in range(0, len(test), 500):
        queries = torch.from_numpy(test.pixels()[start : start + 500].reshape(-1, 3072).astype(np.float32) / 255)
        nearest = (norms - 2 * queries @ bank.T).argmin(1).numpy()
        hits += int((train.labels[nearest] == test.labels[start : start + 500]).sum())
    assert hits / len(test) == pytest.approx(0.1755, abs=1e-4)
