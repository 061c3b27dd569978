"""Few labels: n images of each class (`fewshot`), or 1 % and 10 % of all labels (`labels`); three draws each."""

from typing import Any

import numpy as np

from eval.features import Features
from eval.intervals import spread
from eval.linear import logistic_probe, refuse_one_class, standardised
from eval.notes import label_note, selection_notes
from eval.task import Outcome, Task

SHOTS = (1, 5, 10, 25)  # images of each class
SHARES = (0.01, 0.1)  # of the labels
SEEDS = (0, 1, 2)  # of the draws
PENALTY = 2.0**10  # of the squared weights, against a sum of squared errors


def fewshot(task: Task) -> list[Outcome]:
    """Ridge regression on n images of each class, tested on the whole test split, with a fixed penalty.

    The settings are those of big_vision's few-shot evaluator: standardised features, targets -1 and 1, penalty 2^10,
    three draws. Nothing is selected: a validation set for the penalty would be more labels than the shots.
    """
    refuse_one_class(task.bank.labels)
    outcomes = []
    for shots in SHOTS:
        draws = [draw_shots(task.bank.labels, shots, seed=seed) for seed in SEEDS]
        answers = [_ridge(_part(task.bank, draw), task.queries.rows) for draw in draws]
        protocol = f"{shots} labels a class, ridge regression, penalty 2^10, 3 draws"
        smallest = int(np.unique(task.bank.labels, return_counts=True)[1].min())
        extras = {"n_fit": len(draws[0]), "smallest_class": min(shots, smallest)}
        outcomes.append(_over_seeds(f"fewshot-{shots}", protocol, answers, task, extras))
    return outcomes


def labels(task: Task) -> list[Outcome]:
    """`eval.linear.linear` on 1 % and 10 % of the labels of each class; a tenth of those selects the penalty."""
    refuse_one_class(task.bank.labels)
    outcomes = []
    for share in SHARES:
        draws = [draw_share(task.bank.labels, share, seed=seed) for seed in SEEDS]
        fits = [logistic_probe(_part(task.bank, draw), task.queries.rows, device=task.device) for draw in draws]
        used, asked = len(draws[0]), round(share * len(task.bank))
        edge, converged = any(fit.grid_edge for fit in fits), all(fit.converged for fit in fits)
        extras = {"n_fit": used, "n_asked": asked, "penalties": [fit.penalty for fit in fits]}
        extras |= {"grid_edge": edge, "converged": converged}
        notes = selection_notes(grid_edge=edge, held_out={}, converged=converged) + label_note(used=used, asked=asked)
        protocol = f"linear probe on {share:.0%} of the labels, L-BFGS logistic regression, 3 draws"
        outcomes.append(
            _over_seeds(f"labels-{share:.0%}", protocol, [fit.predicted for fit in fits], task, extras, notes)
        )
    return outcomes


def draw_shots(classes: np.ndarray, shots: int, *, seed: int) -> np.ndarray:
    """Indices of `shots` random images of each class, or of all it has."""
    order = np.random.default_rng(seed).permutation(len(classes))
    return np.sort(np.concatenate([order[classes[order] == c][:shots] for c in np.unique(classes)]))


def draw_share(classes: np.ndarray, share: float, *, seed: int) -> np.ndarray:
    """Indices of a random share of each class, rounded, but at least two images: one learns, one may select."""
    order = np.random.default_rng(seed).permutation(len(classes))
    of_class = [order[classes[order] == c] for c in np.unique(classes)]
    return np.sort(np.concatenate([index[: max(2, round(share * len(index)))] for index in of_class]))


def _part(features: Features, index: np.ndarray) -> Features:
    return Features(features.rows[index], features.labels[index])


def _ridge(train: Features, queries: np.ndarray) -> np.ndarray:
    """Classes (m,) by least squares in its dual form: there are fewer images than features, as a rule."""
    x, asked = standardised(train.rows, queries)
    targets = 2 * np.eye(train.labels.max() + 1)[train.labels] - 1  # (n, C)
    kernel = (x @ x.T).astype(np.float64) + PENALTY * np.eye(len(x))
    weights = x.T @ np.linalg.solve(kernel, targets - targets.mean(0)).astype(np.float32)
    return (asked @ weights + targets.mean(0)).argmax(1)


def _over_seeds(
    name: str,
    protocol: str,
    answers: list[np.ndarray],
    task: Task,
    extras: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> Outcome:
    """Mean and standard deviation over the draws; the predictions kept are those of the first."""
    by_seed = [task.grade(predicted)[0] for predicted in answers]
    mean, std = spread(by_seed)
    extras = extras | {"seeds": list(SEEDS), "by_seed": by_seed, "std": std}
    return Outcome(name, protocol, task.metric, mean, predicted=answers[0], notes=notes, extras=extras)
