"""Dual Temperature Helps Contrastive Learning Without Many Negative Samples: the study behind it.

Chaoning Zhang, Kang Zhang, Trung X. Pham, Axi Niu, Zhinan Qiao, Chang D. Yoo, In So Kweon. CVPR 2022,
arXiv 2203.17248, section 3: what does MoCo need a large dictionary for?

The gradient of InfoNCE is a vector (the positive less the mean of the negatives, by their softmax) times a scalar (the
anchor's weight, W = 1 - p_+, equations 4 and 5). Here each comes from keys of its own: `vector_keys` and `scalar_keys`
of the queue, its most recent ones, its earliest or random ones, the scalar at a temperature of its own (equation 7).
With all keys for both and equal temperatures this is MoCo v2. `python -m train.study` runs and draws the comparisons.
"""

from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from train import losses
from train.batchnorm import hashes, shuffles_keys, with_batchnorm
from train.heads import mlp
from train.key_queue import KeyQueue
from train.method import Batch, Pair, Step
from train.methods.dual_temperature import PAPER
from train.methods.moco import V2_CIFAR100_PAPER, V2_SMALL, MoCo, MoCoRecipe
from zoo.errors import BadNumber
from zoo.model.encoder import Encoder

Sampling = Literal["recent", "earliest", "random"]


@final
class TwoDictionaries(MoCo):
    """MoCo v2, one direction, its gradient's vector and scalar over dictionaries of their own."""

    draws: Tensor  # () int64, how often random keys have been drawn

    def __init__(
        self, encoder: Encoder, projector: nn.Sequential, *, vector_keys: int, scalar_keys: int, sampling: Sampling,
        inter_temperature: float, **moco: Any,
    ) -> None:  # fmt: skip
        super().__init__(encoder, projector, symmetric=False, **moco)
        for name, keys in {"vector_keys": vector_keys, "scalar_keys": scalar_keys}.items():
            if not 0 <= keys <= self.queue_size:
                raise BadNumber(f"{name} = {keys}; allowed: 1 .. queue_size = {self.queue_size}, or 0 for all")
        self.vector_keys, self.scalar_keys, self.sampling = vector_keys, scalar_keys, sampling
        self.temperatures = {"intra_temperature": self.temperature, "inter_temperature": inter_temperature}
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def loss(self, pairs: tuple[Pair, ...], batch: Batch) -> Step:
        ((q, k),), queue = pairs, self.queues[0]
        vector, scalar = (chosen(queue, n, self.sampling, self.draws) for n in (self.vector_keys, self.scalar_keys))  # type: ignore[arg-type]
        metrics = {
            "pretext_accuracy": losses.pretext_accuracy(q, k, queue.keys),
            "anchor_entropy": losses.anchor_entropy(q, k, scalar, temperature=self.temperatures["inter_temperature"]),
        }
        return Step(losses.two_dictionaries(q, k, vector, scalar, **self.temperatures), (k,), metrics)

    def after_step(self, step: Step, progress: float) -> None:
        super().after_step(step, progress)
        self.draws.add_(1)


def chosen(queue: KeyQueue, n: int, sampling: Sampling, draw: Tensor) -> Tensor:
    """n keys (n, P) of the queue, or all if n is 0; draw () int64 says which random ones."""
    size = len(queue.keys)
    if n in (0, size):
        return queue.keys
    nth = torch.arange(n, device=queue.keys.device)
    ages = {"earliest": nth, "recent": size - 1 - nth}  # 0: the oldest
    order = ages[sampling] if sampling in ages else hashes(size, draw).argsort()[:n]
    return queue.keys[(queue.oldest + order) % size]


@dataclass(frozen=True, kw_only=True)
class TwoDictionariesRecipe(MoCoRecipe):
    """MoCo's numbers, and the study's own."""

    vector_keys: int = 0
    """Keys that the gradient's direction comes from; 0 for the whole queue."""
    scalar_keys: int = 0
    """Keys that the anchor's weight comes from; 0 for the whole queue."""
    sampling: Sampling = "recent"
    """Which keys of the queue: the most recent ones, the earliest ones, or random ones."""
    inter_temperature: float = 0.1
    """tau_beta, of the anchor's weight; tau_alpha is `temperature`."""

    def method(self, encoder: Encoder) -> TwoDictionaries:
        method = TwoDictionaries(
            encoder, mlp(encoder.dim, self.hidden, self.projection), shuffle=shuffles_keys(self.batchnorm),
            queue_size=self.queue_size, projection=self.projection, temperature=self.temperature,
            key_momentum=(self.key_momentum, self.final_key_momentum), vector_keys=self.vector_keys,
            scalar_keys=self.scalar_keys, sampling=self.sampling, inter_temperature=self.inter_temperature,
        )  # fmt: skip
        return with_batchnorm(method, self.batchnorm)


STUDY: dict[str, Any] = {
    "paper": PAPER,
    "source": "section 3 of the paper; the numbers of its MoCo v2, the authors' code, bash_files/moco.sh",
    "expects": "none published as text: figures 2 and 3 and table 1 of the paper",
}
CIFAR100 = TwoDictionariesRecipe(**vars(V2_CIFAR100_PAPER) | STUDY | {"name": "mocov2-r18-cifar100-study"})
SMALL = TwoDictionariesRecipe(**vars(V2_SMALL) | STUDY | {"name": "mocov2-r20-cifar100-study"})

RECIPES = [CIFAR100, SMALL]
