"""A Simple Framework for Contrastive Learning of Visual Representations.

Ting Chen, Simon Kornblith, Mohammad Norouzi, Geoffrey Hinton. ICML 2020, arXiv 2002.05709.

NT-Xent over the 2B views of a batch: every other view is a negative. Both views go through the encoder in one batch,
so batch normalisation sees all 2B, and those of all processes, as in the released code.

Where we differ from the released code (tf2/): the loss is the mean over all 2B anchors, as in the paper (the code adds
the two directions; LARS undoes that factor of 2 up to weight decay, but not for biases and norms); convolutions
start by He's rule over the fan-out (the code: variance 1 / fan-in); each data set's own mean and std (the code: none).
From solo-learn's: there each view goes through the encoder by itself.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from train import losses
from train.batchnorm import with_batchnorm
from train.heads import mlp, simclr_head
from train.method import Batch, LossRange, Method, Pair, Step
from train.recipe import Recipe
from train.small import SMALL
from train.views import ViewPolicy
from zoo.model.encoder import Encoder
from zoo.model.resnet import zero_init_residual

PAPER = "Chen et al. A Simple Framework for Contrastive Learning of Visual Representations. ICML 2020"


class SimCLR(Method):
    """NT-Xent (equation 1) over 2B projected views."""

    def __init__(self, encoder: Encoder, projector: nn.Module, *, temperature: float) -> None:
        super().__init__(encoder)
        self.projector, self.temperature = projector, temperature

    def project(self, views: tuple[Tensor, ...]) -> tuple[Pair]:
        z1, z2 = self.projector(self.encoder(torch.cat(views))).chunk(2)
        return (Pair(z1, z2),)

    def loss(self, pairs: tuple[Pair], batch: Batch) -> Step:
        ((z1, z2),) = pairs
        loss = losses.nt_xent(torch.cat([z1, z2]), temperature=self.temperature)
        return Step(loss, metrics={"pretext_accuracy": losses.pretext_accuracy(z1, z2)})

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.nt_xent_range(batch_size, temperature=self.temperature))


@dataclass(frozen=True, kw_only=True)
class SimCLRRecipe(Recipe):
    """SimCLR's own numbers."""

    temperature: float = 0.5
    """tau of the softmax over the 2B - 1 candidates."""
    layers: int = 3
    """Linear layers of the released projector, each with batch normalisation; its hidden width is the features'."""
    hidden: int = 0
    """Width of the hidden layer of a plain two-layer projector instead (solo-learn); 0 for the released one."""
    projection: int = 128
    """Length of a projected row, P."""
    zero_init: bool = True
    """Residual branches of a ResNet start at 0."""
    batchnorm: Literal["sync", "plain"] = "sync"
    """Whose statistics: of all processes, or of one."""

    def method(self, encoder: Encoder) -> SimCLR:
        if self.zero_init:
            zero_init_residual(encoder.backbone)
        released = simclr_head(encoder.dim, self.projection, layers=self.layers)
        head = mlp(encoder.dim, self.hidden, self.projection) if self.hidden else released
        return with_batchnorm(SimCLR(encoder, head, temperature=self.temperature), self.batchnorm)


# --- the authors' code ---
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
STRONG = ViewPolicy(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)
IN1K = replace(
    CIFAR10,
    name="simclr-r50-in1k",
    source="the paper, section 2 and appendix B.6; the authors' code, tf2/run.py",
    expects="69.1 % top-1 on ImageNet by linear evaluation (README of the authors' code)",
    batch_size=4096,
    learning_rate=0.3,
    weight_decay=1e-6,
    temperature=0.1,
    layers=2,
    view1=STRONG,
    view2=STRONG,
)
WIDER = [
    replace(
        IN1K,
        name=f"simclr-{backbone}-in1k",
        expects=f"{top1} % top-1 on ImageNet by linear evaluation (README of the authors' code)",
    )
    for backbone, top1 in {"r50w2": 74.2, "r50w4": 76.6}.items()
]

# --- solo-learn ---
SOLO_CIFAR10 = replace(
    CIFAR10,
    name="simclr-r18-cifar10-solo",
    source="solo-learn, scripts/pretrain/cifar/simclr.yaml",
    expects="90.74 % top-1 on the CIFAR-10 test set by the online linear probe (README of solo-learn)",
    batch_size=256,
    optimizer="lars_solo",
    learning_rate=0.4,
    temperature=0.2,
    hidden=2048,
    projection=256,
    zero_init=False,
    view1=STRONG,
    view2=STRONG,
)
SOLO_CIFAR100 = replace(
    SOLO_CIFAR10,
    name="simclr-r18-cifar100-solo",
    expects="65.78 % top-1 on the CIFAR-100 test set by the online linear probe (README of solo-learn)",
)
IN100 = replace(
    SOLO_CIFAR10,
    name="simclr-r18-in100",
    source="solo-learn, scripts/pretrain/imagenet-100/simclr.yaml",
    expects="77.64 % top-1 on ImageNet-100 by the online linear probe (README of solo-learn)",
    epochs=400,
    learning_rate=0.3,
    hidden=4096,
    projection=512,
)

SMALL_CIFAR100 = replace(SOLO_CIFAR100, name="simclr-r20-cifar100", **SMALL | {"learning_rate": 0.24})

RECIPES = [CIFAR10, CIFAR100, IN1K, *WIDER, SOLO_CIFAR10, SOLO_CIFAR100, IN100, SMALL_CIFAR100]
