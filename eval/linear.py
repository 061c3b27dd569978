"""The linear probe on frozen features, three ways; none of them looks at the test labels before the end.

`linear`: multinomial logistic regression on standardised features by L-BFGS, the strength of its L2 penalty chosen on
a held-out tenth of train (Kornblith et al. 2019, section 3.1; SimCLR, appendix B.8, with nine strengths instead of 45).
`ridge`: least squares in closed form, a fast stand-in that is 0.3 to 1.7 points lower.
`eval.linear_sgd` has the other two: many learning rates at once, and MoCo's recipe.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from eval.features import Features
from eval.intervals import wilson
from eval.metrics import accuracy
from eval.task import Outcome, Task
from zoo.errors import BadData

# The objective is mean cross-entropy + penalty / 2 * ||W||^2. From strong to weak: each fit starts from the last one.
PENALTIES = tuple(10.0**exponent for exponent in range(2, -7, -1))
RIDGE_PENALTIES = tuple(float(value) for value in np.logspace(5, -6, 45))
HELD_OUT = 0.1  # share of train that selects
MOST_STEPS = 1000  # of L-BFGS


class Fit(NamedTuple):
    """A chosen classifier's answers."""

    predicted: np.ndarray  # (n_test,)
    penalty: float
    grid_edge: bool  # the best penalty is the strongest or the weakest of those tried
    steps: int  # of the last fit
    converged: bool  # the last fit
    held_out: dict[float, float]  # accuracy on the held-out part by penalty


def linear(task: Task) -> list[Outcome]:
    """Logistic regression, the penalty chosen on a tenth of train, refitted on all of it."""
    fit = logistic_probe(task.bank, task.queries.rows)
    protocol = "linear probe, L-BFGS logistic regression, standardised, penalty chosen on 10 % of train"
    return [_outcome("linear", protocol, fit, task)]


def ridge(task: Task) -> list[Outcome]:
    """Least squares on targets of -1 and 1, the penalty chosen on a tenth of train."""
    fit = ridge_probe(task.bank, task.queries.rows)
    return [
        _outcome("ridge", "linear probe, ridge regression, standardised, penalty chosen on 10 % of train", fit, task)
    ]


def _outcome(name: str, protocol: str, fit: Fit, task: Task) -> Outcome:
    value = accuracy(fit.predicted, task.queries.labels)
    facts = {
        "penalty": fit.penalty,
        "grid_edge": fit.grid_edge,
        "steps": fit.steps,
        "converged": fit.converged,
        "held_out": {f"{penalty:.3g}": score for penalty, score in fit.held_out.items()},
    }
    ci95 = wilson(value, len(task.queries))
    return Outcome(name, protocol, "top-1 accuracy", value, ci95, fit.predicted, facts)


def logistic_probe(
    train: Features, queries: np.ndarray, *, penalties: Sequence[float] = PENALTIES, seed: int = 0
) -> Fit:
    """Fit on 90 % of `train` for every penalty, choose on the rest, refit on all, predict `queries` (m, D).

    penalties: from strong to weak. Equal scores go to the stronger one. Raises BadData if train has one class only.
    """
    refuse_one_class(train.labels)
    chosen_on = held_out(train.labels, seed=seed)
    model = LogisticRegression(solver="lbfgs", max_iter=MOST_STEPS, tol=1e-4, warm_start=True)
    x, aside = standardised(train.rows[~chosen_on], train.rows[chosen_on])
    scores, starts = {}, {}
    for penalty in penalties:
        _fit(model, x, train.labels[~chosen_on], penalty)
        scores[penalty] = accuracy(model.predict(aside), train.labels[chosen_on])
        starts[penalty] = (model.coef_.copy(), model.intercept_.copy())
    del x, aside
    best = max(scores, key=scores.__getitem__)  # the first, strongest, of equals
    model.coef_, model.intercept_ = starts[best]
    x, asked = standardised(train.rows, queries)
    converged = _fit(model, x, train.labels, best)
    return Fit(model.predict(asked), best, best in _ends(penalties), int(model.n_iter_.max()), converged, scores)


def _fit(model: LogisticRegression, x: np.ndarray, labels: np.ndarray, penalty: float) -> bool:
    """Fit, starting from the model's coefficients if it has some. Returns whether it converged."""
    model.C = 1 / (penalty * len(x))  # scikit-learn's loss is a sum over samples
    # Two BLAS threads make this solver slower than one (0.6 to 0.8 of the speed, measured).
    with warnings.catch_warnings(record=True) as seen, threadpool_limits(1, "blas"):
        warnings.simplefilter("always")
        model.fit(x, labels)
    return not any(issubclass(warning.category, ConvergenceWarning) for warning in seen)


def ridge_probe(
    train: Features, queries: np.ndarray, *, penalties: Sequence[float] = RIDGE_PENALTIES, seed: int = 0
) -> Fit:
    """As `logistic_probe`, for mean squared error + penalty * ||W||^2: one eigendecomposition serves all penalties."""
    refuse_one_class(train.labels)
    chosen_on = held_out(train.labels, seed=seed)
    x, aside = standardised(train.rows[~chosen_on], train.rows[chosen_on])
    scores = {}
    for penalty, weights in zip(penalties, _ridge_weights(x, train.labels[~chosen_on], penalties), strict=True):
        scores[penalty] = accuracy(_ridge_answers(aside, weights), train.labels[chosen_on])
    best = max(scores, key=scores.__getitem__)
    x, asked = standardised(train.rows, queries)
    (weights,) = _ridge_weights(x, train.labels, [best])
    return Fit(_ridge_answers(asked, weights), best, best in _ends(penalties), 1, True, scores)


def _ridge_weights(x: np.ndarray, labels: np.ndarray, penalties: Sequence[float]) -> list[np.ndarray]:
    """For each penalty the weights (D + 1, C), the last row of which is the bias."""
    targets = 2 * np.eye(labels.max() + 1, dtype=np.float32)[labels] - 1  # (n, C)
    bias = targets.mean(0)  # x has mean 0
    values, vectors = np.linalg.eigh((x.T @ x).astype(np.float64) / len(x))
    projected = vectors.T @ ((x.T @ (targets - bias)).astype(np.float64) / len(x))  # (D, C)
    inverses = [1 / (np.maximum(values, 0) + penalty) for penalty in penalties]
    return [np.vstack([vectors @ (inverse[:, None] * projected), bias]) for inverse in inverses]


def _ridge_answers(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (x @ weights[:-1].astype(np.float32) + weights[-1].astype(np.float32)).argmax(1)


def _ends(penalties: Sequence[float]) -> tuple[float, float]:
    return penalties[0], penalties[-1]


def held_out(labels: np.ndarray, *, share: float = HELD_OUT, seed: int = 0) -> np.ndarray:
    """(n,) bool: a random `share` of every class, but never the only image of one. Raises BadData below 2 images."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # shuffled within each class
    every = round(1 / share)
    picks = order[every - 1 :: every] if len(labels) >= every else order[-1:]
    counts = np.bincount(labels)
    chosen = np.zeros(len(labels), bool)
    chosen[picks[counts[labels[picks]] > 1]] = True
    if not chosen.any():
        raise BadData(
            f"{len(labels)} images with {np.count_nonzero(counts)} classes: none can be held out to select on"
        )
    return chosen


def standardised(fit: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Arrays (n, D) float32, shifted and scaled by mean and deviation of the first; constant columns become 0."""
    mean = fit.mean(0, dtype=np.float64).astype(np.float32)
    std = fit.std(0, dtype=np.float64).astype(np.float32)
    scale = np.where(std > 1e-6 * np.abs(mean) + 1e-30, std, np.inf).astype(np.float32)
    return tuple((rows - mean) / scale for rows in (fit, *others))


def refuse_one_class(labels: np.ndarray) -> None:
    """Raises BadData if fewer than two classes are left to tell apart."""
    if len(np.unique(labels)) < 2:
        raise BadData(f"all {len(labels)} train images are of one class; a probe needs two. Is the subset too small?")
