"""A Simple Framework for Contrastive Learning of Visual Representations.

Ting Chen, Simon Kornblith, Mohammad Norouzi, Geoffrey Hinton. ICML 2020, arXiv 2002.05709.

NT-Xent over the 2B views of a batch: every other view is a negative. Both views go through the encoder in one batch,
so batch normalisation sees all 2B, as in the released code. On several processes its statistics are each process's own.

Where we differ from the released code (tf2/): the loss is the mean over all 2B anchors, as in the paper (the code adds
the two directions; LARS undoes that factor of 2 up to weight decay, but not for biases and norms); residual branches
start at full scale with He initialisation, fan-out (the code: gamma of each block's last norm starts at 0, fan-in);
each data set's own mean and std (the code: none).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from train import losses
from train.gather import gather_rows
from train.heads import simclr_head
from train.method import LossRange, Method, Step
from train.recipe import Recipe
from zoo.encoder import Encoder

PAPER = "Chen et al. A Simple Framework for Contrastive Learning of Visual Representations. ICML 2020"


class SimCLR(Method):
    """NT-Xent (equation 1) over 2B projected views."""

    def __init__(self, encoder: Encoder, *, layers: int, projection: int, temperature: float) -> None:
        super().__init__(encoder)
        self.projector = simclr_head(encoder.dim, projection, layers=layers)
        self.temperature = temperature

    def forward(self, view1: Tensor, view2: Tensor) -> Step:
        z1, z2 = self.projector(self.encoder(torch.cat([view1, view2]))).chunk(2)  # (B, P) each
        z = torch.cat([gather_rows(z1), gather_rows(z2)])  # (2N, P)
        return Step(losses.nt_xent(z, temperature=self.temperature))

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.nt_xent_range(batch_size, temperature=self.temperature))


@dataclass(frozen=True, kw_only=True)
class SimCLRRecipe(Recipe):
    """SimCLR's own numbers."""

    temperature: float = 0.5
    """tau of the softmax over the 2B - 1 candidates."""
    layers: int = 3
    """Linear layers of the projector."""
    projection: int = 128
    """Length of a projected row, P."""

    def method(self, encoder: Encoder) -> SimCLR:
        return SimCLR(encoder, layers=self.layers, projection=self.projection, temperature=self.temperature)


CIFAR10 = SimCLRRecipe(
    name="simclr-r18-cifar10",
    paper=PAPER,
    source="the authors' code, README.md (CIFAR-10) and tf2/run.py",
    expects="about 91 % top-1 on the CIFAR-10 test set by linear evaluation (README of the authors' code)",
    epochs=1000,
    batch_size=512,
    optimizer="lars",
    learning_rate=1.0,
    weight_decay=1e-4,
    warmup_epochs=10,
)
CIFAR100 = replace(CIFAR10, name="simclr-r18-cifar100", expects="none published for this recipe")

RECIPES = [CIFAR10, CIFAR100]
