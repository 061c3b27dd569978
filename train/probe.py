"""The online linear probe: a classifier that learns from labels beside the encoder, which learns nothing from it.

The accuracies of the dual-temperature paper (tables 1, 3, 5) and of solo-learn are of such a probe, so they are
reported as online, apart from those of `eval.score`, where the encoder is frozen.

It could be a loss on detached features beside the method's. It is not: its weights then belong to the method's
optimizer, with that one's weight decay and rate (LARS, AdamW), and published online numbers are of SGD at its own rate.
"""

from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.features import Features
from eval.metrics import accuracy
from train.gather import gather_rows, world_size
from train.method import Method
from train.monitor import held_out
from zoo.images.dataset import dataset_row
from zoo.images.image_set import ImageSet
from zoo.model.encoder import Encoder

RATE = 0.3  # peak learning rate, whatever the batch size, as in the dual-temperature code; it follows the encoder's
MOMENTUM = 0.9


@final
class OnlineProbe(nn.Module):
    """Logistic regression on the features that training computes anyway, of the augmented views, detached.

    Weights and momenta are buffers: they travel in the checkpoint of the method that the probe is a child of, and no
    optimiser, no gradient norm and no saved encoder sees them. They start at 0, so no random number is drawn.
    """

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    weight_velocity: Tensor  # (C, D)
    bias_velocity: Tensor  # (C,)

    def __init__(self, encoder: Encoder, labels: np.ndarray, classes: int) -> None:
        """labels (n,) of the data set's images, -1 where there is none to learn."""
        super().__init__()
        self.labels = labels
        for name, shape in {"weight": (classes, encoder.dim), "bias": (classes,)}.items():
            self.register_buffer(name, torch.zeros(shape))
            self.register_buffer(f"{name}_velocity", torch.zeros(shape))
        self._features: list[Tensor] = []
        encoder.register_forward_hook(self._keep)

    def _keep(self, encoder: nn.Module, _: object, features: Tensor) -> None:
        if encoder.training and torch.is_grad_enabled():  # neither monitoring, nor a chunk's first pass
            self._features.append(features.detach())

    def forward(self, features: Tensor) -> Tensor:
        """(n, D) -> logits (n, C)."""
        return F.linear(features.to(self.weight.dtype), self.weight, self.bias)

    @torch.no_grad()
    def learn(self, images: np.ndarray, *, rate: float, chunk: int) -> None:
        """One step of SGD with momentum on the features of the step that has just been made.

        images (N,): indices of those of all processes. rate: [0, 1], share of the peak rate. chunk: images that went
        through the encoder at a time.
        """
        features, self._features = gather_rows(torch.cat(self._features)).to(self.weight.dtype), []  # (V N, D)
        labels = _in_order_of(self.labels[images], views=len(features) // len(images), chunk=chunk)  # (V N,)
        labels = labels.to(features.device)
        known = labels >= 0
        error = self(features).softmax(1) - F.one_hot(labels.clamp_min(0), len(self.bias))  # (V N, C)
        error = error * known[:, None] / known.sum().clamp_min(1)  # the gradient of the mean cross entropy
        for value, velocity, gradient in (
            (self.weight, self.weight_velocity, error.T @ features),
            (self.bias, self.bias_velocity, error.sum(0)),
        ):
            value.sub_(velocity.mul_(MOMENTUM).add_(gradient), alpha=rate * RATE)

    def accuracy(self, features: Features) -> float:
        """Share [0, 1] of the features whose class the probe names."""
        logits = self(torch.from_numpy(features.rows).to(self.weight.device))
        return accuracy(logits.argmax(1).cpu().numpy(), features.labels)


def _in_order_of(labels: np.ndarray, *, views: int, chunk: int) -> Tensor:
    """labels (N,) -> (V N,), as features come: process by process, chunk by chunk, view by view."""
    return torch.from_numpy(labels).view(world_size(), -1, 1, chunk).expand(-1, -1, views, -1).flatten()


def probe_beside(method: Method, images: ImageSet, monitored: np.ndarray) -> OnlineProbe | None:
    """A probe that learns with `method`, as its child `probe`, if there are labels that are not held out.

    monitored: indices of the images that the encoder is monitored with; a sixth of those with labels is held out.
    """
    if images.labels.ndim > 1:
        return None
    labels, labelled = images.labels.copy(), monitored[images.labels[monitored] >= 0]
    labels[labelled[held_out(len(labelled))]] = -1
    if labels.max() < 0:
        return None
    classes = max(dataset_row(images.name).classes, int(images.labels.max()) + 1)
    probe = OnlineProbe(method.encoder, labels, classes)
    method.add_module("probe", probe)
    return probe
