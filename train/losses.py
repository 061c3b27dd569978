"""The equations, side by side. Each is a pure function of the rows of the whole batch; rows need no normalising.

All are computed in float32 (float64 stays) outside autocast and in log space: probabilities near 1 are never
subtracted from 1, so easy anchors keep their digits. Values are in nats. Of a large batch's matrix of logits only
BLOCK rows exist at a time, also in the backward pass.
"""

import math
from collections.abc import Callable
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 1024  # rows of logits at a time


def full_precision(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run `loss` outside autocast, its low-precision tensors cast to float32."""

    @wraps(loss)
    def run(*rows: Tensor, **numbers: float) -> Tensor:
        with torch.autocast(rows[0].device.type, enabled=False):
            return loss(*(x if x.dtype == torch.float64 else x.float() for x in rows), **numbers)

    return run


@full_precision
def nt_xent(z: Tensor, *, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross entropy: Chen et al. 2020 (SimCLR), equation 1, mean over all 2B anchors.

    z (2B, P): rows i and i + B are two views of image i. Returns (). Raises ValueError if B < 2 or 2B is odd.
    """
    if len(z) < 4 or len(z) % 2:
        raise ValueError(f"NT-Xent needs two views of at least 2 images, an even number of rows; got {len(z)} rows")
    z = F.normalize(z, dim=-1)
    positive = (z * z.roll(len(z) // 2, dims=0)).sum(-1)  # (2B,)
    return (_log_sum_of_others(z, z, temperature) - positive / temperature).mean()


@full_precision
def info_nce(q: Tensor, k: Tensor, negatives: Tensor, *, temperature: float) -> Tensor:
    """InfoNCE over a dictionary: He et al. 2020 (MoCo), equation 1, mean over anchors.

    Row i of q belongs to row i of k; `negatives` (K, P) are every anchor's only negatives, so the K + 1 candidates hold
    its positive once. q, k (N, P). Returns (). The gradient reaches whatever asks for it: give keys without.
    """
    return F.softplus(_margin(*_unit(q, k, negatives), temperature=temperature)).mean()


@full_precision
def in_batch_info_nce(q: Tensor, k: Tensor, *, temperature: float) -> Tensor:
    """InfoNCE with the other rows of k as negatives: Chen et al. 2021 (MoCo v3), equation 1, mean over anchors.

    q, k (N, P). Returns (). Raises ValueError if N < 2.
    """
    _at_least_two(q)
    return F.softplus(_margin(*_unit(q, k), temperature=temperature)).mean()


def mocov3(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, *, temperature: float) -> Tensor:
    """Chen et al. 2021 (MoCo v3), algorithm 1: ctr(q1, k2) + ctr(q2, k1), where ctr is InfoNCE times 2 tau.

    q1, k1, q2, k2 (N, P): queries and keys of the two views. Returns (). Raises ValueError if N < 2.
    """
    forth = in_batch_info_nce(q1, k2, temperature=temperature)
    back = in_batch_info_nce(q2, k1, temperature=temperature)
    return 2 * temperature * (forth + back)


@full_precision
def dual_temperature(q: Tensor, k: Tensor, *, intra_temperature: float, inter_temperature: float) -> Tensor:
    """One direction of SimCo and SimMoCo: Zhang et al. 2022 (Dual temperature), equation 9.

    mean_i of -sg[W_beta / W_alpha] log p_+, where p_+ is the softmax of the positive at tau_alpha
    (intra_temperature), W = 1 - p_+ at either temperature, and the negatives are the N - 1 other rows of k.
    inter_temperature (tau_beta) may be infinite: equation 11, every anchor weighs the same.

    q, k (N, P). Returns (). The gradient reaches both; detach k for SimMoCo. Raises ValueError if N < 2.
    """
    _at_least_two(q)
    q, k = _unit(q, k)
    alpha = _margin(q, k, temperature=intra_temperature)
    with torch.no_grad():
        beta = _margin(q, k, temperature=inter_temperature)
    return _weighted(alpha, beta).mean()


@full_precision
def two_dictionaries(
    q: Tensor, k: Tensor, vector: Tensor, scalar: Tensor, *, intra_temperature: float, inter_temperature: float
) -> Tensor:
    """InfoNCE whose gradient has its direction from one dictionary and its size from another: Zhang et al. 2022 (Dual
    temperature), equation 7, written as equation 9 is: mean_i of -sg[W_beta / W_alpha] log p_+.

    p_+ and W_alpha = 1 - p_+ are over the negatives `vector` (K, P) at tau_alpha (intra_temperature), W_beta over the
    negatives `scalar` (L, P) at tau_beta (inter_temperature). The gradient at q is that of equation 7 over tau_alpha.
    With scalar = vector and equal temperatures this is `info_nce`. q, k (N, P). Returns ().
    """
    q, k, vector, scalar = _unit(q, k, vector, scalar)
    alpha = _margin(q, k, vector, temperature=intra_temperature)
    with torch.no_grad():
        beta = _margin(q, k, scalar, temperature=inter_temperature)
    return _weighted(alpha, beta).mean()


@full_precision
@torch.no_grad()
def anchor_entropy(q: Tensor, k: Tensor, negatives: Tensor, *, temperature: float) -> Tensor:
    """Entropy (), nats, of the anchors' weights r_i = W_i / sum_j W_j, W = 1 - p_+: log N where all weigh alike.

    q, k (N, P), negatives (K, P). Zhang et al. 2022, section 3.
    """
    share = F.logsigmoid(_margin(*_unit(q, k, negatives), temperature=temperature)).log_softmax(0)  # (N,), log r
    return -(share.exp() * share).sum()


@full_precision
@torch.no_grad()
def pretext_accuracy(q: Tensor, k: Tensor, negatives: Tensor | None = None) -> Tensor:
    """Share of anchors (), [0, 1], nearer to their positive than to every negative; ties lose, so collapse gives 0.

    q, k (N, P): row i of q belongs to row i of k. negatives (K, P): a dictionary; by default the other rows of k.
    """
    others = negatives is None
    q, k, negatives = _unit(q, k, k if negatives is None else negatives)
    cosines = q @ negatives.T
    nearest = (cosines.fill_diagonal_(-math.inf) if others else cosines).amax(-1)  # (N,)
    return ((q * k).sum(-1) > nearest).float().mean()


def _at_least_two(rows: Tensor) -> None:
    if len(rows) < 2:
        raise ValueError(f"at least 2 rows are needed, for there are no negatives among {len(rows)}; raise batch_size")


def _unit(*rows: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.normalize(each, dim=-1) for each in rows)


def _margin(q: Tensor, k: Tensor, negatives: Tensor | None = None, *, temperature: float) -> Tensor:
    """By how much the negatives outweigh the positive: log sum_j exp(q_i n_j / tau) - q_i k_i / tau: (N,).

    All rows of unit length. negatives (K, P): every anchor's; by default the other rows of k.
    """
    if math.isinf(temperature):
        return q.new_full((len(q),), math.log(len(k) - 1 if negatives is None else len(negatives)))
    if negatives is None:
        outweigh = _log_sum_of_others(q, k, temperature)
    else:
        outweigh = (q @ negatives.T / temperature).logsumexp(-1)
    return outweigh - (q * k).sum(-1) / temperature


def _weighted(alpha: Tensor, beta: Tensor) -> Tensor:
    """-sg[W_beta / W_alpha] log p_+ of margins at two temperatures: W = sigmoid(margin), -log p_+ = softplus(alpha).

    The gradient at alpha is W_beta, for softplus has the derivative W_alpha, which cancels. The value is W_beta times
    softplus(alpha) / W_alpha, a ratio that is 1 to the last digit from -40 down, where both underflow.
    """
    weight = beta.sigmoid().detach()
    margin = alpha.detach().clamp_min(-40)
    return weight * (F.softplus(margin) / margin.sigmoid() + (alpha - alpha.detach()))


def _log_sum_of_others(q: Tensor, k: Tensor, temperature: float) -> Tensor:
    """log sum_j exp(q_i k_j / tau) over all j but i, for unit rows q, k (N, P): (N,).

    Of more than BLOCK rows the logits are made block by block, and once more in the backward pass, where autograd would
    keep several (N, N) matrices.
    """
    column = torch.arange(len(k), device=k.device)

    def of(rows: Tensor, first: int) -> Tensor:
        logits = rows @ k.T / temperature  # (BLOCK, N)
        own = column == column[first : first + len(rows), None]
        return logits.masked_fill_(own, -math.inf).logsumexp(-1)

    if len(q) <= BLOCK:
        return of(q, 0)
    blocks = [(q[i : i + BLOCK], i) for i in range(0, len(q), BLOCK)]
    return torch.cat([checkpoint(of, *block, use_reentrant=False, preserve_rng_state=False) for block in blocks])


def nt_xent_range(batch_size: int, *, temperature: float) -> tuple[float, float]:
    """(start, floor) of NT-Xent in nats for batch_size images.

    start: log(2B - 1), all rows alike, near which an untrained network stands. floor: the B classes on a simplex,
    log(1 + (2B - 2) exp(-B / ((B - 1) tau))).
    """
    others = 2 * batch_size - 2
    return math.log1p(others), math.log1p(others * math.exp(-batch_size / ((batch_size - 1) * temperature)))


def info_nce_range(queue_size: int, *, temperature: float) -> tuple[float, float]:
    """(start, floor) of InfoNCE in nats over a dictionary of queue_size negatives.

    start: log(K + 1), all rows alike. floor: every negative opposite the query, log(1 + K exp(-2 / tau)).
    """
    return math.log1p(queue_size), math.log1p(queue_size * math.exp(-2 / temperature))


def mocov3_range(batch_size: int, *, temperature: float) -> tuple[float, float]:
    """(start, floor) of MoCo v3's loss in nats for batch_size images.

    start: 4 tau log N, all rows alike. floor: N images on a simplex, 4 tau log(1 + (N - 1) exp(-N / ((N - 1) tau))).
    """
    negatives = batch_size - 1
    floor = math.log1p(negatives * math.exp(-batch_size / (negatives * temperature)))
    return 4 * temperature * math.log(batch_size), 4 * temperature * floor


def dual_temperature_range(
    batch_size: int, *, intra_temperature: float, inter_temperature: float
) -> tuple[float, float]:
    """(start, floor) of the dual-temperature loss in nats for batch_size images.

    start: log N, all rows alike. floor: its value where the N images stand on a simplex and the views agree.
    """
    negatives, gap = batch_size - 1, batch_size / (batch_size - 1)
    taus = torch.tensor([intra_temperature, inter_temperature], dtype=torch.float64)
    alpha, beta = math.log(negatives) - gap / taus  # margins
    return math.log(batch_size), _weighted(alpha, beta).item()
