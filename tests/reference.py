"""Every equation again, in NumPy float64 and in the papers' own form: slow, plain, independent of torch."""

import numpy as np


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def nt_xent(z: np.ndarray, tau: float) -> float:
    """Chen et al. 2020, equation 1: rows i and i + B are two views; mean over all 2B anchors."""
    z = unit(z)
    n, half = len(z), len(z) // 2
    total = 0.0
    for i in range(n):
        others = [np.exp(z[i] @ z[j] / tau) for j in range(n) if j != i]
        total -= np.log(np.exp(z[i] @ z[(i + half) % n] / tau) / sum(others))
    return total / n


def positive_probability(q: np.ndarray, k: np.ndarray, tau: float) -> np.ndarray:
    """p_+ of every anchor: its positive against the other rows of k."""
    logits = np.exp(unit(q) @ unit(k).T / tau)
    return np.diag(logits) / logits.sum(1)


def dual_temperature_weights(q: np.ndarray, k: np.ndarray, tau_alpha: float, tau_beta: float) -> np.ndarray:
    """Zhang et al. 2022, equation 9: W_beta / W_alpha, W = 1 - p_+."""
    return (1 - positive_probability(q, k, tau_beta)) / (1 - positive_probability(q, k, tau_alpha))


def dual_temperature(
    q: np.ndarray, k: np.ndarray, tau_alpha: float, tau_beta: float, weights: np.ndarray | None = None
) -> float:
    """Equation 9, mean over anchors. `weights` holds the stop-gradient factor fixed for finite differences."""
    if weights is None:
        weights = dual_temperature_weights(q, k, tau_alpha, tau_beta)
    return float((-weights * np.log(positive_probability(q, k, tau_alpha))).mean())


def info_nce(q: np.ndarray, k: np.ndarray, negatives: np.ndarray, tau: float) -> float:
    """He et al. 2020, equation 1: one positive against the queue; mean over anchors."""
    q, k, negatives = unit(q), unit(k), unit(negatives)
    total = 0.0
    for anchor, key in zip(q, k, strict=True):
        candidates = np.exp(np.array([key @ anchor, *(negatives @ anchor)]) / tau)
        total -= np.log(candidates[0] / candidates.sum())
    return total / len(q)


def mocov3(q1: np.ndarray, k1: np.ndarray, q2: np.ndarray, k2: np.ndarray, tau: float) -> float:
    """Chen et al. 2021, algorithm 1: ctr(q1, k2) + ctr(q2, k1), ctr = 2 tau cross entropy of the diagonal."""
    return -2 * tau * sum(np.log(positive_probability(q, k, tau)).mean() for q, k in ((q1, k2), (q2, k1)))


def two_dictionaries(
    q: np.ndarray, k: np.ndarray, vector: np.ndarray, scalar: np.ndarray, tau_alpha: float, tau_beta: float
) -> np.ndarray:
    """The gradient at unit rows q of Zhang et al. 2022, equation 7 over tau_alpha, mean over anchors (N, P)."""
    q, k, vector, scalar = unit(q), unit(k), unit(vector), unit(scalar)
    result = np.zeros_like(q)
    for i, anchor in enumerate(q):
        against = np.exp(scalar @ anchor / tau_beta).sum()
        weight = against / (against + np.exp(k[i] @ anchor / tau_beta))  # W_beta
        shares = np.exp(vector @ anchor / tau_alpha)
        result[i] = -weight * (k[i] - shares @ vector / shares.sum()) / tau_alpha / len(q)
    return result


def split_batch_norm(x: np.ndarray, groups: int, eps: float = 1e-5) -> np.ndarray:
    """(B, C): rows j, j + groups, ... share their mean and variance."""
    y = np.empty_like(x)
    for j in range(groups):
        group = x[j::groups]
        y[j::groups] = (group - group.mean(0)) / np.sqrt(group.var(0) + eps)
    return y


def lars_step(
    w: np.ndarray, g: np.ndarray, v: np.ndarray, *, lr: float, momentum: float, decay: float, trust: float
) -> tuple[np.ndarray, np.ndarray]:
    """You et al. 2017 as SimCLR's release has it: ratio trust |w| / |g + wd w|, learning rate inside the buffer."""
    g = g + decay * w
    v = momentum * v + lr * trust * np.linalg.norm(w) / np.linalg.norm(g) * g
    return w - v, v


def warmup_cosine(t: float, base: float, warmup: float, total: float) -> float:
    if t < warmup:
        return base * t / warmup
    return base * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (total - warmup)))


def knn_votes(bank: np.ndarray, labels: np.ndarray, query: np.ndarray, k: int, temperature: float) -> int:
    """Wu et al. 2018, section 3.4: one query, sorted by hand; equal votes to the lowest class."""
    similarity = unit(bank) @ (query / np.linalg.norm(query))
    nearest = np.argsort(-similarity, kind="stable")[:k]
    votes = np.zeros(labels.max() + 1)
    for index in nearest:
        votes[labels[index]] += np.exp(similarity[index] / temperature)
    return int(votes.argmax())


def eleven_point_ap(scores: np.ndarray, labels: np.ndarray) -> float:
    """VOC 2007, from the definition: at each recall level the best of all thresholds that reach it. Labels 1, 0, -1."""
    total = 0.0
    for level in range(11):
        best = 0.0
        for threshold in set(scores.tolist()):
            right = sum(s >= threshold and y == 1 for s, y in zip(scores, labels, strict=True))
            wrong = sum(s >= threshold and y == 0 for s, y in zip(scores, labels, strict=True))
            if 10 * right >= level * np.sum(labels == 1) and right + wrong:
                best = max(best, right / (right + wrong))
        total += best / 11
    return total


def gradient(function, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function at x."""
    result = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        result[index] = (function(up) - function(down)) / (2 * step)
    return result
