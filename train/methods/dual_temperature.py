"""Dual Temperature Helps Contrastive Learning Without Many Negative Samples.

Chaoning Zhang, Kang Zhang, Trung X. Pham, Axi Niu, Zhinan Qiao, Chang D. Yoo, In So Kweon. CVPR 2022,
arXiv 2203.17248.

SimCo has neither queue nor momentum encoder: two views, one encoder, the loss of equation 9 in both directions with the
gradient on both sides. Each view goes through the encoder by itself, as in the authors' code (their batch
normalisation never sees both views at once).

Where we differ from the released code: two absolute temperatures (the code has tau_beta = dt_m tau_alpha); weights in
log space (the code subtracts 1 - p); a 3x3 stem with padding 1 (the code: padding 2); warm-up and cosine per step from
0 (the code: both per epoch, the warm-up from 0.003); float32 unless accelerate is told otherwise (the code: fp16); no
momentum encoder (the code keeps one, unused); each data set's own mean and std (the code: CIFAR-10's everywhere).
"""

from dataclasses import dataclass, replace

from torch import Tensor

from train import losses
from train.gather import gather_rows
from train.heads import mlp
from train.method import LossRange, Method, Step
from train.recipe import Recipe
from train.views import ViewPolicy
from zoo.encoder import Encoder

PAPER = "Zhang et al. Dual Temperature Helps Contrastive Learning Without Many Negative Samples. CVPR 2022"


class SimCo(Method):
    """Equation 9 in both directions, averaged; keys are the other view's queries."""

    def __init__(
        self, encoder: Encoder, *, hidden: int, projection: int, intra_temperature: float, inter_temperature: float
    ) -> None:
        super().__init__(encoder)
        self.projector = mlp(encoder.dim, hidden, projection)
        self.temperatures = {"intra_temperature": intra_temperature, "inter_temperature": inter_temperature}

    def forward(self, view1: Tensor, view2: Tensor) -> Step:
        q = gather_rows(self.projector(self.encoder(view1)))  # (N, P)
        k = gather_rows(self.projector(self.encoder(view2)))  # (N, P)
        forth = losses.dual_temperature(q, k, **self.temperatures)
        back = losses.dual_temperature(k, q, **self.temperatures)
        return Step((forth + back) / 2)

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.dual_temperature_range(batch_size, **self.temperatures))


@dataclass(frozen=True, kw_only=True)
class SimCoRecipe(Recipe):
    """SimCo's own numbers."""

    intra_temperature: float = 0.1
    """tau_alpha, of the softmax over an anchor's candidates."""
    inter_temperature: float = 1.0
    """tau_beta, of the weight between anchors; inf weighs all alike."""
    hidden: int = 128
    """Width of the projector's hidden layer."""
    projection: int = 128
    """Length of a projected row, P."""

    def method(self, encoder: Encoder) -> SimCo:
        return SimCo(
            encoder, hidden=self.hidden, projection=self.projection,
            intra_temperature=self.intra_temperature, inter_temperature=self.inter_temperature,
        )  # fmt: skip


CIFAR100 = SimCoRecipe(
    name="simco-r18-cifar100",
    paper=PAPER,
    source="the authors' code, bash_files/simco.sh and solo/methods/base.py",
    expects="58.35 % top-1 on the CIFAR-100 test set by the online linear probe (table 5, batch 256)",
    epochs=200,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.03,
    weight_decay=5e-4,
    warmup_epochs=10,
)
CIFAR10 = replace(CIFAR100, name="simco-r18-cifar10", expects="a cell of table 8, not available as text")
# 8x8 grey digits: no flip (a mirrored 2 is no 2), no colour but brightness and contrast, gentle crops.
STROKES = ViewPolicy(crop_area=(0.3, 1.0), flip=0.0, saturation=0.0, hue=0.0, grey=0.0)
DIGITS = replace(
    CIFAR100,
    name="simco-r20-digits",
    source="ours, chosen by k-NN on held-out train images; the loss and its temperatures as in the paper",
    expects="none published",
    epochs=80,
    batch_size=128,
    learning_rate=0.12,
    warmup_epochs=5,
    view1=STROKES,
    view2=STROKES,
)

RECIPES = [CIFAR100, CIFAR10, DIGITS]
