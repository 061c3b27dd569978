"""Weighted k-NN classification of frozen features: Wu et al. 2018 (instance discrimination), section 3.4.

Each of the k nearest neighbours by cosine similarity s votes for its class with weight exp(s / T).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from eval.linear import refuse_one_class
from eval.task import Outcome, Task
from zoo.errors import BadData
from zoo.model.embedding import in_one_unit, in_range

KS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07  # of the headline
TEMPERATURES = (0.02, 0.05, TEMPERATURE, 0.1, 0.2)  # those of the published numbers, and smaller
HEADLINE_K = 20
CHUNK = 256  # queries at a time; bounds the memory at CHUNK x n_bank similarities


@torch.inference_mode()
def knn_predict(
    bank: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    *,
    ks: Sequence[int] = KS,
    temperatures: Sequence[float] = (TEMPERATURE,),
    device: str | torch.device = "cpu",
) -> dict[tuple[int, float], np.ndarray]:
    """Predicted classes (n_queries,) int64 for every (k, T), from one pass over the similarities.

    bank (n, D) with labels (n,) >= 0, queries (m, D); float, any scale: rows are L2-normalised here. A k above n is
    left out. Equal votes go to the lowest class. Raises BadData on labels below 0, non-finite features, or no k <= n.
    """
    answers: dict[tuple[int, float], list[Tensor]] = {}
    for setting, votes in _votes(bank, labels, queries, ks=ks, temperatures=temperatures, device=device):
        answers.setdefault(setting, []).append(votes.argmax(1).cpu())
    return {setting: torch.cat(parts).numpy() for setting, parts in answers.items()}


def _votes(
    bank: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    *,
    ks: Sequence[int],
    temperatures: Sequence[float],
    device: str | torch.device,
) -> Iterator[tuple[tuple[int, float], Tensor]]:
    """For each chunk of queries and each (k, T): the votes (b, C) for each class, which the next step overwrites."""
    for what, features in {"bank": bank, "query": queries}.items():
        if not np.isfinite(features).all():
            raise BadData(f"some of the {len(features)} {what} features are not finite")
    if len(labels) != len(bank) or labels.min(initial=0) < 0:
        raise BadData("every bank feature needs a label of 0 or more; leave unlabelled images out of the bank")
    usable = sorted(k for k in ks if k <= len(bank))
    if not usable:
        raise BadData(f"a bank of {len(bank)} images is smaller than every k of {list(ks)}")
    classes = int(labels.max()) + 1
    for similarity, neighbours in _nearest(bank, labels, queries, k=usable[-1], device=device):
        for temperature in temperatures:
            # Subtracting the largest similarity changes no comparison and keeps exp from overflowing.
            weights = ((similarity - similarity[:, :1]) / temperature).exp()  # (b, k)
            votes = weights.new_zeros(len(weights), classes)
            done = 0
            for k in usable:
                votes.scatter_add_(1, neighbours[:, done:k], weights[:, done:k])
                done = k
                yield (k, temperature), votes


def _nearest(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, *, k: int, device: str | torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each chunk of queries: similarities (b, k), falling, and the labels (b, k) of those neighbours."""
    columns = _unit(bank, device).T
    classes = torch.from_numpy(labels).to(device)
    room = columns.new_empty(min(CHUNK, len(queries)), len(bank))  # a fresh one each time would cost a tenth more
    for start in range(0, len(queries), CHUNK):
        some = _unit(queries[start : start + CHUNK], device)
        similarity, index = torch.mm(some, columns, out=room[: len(some)]).topk(k)
        yield similarity, classes[index]


def _unit(features: np.ndarray, device: str | torch.device) -> Tensor:
    rows = torch.from_numpy(in_range(np.asarray(features, np.float32))).to(device)
    return torch.nn.functional.normalize(rows, dim=1)


@torch.inference_mode()
def knn(task: Task) -> list[Outcome]:
    """k-NN for every k and T; the headline is k = 20, or the largest k if the bank is smaller, and T = 0.07."""
    refuse_one_class(task.bank.labels)
    headline = _headline(len(task.bank))
    answers: dict[tuple[int, float], list[Tensor]] = {}
    scores: list[Tensor] = []  # votes of the headline
    for setting, votes in _votes(
        task.bank.rows, task.bank.labels, task.queries.rows, ks=KS, temperatures=TEMPERATURES, device=task.device
    ):
        answers.setdefault(setting, []).append(votes.argmax(1).cpu())
        if setting == (headline, TEMPERATURE):
            scores.append(votes.cpu().clone())
    predicted = {setting: torch.cat(parts).numpy() for setting, parts in answers.items()}
    ks = sorted({k for k, _ in predicted})
    shares = {t: {str(k): task.grade(predicted[k, t])[0] for k in ks} for t in TEMPERATURES}
    extras = {"by_k": shares[TEMPERATURE], "by_temperature": {str(t): by_k for t, by_k in shares.items()}}
    protocol = f"k-NN, cosine, k = {headline}, T = {TEMPERATURE}, weighted votes"
    classes = predicted[headline, TEMPERATURE]
    value, interval = task.grade(classes)
    columns = {f"k = {k}": share for k, share in shares[TEMPERATURE].items()}
    columns |= task.top_5(torch.cat(scores).numpy())
    details = _best_of(shares, value)
    return [
        Outcome("knn", protocol, task.metric, value, interval, classes, columns=columns, details=details, extras=extras)
    ]


def _headline(n: int) -> int:
    """HEADLINE_K, or the largest k that a bank of n images allows."""
    return HEADLINE_K if n >= HEADLINE_K else max((k for k in KS if k <= n), default=KS[0])


def knn_euclidean(task: Task) -> list[Outcome]:
    """scikit-learn's k-NN: Euclidean distance of the features as they come, one vote for each of the k nearest."""
    refuse_one_class(task.bank.labels)
    bank, queries = in_one_unit(task.bank.rows, task.queries.rows)
    index = NearestNeighbors(n_neighbors=min(KS[-1], len(bank)), algorithm="brute").fit(bank)
    neighbours = task.bank.labels[index.kneighbors(queries, return_distance=False)]  # (m, k)
    ks, headline = [k for k in KS if k <= len(bank)], _headline(len(bank))
    votes = {k: _count(neighbours[:, :k], task.classes) for k in ks}
    shares = {f"k = {k}": task.grade(counted.argmax(1))[0] for k, counted in votes.items()}
    predicted = votes[headline].argmax(1)
    protocol = f"k-NN Euclidean, k = {headline}, majority vote"
    columns = shares | task.top_5(votes[headline])
    return [Outcome("knn-euclidean", protocol, task.metric, *task.grade(predicted), predicted, columns=columns)]


def _count(neighbours: np.ndarray, classes: int) -> np.ndarray:
    """(m, C): how many of the neighbours (m, k) are of each class."""
    counted = np.zeros((len(neighbours), classes), np.int32)
    for column in neighbours.T:
        counted[np.arange(len(counted)), column] += 1
    return counted


def _best_of(shares: dict[float, dict[str, float]], headline: float) -> tuple[str, ...]:
    """What k and T chosen on the test images would give, where that is more than the headline."""
    cells = {(t, k): share for t, by_k in shares.items() for k, share in by_k.items()}
    t, k = max(cells, key=cells.__getitem__)
    if cells[t, k] <= headline:
        return ()
    return (f"at best {100 * cells[t, k]:.2f} % (k = {k}, T = {t}), but chosen on the test images.",)
