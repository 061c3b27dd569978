"""Weighted k-NN classification of frozen features: Wu et al. 2018 (instance discrimination), section 3.4.

Each of the k nearest neighbours by cosine similarity s votes for its class with weight exp(s / T).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from eval.linear import refuse_one_class
from eval.task import Outcome, Task
from zoo.errors import BadData
from zoo.model.embedding import in_range

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
    for what, features in {"bank": bank, "query": queries}.items():
        if not np.isfinite(features).all():
            raise BadData(f"some of the {len(features)} {what} features are not finite")
    if len(labels) != len(bank) or labels.min(initial=0) < 0:
        raise BadData("every bank feature needs a label of 0 or more; leave unlabelled images out of the bank")
    usable = sorted(k for k in ks if k <= len(bank))
    if not usable:
        raise BadData(f"a bank of {len(bank)} images is smaller than every k of {list(ks)}")
    answers: dict[tuple[int, float], list[Tensor]] = {(k, t): [] for k in usable for t in temperatures}
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
                answers[k, temperature].append(votes.argmax(1).cpu())
    return {key: torch.cat(parts).numpy() for key, parts in answers.items()}


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


def knn(task: Task) -> list[Outcome]:
    """k-NN for every k and T; the headline is k = 20, or the largest k if the bank is smaller, and T = 0.07."""
    refuse_one_class(task.bank.labels)
    predicted = knn_predict(
        task.bank.rows, task.bank.labels, task.queries.rows, temperatures=TEMPERATURES, device=task.device
    )
    ks = sorted({k for k, _ in predicted})
    shares = {t: {str(k): task.grade(predicted[k, t])[0] for k in ks} for t in TEMPERATURES}
    headline = HEADLINE_K if HEADLINE_K in ks else max(ks)
    extras = {"by_k": shares[TEMPERATURE], "by_temperature": {str(t): by_k for t, by_k in shares.items()}}
    protocol = f"k-NN, cosine, k = {headline}, T = {TEMPERATURE}, weighted votes"
    classes = predicted[headline, TEMPERATURE]
    value, interval = task.grade(classes)
    columns = {f"k = {k}": share for k, share in shares[TEMPERATURE].items()}
    details = _best_of(shares, value)
    return [
        Outcome("knn", protocol, task.metric, value, interval, classes, columns=columns, details=details, extras=extras)
    ]


def _best_of(shares: dict[float, dict[str, float]], headline: float) -> tuple[str, ...]:
    """What k and T chosen on the test images would give, where that is more than the headline."""
    cells = {(t, k): share for t, by_k in shares.items() for k, share in by_k.items()}
    t, k = max(cells, key=cells.__getitem__)
    if cells[t, k] <= headline:
        return ()
    return (f"at best {100 * cells[t, k]:.2f} % (k = {k}, T = {t}), but chosen on the test images.",)
