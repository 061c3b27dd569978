"""Top-5, calibration, Euclidean k-NN and the tables of classes, each against another computation of the same number."""

import csv

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier

from eval.class_tables import class_lines
from eval.features import Features, RawPixels, extract
from eval.knn import knn, knn_euclidean
from eval.linear import linear, logistic_probe
from eval.metrics import calibration_error, confusion, top_k
from eval.results import Results
from eval.score import score
from eval.task import Task
from zoo.images.opening import open_images


@pytest.fixture(scope="module")
def task() -> Task:
    train, test = (open_images("digits", split).sample(n) for split, n in (("train", 300), ("test", 120)))
    encoder = RawPixels(8)
    return Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 10)


def oracle(**settings) -> KNeighborsClassifier:
    return KNeighborsClassifier(20, algorithm="brute", **settings)


def test_top_5_of_the_weighted_votes_is_scikit_learns(task):
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 1.5, f.rows.shape).astype(np.float32) for f in (task.bank, task.queries)]
    blurred = [Features(f.rows + n, f.labels) for f, n in zip((task.bank, task.queries), noise, strict=True)]
    task = Task(task.encoder, task.train, task.test, *blurred, 10)
    (outcome,) = knn(task)
    weights = {"metric": "cosine", "weights": lambda distance: np.exp((1 - distance) / 0.07)}
    votes = oracle(**weights).fit(task.bank.rows, task.bank.labels).predict_proba(task.queries.rows)
    # scikit-learn fills up with classes that nobody voted for: those are taken away by hand.
    voted = votes[np.arange(120), task.queries.labels] > 0
    right = [task.queries.labels[i] in np.argsort(-votes[i])[:5] for i in range(120)]
    assert outcome.columns["top-5"] == np.mean(right & voted)
    assert outcome.value < outcome.columns["top-5"] < 1
    assert voted.mean() < 1


def test_euclidean_neighbours_vote_as_scikit_learns_do(task):
    (outcome,) = knn_euclidean(task)
    model = oracle().fit(task.bank.rows, task.bank.labels)
    assert outcome.value == model.score(task.queries.rows, task.queries.labels)
    assert outcome.predicted.tolist() == model.predict(task.queries.rows).tolist()
    first = KNeighborsClassifier(1).fit(task.bank.rows, task.bank.labels)
    assert outcome.columns["k = 1"] == first.score(task.queries.rows, task.queries.labels)
    huge = [Features(f.rows * np.float32(2.0**100), f.labels) for f in (task.bank, task.queries)]
    (scaled,) = knn_euclidean(Task(task.encoder, task.train, task.test, *huge, 10))
    assert scaled.value == outcome.value


def test_top_5_and_calibration_of_the_linear_probe_are_those_of_scikit_learns_regression(task):
    (outcome,) = linear(task)
    mean, std = task.bank.rows.mean(0), task.bank.rows.std(0)
    scaled = [
        np.divide(f.rows - mean, std, where=std > 0, out=np.zeros_like(f.rows)) for f in (task.bank, task.queries)
    ]
    c = 1 / (outcome.extras["penalty"] * len(task.bank))
    model = LogisticRegression(C=c, max_iter=3000, tol=1e-8).fit(scaled[0], task.bank.labels)
    probabilities = model.predict_proba(scaled[1])
    labels = task.queries.labels
    assert outcome.columns["top-5"] == pytest.approx(top_k_accuracy_score(labels, probabilities, k=5), abs=1 / 120)
    assert outcome.columns["ECE"] == pytest.approx(by_hand(probabilities, labels), abs=0.02)


def by_hand(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Guo et al. 2017, equation 3, bin by bin."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.minimum((confidence * 15).astype(int), 14)
    parts = [(bins == b, (bins == b).sum()) for b in range(15)]
    return sum(n / len(labels) * abs(right[m].mean() - confidence[m].mean()) for m, n in parts if n)


def test_the_calibration_error_is_that_of_its_equation_and_0_of_honest_confidence():
    rng = np.random.default_rng(0)
    raw = rng.random((500, 4)) ** 3
    probabilities = raw / raw.sum(1, keepdims=True)
    labels = rng.integers(0, 4, 500)
    assert calibration_error(probabilities, labels) == pytest.approx(by_hand(probabilities, labels), abs=1e-6)
    sure = np.eye(4)[labels]
    assert calibration_error(sure, labels) == 0
    assert calibration_error(sure, (labels + 1) % 4) == pytest.approx(1)


def test_top_k_by_hand():
    scores = np.array([[3, 2, 1, 0], [0, 0, 5, 4], [1, 1, 1, 1]])
    assert top_k(scores, np.array([1, 3, 0]), k=2) == 1
    assert top_k(scores, np.array([2, 0, 3]), k=2) == pytest.approx(1 / 3)  # no score at all is no answer
    assert top_k(scores, np.array([9, 2, 2]), k=4) == pytest.approx(2 / 3)  # of a class that train lacks


def test_a_class_that_train_lacks_has_no_probability(task):
    known = task.bank.labels != 3
    part = Features(task.bank.rows[known], task.bank.labels[known])
    (outcome,) = linear(Task(task.encoder, task.train, task.test, part, task.queries, 10))
    assert outcome.columns["top-5"] <= 1 - (task.queries.labels == 3).mean()
    assert logistic_probe(part, task.queries.rows).logits[:, 3].max() == -np.inf


def test_the_tables_of_classes_are_the_predictions_counted_worst_class_first(tmp_path):
    (result,) = score("pixels:", data={"digits": None}, max_train=200, max_test=90, out=tmp_path)
    labels = np.load(next((tmp_path / "predictions").iterdir()))["labels"]
    predicted = Results(tmp_path).predictions(result)
    (file,) = (tmp_path / "classes").glob("*.csv")
    lines = list(csv.DictReader(file.read_text().splitlines()))
    shares = [float(line["accuracy"]) for line in lines]
    assert shares == sorted(shares)
    for line in lines:
        mine = predicted[labels == int(line["class"])]
        assert (int(line["images"]), int(line["found"])) == (len(mine), (mine == int(line["class"])).sum())
        if line["times"]:
            assert (mine == int(line["most often taken for"])).sum() == int(line["times"])
    (text,) = (tmp_path / "classes").glob("*.txt")
    assert text.read_text().splitlines()[0].split("  ")[0].strip() == "class"
    (matrix,) = (tmp_path / "confusion").glob("*.csv")
    head, *rows = csv.reader(matrix.read_text().splitlines())
    assert head == ["true class", *"0123456789"]
    assert sum(int(row[1 + int(row[0])]) for row in rows) == (predicted == labels).sum() == round(90 * result.value)


def test_lines_of_classes_by_hand():
    matrix = confusion(np.array([0, 1, 1, 2, 0]), np.array([0, 0, 0, 2, 2]), classes=3)
    assert class_lines(matrix, ["ant", "bee", "cat"]) == [
        ["ant", "3", "1", "0.3333", "bee", "2"],
        ["cat", "2", "1", "0.5000", "ant", "1"],
    ]
