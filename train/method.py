"""What the training loop knows of a method: `project` the views, `loss` of the whole batch, `after_step`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from train.gather import gather_rows
from zoo.model.encoder import Encoder


class Batch(NamedTuple):
    """What one optimizer update trains on."""

    views: tuple[Tensor, ...]  # (B, 3, S, S) in [0, 1] each, two or more views of this process's images
    indices: Tensor  # (N,) int64, of the images of all processes, in the order of ranks
    progress: float  # (0, 1], share of the training that is done with this update


class Pair(NamedTuple):
    """The two sides of a positive pair."""

    query: Tensor  # (B, P)
    key: Tensor  # (B, P)


Projections = tuple[Tensor | Pair, ...]  # one row for each image in every tensor


class Step(NamedTuple):
    """What one forward pass gives."""

    loss: Tensor  # (), nats, the same on every process
    keys: tuple[Tensor, ...] = ()  # (N, P) each, for `Method.after_step`
    metrics: Mapping[str, Tensor] = {}  # () each, without gradient, for the log


class LossRange(NamedTuple):
    """Between which values a loss moves, in nats."""

    start: float  # about the value of an untrained network
    floor: float  # the least value


class Method(nn.Module, ABC):
    """One contrastive algorithm over an encoder.

    Whatever training changes is a parameter or a persistent buffer.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def prepare(self, images: int) -> None:
        """Allocate what has an entry for each of the `images` of the data set, once, before weights are loaded."""

    @abstractmethod
    def project(self, views: tuple[Tensor, ...]) -> Projections:
        """Encode the views image by image (batch normalization aside): encoders, projectors, predictors.

        Args:
            views: (B, 3, S, S) in [0, 1] each, views of the same images on this process.

        Returns:
            Tensors (B, P), or pairs of them where the paper has pairs. Gradient flows where the paper lets it.
        """

    @abstractmethod
    def loss(self, projections: Any, batch: Batch) -> Step:  # Any: a method names its own tuple
        """The loss of what `project` returned, (N, P) for the images of all processes in the order of ranks."""

    def forward(self, views: tuple[Tensor, ...]) -> Projections:
        """`project`, as DistributedDataParallel and torch.compile call it."""
        return self.project(views)

    @abstractmethod
    def loss_range(self, batch_size: int) -> LossRange:
        """Start and floor of the loss for batch_size images over all processes."""

    def remarks(self, images: int, batch_size: int) -> list[str]:
        """Lines to report before training on that many images, batch_size an update."""
        return []

    def key_momentum_at(self, progress: float) -> float | None:
        """Momentum m of the key encoder, [0, 1], at `progress`, for the log; None where there is none."""
        return None

    def after_step(self, step: Step, progress: float) -> None:
        """Move momentum encoders and queues after the optimizer's update; progress as in `Batch`."""


def map_tensors(function: Callable[[Tensor], Tensor], projections: Projections) -> Projections:
    """The same structure with `function` applied to every tensor, first to last."""
    return tuple(
        function(item) if isinstance(item, Tensor) else Pair(function(item.query), function(item.key))
        for item in projections
    )


def tensors_of(projections: Projections) -> list[Tensor]:
    """Every tensor, first to last."""
    return [tensor for item in projections for tensor in ([item] if isinstance(item, Tensor) else item)]


def loss_of(method: Method, projections: Projections, batch: Batch) -> Step:
    """The loss over all processes: the same on one process as on many, with the same gradient."""
    return method.loss(map_tensors(gather_rows, projections), batch)
