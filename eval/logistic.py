"""Logistic regression, multinomial or one-vs-rest, minimised by L-BFGS in coordinates where the bowl is nearly round.

Labels y (n,) are classes in 0..C-1, told apart by a softmax. Labels y (n, C) are C questions of their own: 1 yes, 0 no,
-1 not asked.

Near the minimum the curvature in the weights of one class is about s * x.T x / n + penalty, with s the mean of
p (1 - p). With L the Cholesky factor of that matrix and W = V L^-1, the curvature in V is about 1 in every direction:
a fit from the last one's weights takes a few steps where the plain coordinates take dozens.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

ROWS = 4096  # of the features at a time; bounds the memory at ROWS x C
SAMPLED = 8  # times D rows are enough to know the curvature
FLATTEST = 1e-6  # mean of p (1 - p) that is still believed
MOST_STEPS = 1000
ABNORMAL = 2  # scipy's status of a line search that failed
NOISE = 1e-9  # relative change of the objective below which a step is rounding error


class LinearClassifier(NamedTuple):
    """A linear classifier of C classes and how it was reached."""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    steps: int = 0
    converged: bool = True

    def logits(self, x: Tensor) -> np.ndarray:
        """(n, C) of x (n, D)."""
        return F.linear(x, self.weight, self.bias).cpu().numpy()


def second_moment(x: Tensor) -> Tensor:
    """x.T x / n, (D, D) float64, of evenly spread rows of x (n, D): SAMPLED for each column are enough."""
    some = x[:: max(1, len(x) // (SAMPLED * x.shape[1]))]
    return (some.T @ some).double() / len(some)


def fit_classifier(
    x: Tensor, y: Tensor, penalty: float, *, moment: Tensor, start: LinearClassifier, smallest: float
) -> LinearClassifier:
    """The minimum of mean cross-entropy + penalty / 2 * ||W||^2; the bias is free.

    x (n, D) with mean 0, y (n,) or (n, C); moment: `second_moment` of x. smallest: as in `descend`. On the way down p
    nears 0 and 1, and the bowl flattens: where s has fallen below half of what it was, new coordinates go on.
    """
    steps, share = 0, spread_of(x, y, start)
    while True:
        start = descend(x, y, penalty, share, moment=moment, start=start, smallest=smallest)
        steps, before, share = steps + start.steps, share, spread_of(x, y, start)
        if share >= before / 2:
            return start._replace(steps=steps)


def descend(
    x: Tensor, y: Tensor, penalty: float, share: float, *, moment: Tensor, start: LinearClassifier, smallest: float
) -> LinearClassifier:
    """Minimise in the coordinates of one s, `share`.

    The objective is divided by s, so the curvature of both V and bias is about 1, and a gradient is the distance to
    go: the fit ends when no entry is larger than `smallest`, each logit then right to about sqrt(D) * smallest.
    """
    one = torch.eye(len(moment), dtype=torch.float64, device=x.device)
    factor = torch.linalg.cholesky(moment + penalty / share * one)
    back = torch.linalg.solve_triangular(factor.T, one, upper=True).to(x.dtype)

    def line(flat: np.ndarray) -> LinearClassifier:
        v = torch.from_numpy(flat).to(x.device, x.dtype).view(len(start.bias), -1)  # (C, D + 1)
        return LinearClassifier(v[:, :-1] @ back.T, v[:, -1])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = line(flat)
        loss, by_weight, by_bias = cross_entropy(x, y, at)
        by_v = torch.hstack([(by_weight + penalty * at.weight) @ back, by_bias[:, None]]).double() / share
        value = loss + penalty / 2 * float(at.weight.double().square().sum())
        return value / share, by_v.cpu().numpy().ravel()

    v = torch.hstack([start.weight.double() @ factor, start.bias.double()[:, None]])
    options = {"maxiter": MOST_STEPS, "gtol": smallest, "ftol": NOISE}
    found = minimize(objective, v.cpu().numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
    return line(found.x)._replace(steps=int(found.nit), converged=arrived(found, smallest))


def arrived(found: OptimizeResult, smallest: float) -> bool:
    """Whether L-BFGS ended at the minimum, or where rounding in float32 lets its line search see nothing lower."""
    return bool(found.success) or bool(found.status == ABNORMAL and np.abs(found.jac).max() <= 2 * smallest)


def cross_entropy(x: Tensor, y: Tensor, at: LinearClassifier) -> tuple[float, Tensor, Tensor]:
    """Mean cross-entropy in nats (one-vs-rest: summed over classes), its gradients by weight (C, D) and bias (C,)."""
    parts = _one_of_all if y.ndim == 1 else _each_alone
    loss, by_weight, by_bias = 0.0, torch.zeros_like(at.weight), torch.zeros_like(at.bias)
    for start in range(0, len(x), ROWS):
        some = x[start : start + ROWS]
        logits = F.linear(some, at.weight, at.bias).T.contiguous()  # (C, b): rows are long, so fast
        nats, error = parts(logits, y[start : start + ROWS])
        loss += nats
        by_weight.addmm_(error, some)
        by_bias += error.sum(1)
    return loss / len(x), by_weight / len(x), by_bias / len(x)


def _one_of_all(logits: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Summed cross-entropy of the softmax of logits (C, b), and its gradient (C, b). y (b,)."""
    error, classes = logits.log_softmax(0), y[None]
    nats = -float(error.gather(0, classes).sum(dtype=torch.float64))
    return nats, error.exp_().scatter_add_(0, classes, error.new_full(classes.shape, -1))


def _each_alone(logits: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Summed binary cross-entropies of logits (C, b) where y (b, C) is 0 or 1, and their gradient (C, b)."""
    asked = (y.T >= 0).to(logits.dtype)
    yes = y.T * asked
    nats = float((asked * (F.softplus(logits) - yes * logits)).sum(dtype=torch.float64))
    return nats, asked * (logits.sigmoid() - yes)


def spread_of(x: Tensor, y: Tensor, at: LinearClassifier) -> float:
    """The mean of p (1 - p) over classes and evenly spread rows of x; at least FLATTEST."""
    logits = F.linear(x[:: max(1, len(x) // ROWS)], at.weight, at.bias)
    p = logits.softmax(1) if y.ndim == 1 else logits.sigmoid()
    return max(FLATTEST, float((p - p * p).mean()))
