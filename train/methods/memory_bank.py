"""Unsupervised Feature Learning via Non-Parametric Instance Discrimination.

Zhirong Wu, Yuanjun Xiong, Stella X. Yu, Dahua Lin. CVPR 2018, arXiv 1805.01978. The memory bank that MoCo compares
with (He et al. 2020, section 3.1, figure 2b).

Every image of the data set has a row in a bank, a running mean of its own past embeddings. A query meets the row of its
image, and the rows of images drawn at random. There is one encoder and one view; an image's row is as old as the last
epoch, and the bank starts with random directions, so the first epoch learns little.

Where we differ from the released code: the softmax over the positive and the drawn rows (InfoNCE, as MoCo's comparison
and the authors' later model have it) instead of noise-contrastive estimation with a fixed partition function; one draw
a step for all queries (the code: one each; either way an image is its own negative K / n times in the mean); no
proximal regularisation, as in the code; rates fall at 60 and 80 % of the epochs (the code: on ImageNet so, on CIFAR at
80, 120 and 160 of 200); the jitter comes before the greying (the code: after); each data set's own mean and std.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from train import losses
from train.batchnorm import hashes
from train.heads import linear
from train.method import Batch, LossRange, Method, Step
from train.recipe import Recipe
from train.views import ViewPolicy
from zoo.model.encoder import Encoder

PAPER = "Wu et al. Unsupervised Feature Learning via Non-Parametric Instance Discrimination. CVPR 2018"


class MemoryBank(Method):
    """InfoNCE against a bank with one row an image; a row follows its image's embeddings by momentum."""

    bank: Tensor  # (n, P) unit rows, one an image
    draws: Tensor  # () int64, how often negatives have been drawn
    _ddp_params_and_buffers_to_ignore = ("bank",)  # the same on all processes without torch sending it every step

    def __init__(
        self, encoder: Encoder, *, projection: int, negatives: int, temperature: float, row_momentum: float
    ) -> None:
        super().__init__(encoder)
        self.projector, self.projection = linear(encoder.dim, projection), projection
        self.negatives, self.temperature, self.row_momentum = negatives, temperature, row_momentum
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def prepare(self, images: int) -> None:
        self.register_buffer("bank", F.normalize(torch.randn(images, self.projection), dim=1))

    def project(self, views: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (self.projector(self.encoder(views[0])),)

    def loss(self, projections: tuple[Tensor], batch: Batch) -> Step:
        (q,) = projections
        drawn = hashes(self.negatives, self.draws) % len(self.bank)  # (K,) uniform, with repetition
        positive, negatives = self.bank[batch.indices], self.bank[drawn]
        loss = losses.info_nce(q, positive, negatives, temperature=self.temperature)
        return Step(
            loss, (q.detach(), batch.indices), {"pretext_accuracy": losses.pretext_accuracy(q, positive, negatives)}
        )

    @torch.no_grad()
    def after_step(self, step: Step, progress: float) -> None:
        embeddings, indices = step.keys
        new = F.normalize(embeddings.to(self.bank.dtype), dim=1)
        self.bank[indices] = F.normalize(torch.lerp(new, self.bank[indices], self.row_momentum), dim=1)
        self.draws.add_(1)

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.info_nce_range(self.negatives, temperature=self.temperature))


@dataclass(frozen=True, kw_only=True)
class MemoryBankRecipe(Recipe):
    """The memory bank's own numbers."""

    temperature: float = 0.07
    """tau of the softmax over the positive and the negatives."""
    negatives: int = 4096
    """Rows of the bank that are drawn a step, K."""
    row_momentum: float = 0.5
    """m, [0, 1): row <- m row + (1 - m) embedding, scaled to length 1."""
    projection: int = 128
    """Length of a projected row, P."""

    def method(self, encoder: Encoder) -> MemoryBank:
        return MemoryBank(
            encoder, projection=self.projection, negatives=self.negatives, temperature=self.temperature,
            row_momentum=self.row_momentum,
        )  # fmt: skip


VIEW = ViewPolicy(
    crop_area=(0.2, 1.0), interpolation="bilinear", jitter=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4
)
IN1K = MemoryBankRecipe(
    name="membank-r50-in1k",
    paper=PAPER,
    source="the authors' code, main.py and README.md; 65,536 negatives as in He et al. 2020, figure 3",
    expects="a point of figure 3 of He et al. 2020, not available as text",
    epochs=200,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.03,
    schedule="step",
    weight_decay=1e-4,
    warmup_epochs=0,
    negatives=65536,
    view1=VIEW,
    view2=VIEW,
)
CIFAR10 = replace(
    IN1K,
    name="membank-r18-cifar10",
    source="the authors' code, cifar.py (rate 0.03 at batch 128) and README.md",
    expects="none published for this loss",
    batch_size=128,
    learning_rate=0.06,
    weight_decay=5e-4,
    temperature=0.1,
    negatives=4096,
)
CIFAR100 = replace(CIFAR10, name="membank-r18-cifar100")

RECIPES = [IN1K, CIFAR10, CIFAR100]
