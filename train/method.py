"""What the training loop knows of a method."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from zoo.encoder import Encoder


class Step(NamedTuple):
    """The outcome of one forward pass."""

    loss: Tensor  # (), nats, the same on every process
    keys: Tensor | None = None  # (B, P), for a queue


class LossRange(NamedTuple):
    """Between which values a loss moves, in nats."""

    start: float  # about where an untrained network stands
    floor: float  # below which it cannot go


class Method(nn.Module, ABC):
    """One contrastive algorithm over an encoder. Whatever training changes is a parameter or a persistent buffer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def forward(self, view1: Tensor, view2: Tensor) -> Step:
        """view1, view2 (B, 3, H, W) in [0, 1], two views of the same images on this process."""

    @abstractmethod
    def loss_range(self, batch_size: int) -> LossRange:
        """Start and floor of the loss for batch_size images over all processes."""

    def after_step(self, step: Step, progress: float) -> None:
        """Move momentum encoders and queues, once per optimiser update; progress in [0, 1] of the training."""
