"""The linear probe on frozen features, three ways; none of them looks at the test labels before the end.

`linear`: multinomial logistic regression on standardised features by L-BFGS, the strength of its L2 penalty chosen on
a held-out tenth of train (Kornblith et al. 2019, section 3.1; SimCLR, appendix B.8, with nine strengths instead of 45).
Where an image may be of several classes: one regression for each class against the rest, one strength for all.
`ridge`: least squares in closed form, a fast stand-in that is 0.3 to 1.7 points lower.
`eval.linear_sgd` has the other two: many learning rates at once, and MoCo's recipe.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import softmax

from eval.average_precision import mean_average_precision
from eval.features import Features
from eval.logistic import LinearClassifier, fit_classifier, second_moment
from eval.metrics import accuracy, calibration_error
from eval.notes import selection_notes
from eval.task import Outcome, Task
from zoo.errors import BadData

# The objective is mean cross-entropy + penalty / 2 * ||W||^2. From strong to weak: each fit starts from the last one.
PENALTIES = tuple(10.0**exponent for exponent in range(2, -7, -1))
RIDGE_PENALTIES = tuple(float(value) for value in np.logspace(5, -6, 45))
HELD_OUT = 0.1  # share of train that selects
ROUGH, FINE = 2e-2, 2e-4  # `smallest` of the fits of the path, which are only compared, and of the last one


class Fit(NamedTuple):
    """A chosen classifier's answers."""

    predicted: np.ndarray  # (n_test,) classes; of `one_vs_rest` (n_test, C) scores
    penalty: float
    grid_edge: bool  # the best penalty is the strongest or the weakest of those tried
    steps: int  # of the last fit
    converged: bool  # the last fit
    held_out: dict[float, float]  # accuracy, or mAP, on the held-out part by penalty
    logits: np.ndarray | None = None  # (n_test, C) of each class, -inf for one that train lacks; of `logistic_probe`


def linear(task: Task) -> list[Outcome]:
    """Logistic regression, the penalty chosen on a tenth of train, refitted on all of it."""
    probe, kind = (one_vs_rest, "one-vs-rest ") if task.bank.labels.ndim > 1 else (logistic_probe, "")
    if kind:
        refuse_one_class(task.queries.labels, split="test")
    fit = probe(task.bank, task.queries.rows, device=task.device)
    protocol = f"linear probe, L-BFGS {kind}logistic regression, standardised, penalty chosen on 10 % of train"
    return [_outcome("linear", protocol, fit, task)]


def ridge(task: Task) -> list[Outcome]:
    """Least squares on targets of -1 and 1, the penalty chosen on a tenth of train."""
    fit = ridge_probe(task.bank, task.queries.rows)
    return [
        _outcome("ridge", "linear probe, ridge regression, standardised, penalty chosen on 10 % of train", fit, task)
    ]


def _outcome(name: str, protocol: str, fit: Fit, task: Task) -> Outcome:
    value, interval = task.grade(fit.predicted)
    held_out = {f"{penalty:.3g}": score for penalty, score in fit.held_out.items()}
    extras = {
        "penalty": fit.penalty,
        "grid_edge": fit.grid_edge,
        "steps": fit.steps,
        "converged": fit.converged,
        "held_out": held_out,
    }
    notes = selection_notes(grid_edge=fit.grid_edge, held_out=held_out, converged=fit.converged)
    return Outcome(
        name,
        protocol,
        task.metric,
        value,
        interval,
        fit.predicted,
        columns=_further(fit.logits, task),
        notes=notes,
        extras=extras,
    )


def _further(logits: np.ndarray | None, task: Task) -> dict[str, float]:
    """Top-5 accuracy and calibration error of a probe that gives probabilities."""
    if logits is None:
        return {}
    wide = np.full((len(logits), task.classes), -np.inf)
    wide[:, : logits.shape[1]] = logits
    probabilities = softmax(wide, axis=1)
    return task.top_5(probabilities) | {"ECE": calibration_error(probabilities, task.queries.labels)}


def logistic_probe(
    train: Features,
    queries: np.ndarray,
    *,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Fit:
    """Fit on 90 % of `train` for every penalty, choose on the rest, refit on all, predict `queries` (m, D).

    penalties: from strong to weak. Equal scores go to the stronger one. Raises BadData if train has one class only.
    """
    refuse_one_class(train.labels)
    known, labels = np.unique(train.labels, return_inverse=True)
    choice = Choice(held_out(train.labels, seed=seed), lambda logits, truth: accuracy(logits.argmax(1), truth))
    fit = _selected(Features(train.rows, labels), len(known), queries, choice, penalties, device)
    logits = np.full((len(queries), known[-1] + 1), -np.inf, np.float32)
    logits[:, known] = fit.predicted
    return fit._replace(predicted=known[fit.predicted.argmax(1)], logits=logits)


def one_vs_rest(
    train: Features,
    queries: np.ndarray,
    *,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Fit:
    """As `logistic_probe`, for train labels (n, C) of 1, 0 and -1; what is -1 is neither learnt from nor selects."""
    refuse_one_class(train.labels)
    choice = Choice(held_out(strata(train.labels), seed=seed), mean_average_precision)
    return _selected(train, train.labels.shape[1], queries, choice, penalties, device)


class Choice(NamedTuple):
    """How a penalty is chosen: on these rows of train, by this measure of (logits, labels)."""

    held_out: np.ndarray  # (n,) bool
    measure: Callable[[np.ndarray, np.ndarray], float]


def _selected(
    train: Features,
    classes: int,
    queries: np.ndarray,
    choice: Choice,
    penalties: Sequence[float],
    device: str | torch.device,
) -> Fit:
    """The penalty chosen, then a refit on all of train; `predicted` is the logits of queries, (m, C)."""
    aside, y = choice.held_out, torch.from_numpy(train.labels).to(device)
    x, asked = _spanned(*standardised(train.rows[~aside], train.rows[aside]), device=device)
    lines = regression_path(x, y[torch.from_numpy(~aside)], penalties, classes=classes, smallest=ROUGH)
    truth = train.labels[aside]
    scores = {p: choice.measure(line.logits(asked), truth) for p, line in zip(penalties, lines, strict=True)}
    best = max(scores, key=scores.__getitem__)  # the first, strongest, of equals
    start = lines[list(penalties).index(best)]
    del x, asked, lines
    x, asked = _spanned(*standardised(train.rows, queries), device=device)
    (line,) = regression_path(x, y, [best], classes=classes, smallest=FINE, start=start)
    return Fit(line.logits(asked), best, best in _ends(penalties), line.steps, line.converged, scores)


def strata(labels: np.ndarray) -> np.ndarray:
    """(n,) of labels (n, C): the rarest class that an image is of, so that each of them is held out, too."""
    rarity = np.argsort(np.argsort(-(labels == 1).sum(0), kind="stable"))  # (C,): 0 the commonest
    return np.where(labels == 1, 1 + rarity, 0).max(1)


def regression_path(
    x: torch.Tensor,
    y: torch.Tensor,
    penalties: Sequence[float],
    *,
    classes: int,
    smallest: float,
    start: LinearClassifier | None = None,
) -> list[LinearClassifier]:
    """A fit for each penalty, each started from the one before it. x (n, D) with mean 0, y (n,) or (n, C).

    start: of the first, if it is of the same columns; else zeros.
    """
    if start is None or start.weight.shape[1] != x.shape[1]:  # in axes of its own, as `_spanned` gives
        start = LinearClassifier(x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    moment, lines = second_moment(x), [start]
    for penalty in penalties:
        enough = smallest / max(1.0, penalty)  # a strong penalty leaves logits of about 1 / penalty
        lines.append(fit_classifier(x, y, penalty, moment=moment, start=lines[-1], smallest=enough))
    return lines[1:]


def _spanned(x: np.ndarray, other: np.ndarray, *, device: str | torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the device; if x (n, D) has fewer rows than columns, in n axes that span its rows: no fit leaves them."""
    rows, others = (torch.from_numpy(part).to(device) for part in (x, other))
    if len(rows) >= rows.shape[1]:
        return rows, others
    axes = torch.linalg.qr(rows.T).Q  # (D, n)
    return rows @ axes, others @ axes


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
    mean, scale = mean_and_scale(fit)
    return tuple((rows - mean) / scale for rows in (fit, *others))


def mean_and_scale(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (D,) float32 of the columns; of a constant one the latter is infinite."""
    mean = rows.mean(0, dtype=np.float64).astype(np.float32)
    std = rows.std(0, dtype=np.float64).astype(np.float32)
    smallest = 1e-6 * np.abs(mean) + np.finfo(np.float32).tiny
    return mean, np.where(std > smallest, std, np.inf).astype(np.float32)


def refuse_one_class(labels: np.ndarray, *, split: str = "train") -> None:
    """Raises BadData if fewer than two classes are left to tell apart; of labels (n, C), if none is on some alone."""
    if labels.ndim > 1 and not ((labels == 1).any(0) & (labels == 0).any(0)).any():
        raise BadData(f"each class is on all {len(labels)} {split} images or on none of them; there is nothing to rank")
    if len(np.unique(labels)) < 2:
        raise BadData(f"all {len(labels)} {split} images are of one class; two are needed. Is the subset too small?")
