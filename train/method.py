"""What the training loop knows of a method."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from train.gather import gather_rows
from zoo.model.encoder import Encoder


class Step(NamedTuple):
    """The outcome of one forward pass."""

    loss: Tensor  # (), nats, the same on every process
    keys: tuple[Tensor, ...] = ()  # (N, P) each, for a queue
    seen: Mapping[str, Tensor] = {}  # () each, without gradient: what else the log should tell


class LossRange(NamedTuple):
    """Between which values a loss moves, in nats."""

    start: float  # about where an untrained network stands
    floor: float  # below which it cannot go


class Method(nn.Module, ABC):
    """One contrastive algorithm over an encoder, in two functions: `rows` of each image, `loss` of the whole batch.

    Whatever training changes is a parameter or a persistent buffer.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def prepare(self, images: int) -> None:
        """Make what has a place for each of the `images` of the data set; once, before weights are loaded."""

    def before_step(self, images: Tensor) -> None:
        """Take the indices (N,) of the images that come next, of all processes, in the order of ranks."""

    @abstractmethod
    def rows(self, view1: Tensor, view2: Tensor) -> tuple[Tensor, ...]:
        """view1, view2 (B, 3, H, W) in [0, 1], two views of the same images on this process -> (B, P) tensors.

        All that is computed image by image (batch normalisation aside): encoders, projectors, predictors.
        """

    @abstractmethod
    def loss(self, *rows: Any, **_: Any) -> Step:  # Any, so that a method may name its rows: loss(self, q, k)
        """The loss of what `rows` gave, (N, P) each, of the images of all processes in the order of ranks."""

    def forward(self, view1: Tensor, view2: Tensor) -> Step:
        """`loss` of the gathered `rows`: the same on one process as on many, with the same gradient."""
        return self.loss(*map(gather_rows, self.rows(view1, view2)))

    @abstractmethod
    def loss_range(self, batch_size: int) -> LossRange:
        """Start and floor of the loss for batch_size images over all processes."""

    def remarks(self, images: int, batch_size: int) -> list[str]:
        """What to tell once before training on that many images, batch_size an update: warnings say what to do."""
        return []

    def key_momentum_at(self, progress: float) -> float | None:
        """m, [0, 1], with which a momentum encoder follows at `progress`, for the log; None where there is none."""
        return None

    def after_step(self, step: Step, progress: float) -> None:
        """Move momentum encoders and queues, once per optimiser update; progress in [0, 1] of the training."""
