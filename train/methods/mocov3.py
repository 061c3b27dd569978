"""An Empirical Study of Training Self-Supervised Vision Transformers.

Xinlei Chen, Saining Xie, Kaiming He. ICCV 2021, arXiv 2104.02057.

No queue: a large batch holds the negatives. A predictor stands behind the projector, keys come from a momentum encoder
whose momentum goes to 1 on a cosine, and the loss is taken in both directions. A vision transformer keeps its random
patch projection frozen (section 4.2), which is what makes its training stable.

Where we differ from the released code: the momentum encoder moves after the optimiser's step, not before the next key
pass, which is the same; queries are gathered, too, so that every process has the loss of the whole batch; MoCo v3 on
small images has no official recipe (solo-learn's, and one of ours for a ViT).
"""

from dataclasses import dataclass, replace
from typing import Literal

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from train import losses
from train.batchnorm import with_batchnorm
from train.heads import mocov3_head
from train.method import Batch, LossRange, Method, Pair, Step
from train.momentum import MomentumEncoder
from train.recipe import Recipe
from train.schedules import cosine_between
from train.views import ViewPolicy
from zoo.model.encoder import Encoder
from zoo.model.resnet import zero_init_residual
from zoo.model.vit import start_as_mocov3

PAPER = "Chen et al. An Empirical Study of Training Self-Supervised Vision Transformers. ICCV 2021"


class MoCoV3(Method):
    """Algorithm 1."""

    def __init__(
        self, encoder: Encoder, *, hidden: int, projection: int, temperature: float, key_momentum: float
    ) -> None:
        vit = isinstance(encoder.backbone, VisionTransformer)
        super().__init__(encoder)
        self.projector = mocov3_head(encoder.dim, hidden, projection, layers=3 if vit else 2, last_norm=True)
        self.key_encoder = MomentumEncoder(encoder, self.projector)
        self.predictor = mocov3_head(projection, hidden, projection, layers=2, last_norm=vit)
        self.temperature, self.key_momentum = temperature, key_momentum

    def project(self, views: tuple[Tensor, ...]) -> tuple[Pair, Pair]:
        view1, view2 = views
        forth = Pair(self.predictor(self.projector(self.encoder(view1))), self.key_encoder(view2))
        back = Pair(self.predictor(self.projector(self.encoder(view2))), self.key_encoder(view1))
        return forth, back

    def loss(self, pairs: tuple[Pair, Pair], batch: Batch) -> Step:
        (q1, k2), (q2, k1) = pairs
        loss = losses.mocov3(q1, k1, q2, k2, temperature=self.temperature)
        return Step(loss, metrics={"pretext_accuracy": losses.pretext_accuracy(q1, k2)})

    def key_momentum_at(self, progress: float) -> float:
        return cosine_between(progress, start=self.key_momentum, end=1.0)

    def after_step(self, step: Step, progress: float) -> None:
        self.key_encoder.follow(momentum=self.key_momentum_at(progress))

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.mocov3_range(batch_size, temperature=self.temperature))


@dataclass(frozen=True, kw_only=True)
class MoCoV3Recipe(Recipe):
    """MoCo v3's own numbers."""

    temperature: float = 0.2
    """tau of the softmax over the batch."""
    key_momentum: float = 0.99
    """m at the start, [0, 1]; it ends at 1."""
    hidden: int = 4096
    """Width of the hidden layers of projector and predictor."""
    projection: int = 256
    """Length of a projected row, P."""
    zero_init: bool = True
    """Residual branches of a ResNet start at 0."""
    batchnorm: Literal["sync", "plain"] = "sync"
    """Whose statistics: of all processes, or of one."""

    def method(self, encoder: Encoder) -> MoCoV3:
        if isinstance(encoder.backbone, VisionTransformer):
            start_as_mocov3(encoder.backbone)
        elif self.zero_init:
            zero_init_residual(encoder.backbone)
        method = MoCoV3(
            encoder, hidden=self.hidden, projection=self.projection, temperature=self.temperature,
            key_momentum=self.key_momentum,
        )  # fmt: skip
        return with_batchnorm(method, self.batchnorm)


# BYOL's two augmentations: blur on nearly the first view alone, solarize on the second.
VIEW1 = ViewPolicy(crop_area=(0.2, 1.0), interpolation="bilinear", saturation=0.2, blur=1.0)
VIEW2 = replace(VIEW1, blur=0.1, solarize=0.2)
WIDE1, WIDE2 = (replace(view, crop_area=(0.08, 1.0)) for view in (VIEW1, VIEW2))  # of ViTs
SOLO1, SOLO2 = (replace(view, interpolation="bicubic") for view in (WIDE1, WIDE2))  # solo-learn's
SMALL1, SMALL2 = (replace(view, blur=0.0) for view in (SOLO1, SOLO2))

# --- ImageNet: the official code ---
R50 = MoCoV3Recipe(
    name="mocov3-r50-in1k",
    paper=PAPER,
    source="the authors' code, CONFIG.md and main_moco.py",
    expects="68.9 % top-1 on ImageNet by linear evaluation (README of the authors' code)",
    epochs=100,
    batch_size=4096,
    optimizer="lars_mocov3",
    learning_rate=0.6,
    weight_decay=1e-6,
    warmup_epochs=10,
    temperature=1.0,
    view1=VIEW1,
    view2=VIEW2,
)
R50_300 = replace(
    R50,
    name="mocov3-r50-in1k-300ep",
    expects="72.8 % top-1 on ImageNet by linear evaluation (README of the authors' code)",
    epochs=300,
    learning_rate=0.3,
)
R50_1000 = replace(
    R50_300,
    name="mocov3-r50-in1k-1000ep",
    expects="74.6 % top-1 on ImageNet by linear evaluation (README of the authors' code)",
    epochs=1000,
    weight_decay=1.5e-6,
    key_momentum=0.996,
)
VIT_S = MoCoV3Recipe(
    name="mocov3-vits16-in1k",
    paper=PAPER,
    source="the authors' code, CONFIG.md and main_moco.py",
    expects="73.2 % top-1 on ImageNet by linear evaluation (README of the authors' code; 73.4 in the paper)",
    epochs=300,
    batch_size=4096,
    optimizer="adamw",
    learning_rate=1.5e-4,
    weight_decay=0.1,
    warmup_epochs=40,
    view1=WIDE1,
    view2=WIDE2,
)
VIT_B = replace(
    VIT_S,
    name="mocov3-vitb16-in1k",
    expects="76.7 % top-1 on ImageNet by linear evaluation (README of the authors' code; the paper)",
)

# --- small images ---
CIFAR10 = MoCoV3Recipe(
    name="mocov3-r18-cifar10",
    paper=PAPER,
    source="solo-learn, scripts/pretrain/cifar/mocov3.yaml",
    expects="93.10 % top-1 on the CIFAR-10 test set by the online linear probe (README of solo-learn)",
    epochs=1000,
    batch_size=256,
    optimizer="lars_solo",
    learning_rate=0.3,
    weight_decay=1e-6,
    warmup_epochs=10,
    zero_init=False,
    view1=SMALL1,
    view2=SMALL2,
)
CIFAR100 = replace(
    CIFAR10,
    name="mocov3-r18-cifar100",
    expects="68.83 % top-1 on the CIFAR-100 test set by the online linear probe (README of solo-learn)",
)
IN100 = replace(
    CIFAR10,
    name="mocov3-r18-in100",
    source="solo-learn, scripts/pretrain/imagenet-100/mocov3.yaml",
    expects="80.36 % top-1 on ImageNet-100 by online and offline linear probes (README of solo-learn)",
    epochs=400,
    view1=SOLO1,
    view2=SOLO2,
)
IN100_R50 = replace(
    IN100,
    name="mocov3-r50-in100",
    source="solo-learn, README; the numbers of its ResNet-18 script",
    expects="85.48 % online, 84.58 % offline top-1 on ImageNet-100 by linear probes (README of solo-learn)",
)
IN100_VIT = replace(
    VIT_S,
    name="mocov3-vits16-in100",
    source="solo-learn, scripts/pretrain/imagenet-100/mocov3_vit.yaml (there the patch projection learns, too)",
    expects="none published",
    epochs=400,
    batch_size=1024,
    learning_rate=3e-4,
    warmup_epochs=10,
    view1=SOLO1,
    view2=SOLO2,
)
VIT_CIFAR10 = replace(
    VIT_S,
    name="mocov3-vitt4-cifar10",
    source="ours: the numbers of ViT-S on ImageNet, the views of solo-learn's CIFAR recipe, batch 256",
    expects="none published",
    batch_size=256,
    view1=SMALL1,
    view2=SMALL2,
)
VIT_CIFAR100 = replace(VIT_CIFAR10, name="mocov3-vitt4-cifar100")

RECIPES = [
    R50, R50_300, R50_1000, VIT_S, VIT_B, CIFAR10, CIFAR100, IN100, IN100_R50, IN100_VIT, VIT_CIFAR10, VIT_CIFAR100,
]  # fmt: skip
