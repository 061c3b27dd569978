"""Momentum Contrast for Unsupervised Visual Representation Learning.

Kaiming He, Haoqi Fan, Yuxin Wu, Saining Xie, Ross Girshick. CVPR 2020, arXiv 1911.05722.
Version 2: Improved Baselines with Momentum Contrastive Learning. Xinlei Chen, Haoqi Fan, Ross Girshick, Kaiming He.
arXiv 2003.04297. "v2+": both directions, as solo-learn names it.

Queries of view 1 meet keys of view 2 from an encoder that follows by momentum; the negatives are keys of earlier
batches, held in a queue. v1 projects by one linear map at temperature 0.07 with a stepped learning rate; v2 by two
layers at 0.2 with stronger augmentation and a cosine.

The loss starts low and rises at first: the random directions that the queue starts with are no rivals to a positive
from the same network. It falls once the queue holds real keys. At log(K + 1) it has collapsed.

Where we differ from the released code (main_moco.py, the CIFAR-10 demo, solo-learn): the momentum encoder moves after
the optimiser's step, not before the next forward pass, which is the same; the cosine and the warm-up go by steps, not
epochs, and start from 0; the queue wraps at any size; version 1 jitters before it greys (the code: after); each data
set's own mean and std.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from train import losses
from train.batchnorm import BatchNormName, shuffles_keys, with_batchnorm
from train.heads import linear, mlp
from train.key_queue import KeyQueue, key_age, stale_negatives
from train.method import Batch, LossRange, Method, Pair, Step
from train.momentum import MomentumEncoder
from train.recipe import Recipe
from train.schedules import cosine_between
from train.small import SMALL
from train.views import ViewPolicy
from zoo.model.encoder import Encoder

V1 = "He et al. Momentum Contrast for Unsupervised Visual Representation Learning. CVPR 2020"
V2 = "Chen et al. Improved Baselines with Momentum Contrastive Learning. arXiv 2003.04297, 2020"


class MoCo(Method):
    """Algorithm 1 of version 1; symmetric: both directions, averaged, each view's keys in a queue of their own."""

    def __init__(
        self, encoder: Encoder, projector: nn.Sequential, *, symmetric: bool, shuffle: bool, queue_size: int,
        projection: int, temperature: float, key_momentum: tuple[float, float],
    ) -> None:  # fmt: skip
        super().__init__(encoder)
        self.projector = projector
        self.key_encoder = MomentumEncoder(encoder, projector, shuffle=shuffle)
        self.queues = nn.ModuleList(KeyQueue(queue_size, projection) for _ in range(1 + symmetric))
        self.queue_size, self.temperature, self.key_momentum = queue_size, temperature, key_momentum

    def project(self, views: tuple[Tensor, ...]) -> tuple[Pair, ...]:
        view1, view2 = views
        directions = [(view1, view2), (view2, view1)][: len(self.queues)]
        return tuple(Pair(self.projector(self.encoder(q)), self.key_encoder(k)) for q, k in directions)

    def loss(self, pairs: tuple[Pair, ...], batch: Batch) -> Step:
        directions = [
            losses.info_nce(q, k, queue.keys, temperature=self.temperature)
            for (q, k), queue in zip(pairs, self.queues, strict=True)
        ]
        accuracy = losses.pretext_accuracy(*pairs[0], self.queues[0].keys)
        return Step(torch.stack(directions).mean(), tuple(k for _, k in pairs), {"pretext_accuracy": accuracy})

    def key_momentum_at(self, progress: float) -> float:
        start, end = self.key_momentum
        return cosine_between(progress, start=start, end=end)

    def after_step(self, step: Step, progress: float) -> None:
        self.key_encoder.follow(momentum=self.key_momentum_at(progress))
        for queue, keys in zip(self.queues, step.keys, strict=True):
            queue.enqueue(keys)  # type: ignore[operator]  # nn.ModuleList does not know its items' type

    def remarks(self, images: int, batch_size: int) -> list[str]:
        age = key_age(self.queue_size, batch_size, key_momentum=self.key_momentum[0])
        return [age, *filter(None, [stale_negatives(self.queue_size, images)])]

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(*losses.info_nce_range(self.queue_size, temperature=self.temperature))


@dataclass(frozen=True, kw_only=True)
class MoCoRecipe(Recipe):
    """MoCo's own numbers."""

    temperature: float = 0.2
    """tau of the softmax over the positive and the queue."""
    queue_size: int = 65536
    """Keys of earlier batches that serve as negatives, K."""
    key_momentum: float = 0.999
    """m at the start, [0, 1]: key <- m key + (1 - m) query."""
    final_key_momentum: float = 0.999
    """m at the end, on half a cosine."""
    hidden: int = 2048
    """Width of the projector's hidden layer; 0 for one linear map (version 1)."""
    projection: int = 128
    """Length of a projected row, P."""
    symmetric: bool = False
    """Both directions, averaged."""
    batchnorm: BatchNormName = "auto"
    """Whose statistics: see train/batchnorm.py."""

    def method(self, encoder: Encoder) -> MoCo:
        head = mlp(encoder.dim, self.hidden, self.projection) if self.hidden else linear(encoder.dim, self.projection)
        method = MoCo(
            encoder, head, symmetric=self.symmetric, shuffle=shuffles_keys(self.batchnorm), queue_size=self.queue_size,
            projection=self.projection, temperature=self.temperature,
            key_momentum=(self.key_momentum, self.final_key_momentum),
        )  # fmt: skip
        return with_batchnorm(method, self.batchnorm)


# --- ImageNet: the official code ---
VIEW_V1 = ViewPolicy(crop_area=(0.2, 1.0), interpolation="bilinear", jitter=1.0, hue=0.4)
VIEW_V2 = ViewPolicy(crop_area=(0.2, 1.0), interpolation="bilinear", blur=0.5)
V1_IN1K = MoCoRecipe(
    name="mocov1-r50-in1k",
    paper=V1,
    source="the authors' code, main_moco.py and README.md; the paper, section 4",
    expects="60.6 % top-1 on ImageNet by linear evaluation (table 1; README: 60.8 +- 0.2, 5 runs)",
    epochs=200,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.03,
    schedule="step",
    weight_decay=1e-4,
    warmup_epochs=0,
    temperature=0.07,
    hidden=0,
    view1=VIEW_V1,
    view2=VIEW_V1,
)
WIDER = [
    replace(
        V1_IN1K,
        name=f"mocov1-{backbone}-in1k",
        expects=f"{top1} % top-1 on ImageNet by linear evaluation (table 1)",
    )
    for backbone, top1 in {"rx50": 63.9, "r50w2": 65.4, "r50w4": 68.6}.items()
]
V2_IN1K = replace(
    V1_IN1K,
    name="mocov2-r50-in1k",
    paper=V2,
    expects="67.5 % top-1 on ImageNet by linear evaluation (table 1; README: 67.5 +- 0.1, 5 runs)",
    schedule="cosine",
    temperature=0.2,
    hidden=2048,
    view1=VIEW_V2,
    view2=VIEW_V2,
)
V2_IN1K_800 = replace(
    V2_IN1K, name="mocov2-r50-in1k-800ep", epochs=800, expects="71.1 % top-1 on ImageNet by linear evaluation (table 2)"
)

# --- CIFAR, version 1: the official demo ---
VIEW_DEMO = ViewPolicy(interpolation="bilinear")
V1_CIFAR10 = MoCoRecipe(
    name="mocov1-r18-cifar10",
    paper=V1,
    source="the authors' CIFAR-10 demo (a notebook beside their code), asymmetric loss",
    expects="82.6 % top-1 on the CIFAR-10 test set by k-NN (k 200, T 0.1) on the 128 projected numbers (the demo)",
    epochs=200,
    batch_size=512,
    optimizer="sgd",
    learning_rate=0.03,
    weight_decay=5e-4,
    warmup_epochs=0,
    temperature=0.1,
    queue_size=4096,
    key_momentum=0.99,
    final_key_momentum=0.99,
    hidden=0,
    view1=VIEW_DEMO,
    view2=VIEW_DEMO,
)
# The demo adds the two directions and decays by 5e-4: the same updates as their mean at twice the rate, half the decay.
V1_CIFAR10_BOTH = replace(
    V1_CIFAR10,
    name="mocov1-r18-cifar10-symmetric",
    source="the authors' CIFAR-10 demo, symmetric loss (the demo: one queue for the keys of both views)",
    expects="85.3 % top-1 on the CIFAR-10 test set by k-NN (k 200, T 0.1) on the 128 projected numbers (the demo)",
    learning_rate=0.06,
    weight_decay=2.5e-4,
    symmetric=True,
)
V1_CIFAR100 = replace(V1_CIFAR10, name="mocov1-r18-cifar100", expects="none published for this recipe")

# --- CIFAR, version 2: the baseline of the dual-temperature paper ---
V2_CIFAR100 = MoCoRecipe(
    name="mocov2-r18-cifar100",
    paper=V2,
    source="Zhang et al. 2022 (dual temperature), their code, bash_files/moco.sh; the queue of the official demo",
    expects="none published with a queue of 4096; see mocov2-r18-cifar100-paper",
    epochs=200,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.03,
    weight_decay=5e-4,
    warmup_epochs=10,
    temperature=0.1,
    queue_size=4096,
    key_momentum=0.99,
    final_key_momentum=0.99,
    hidden=128,
    batchnorm="plain",
)
# K = 65536 > 50,000 images, as the code has it: an older key of each image itself is among its negatives.
V2_CIFAR100_PAPER = replace(
    V2_CIFAR100,
    name="mocov2-r18-cifar100-paper",
    source="Zhang et al. 2022 (dual temperature), the authors' code, bash_files/moco.sh",
    expects="53.28 % top-1 on the CIFAR-100 test set by the online linear probe (dual temperature, table 5)",
    queue_size=65536,
)
V2_CIFAR10 = replace(V2_CIFAR100, name="mocov2-r18-cifar10", expects="none published for this recipe")

V2_OTHERS = [
    replace(
        V2_CIFAR100,
        name=f"mocov2-r18-{dataset}",
        source=f"{V2_CIFAR100.source}; that paper gives one setup for all data sets, the code has no {dataset} script",
        expects="none published with a queue of 4096",
    )
    for dataset in ("svhn", "stl10", "in100")
]

# --- version 2, symmetric: lightly, solo-learn ---
PLUS_LIGHTLY = replace(
    V2_CIFAR10,
    name="mocov2plus-r18-cifar10-lightly",
    source="lightly, its CIFAR-10 benchmark (one queue for the keys of both views; ImageNet's mean and std there)",
    expects="83.8 % top-1 on the CIFAR-10 test set by k-NN (k 200, T 0.1), the best epoch (docs of lightly)",
    batch_size=128,
    learning_rate=0.12,
    warmup_epochs=0,
    hidden=512,
    symmetric=True,
    batchnorm="auto",
    view1=VIEW_DEMO,
    view2=VIEW_DEMO,
)
VIEW_PLUS = ViewPolicy(blur=0.5)
PLUS_CIFAR10 = MoCoRecipe(
    name="mocov2plus-r18-cifar10",
    paper=V2,
    source="solo-learn, scripts/pretrain/cifar/mocov2plus.yaml",
    expects="92.94 % top-1 on the CIFAR-10 test set by the online linear probe (README of solo-learn)",
    epochs=1000,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.3,
    weight_decay=1e-4,
    warmup_epochs=10,
    queue_size=32768,
    key_momentum=0.99,
    final_key_momentum=0.999,
    projection=256,
    symmetric=True,
    batchnorm="sync",
    view1=VIEW_PLUS,
    view2=VIEW_PLUS,
)
PLUS_CIFAR100 = replace(
    PLUS_CIFAR10,
    name="mocov2plus-r18-cifar100",
    expects="69.89 % top-1 on the CIFAR-100 test set by the online linear probe (README of solo-learn)",
)
PLUS_IN100 = replace(
    PLUS_CIFAR10,
    name="mocov2plus-r18-in100",
    source="solo-learn, scripts/pretrain/imagenet-100/mocov2plus.yaml",
    expects="78.20 % online, 79.28 % offline top-1 on ImageNet-100 by linear probes (README of solo-learn)",
    epochs=400,
    queue_size=65536,
)

PLUS_IN1K = replace(
    PLUS_IN100,
    name="mocov2plus-r50-in1k",
    source="solo-learn, scripts/pretrain/imagenet/mocov2plus.yaml and README (100 epochs)",
    expects="62.61 % online, 66.84 % offline top-1 on ImageNet by linear probes (README of solo-learn)",
    epochs=100,
    batch_size=128,
    weight_decay=3e-5,
)

# --- for a CPU: split statistics and shuffled keys, as one process needs them ---
V2_SMALL = replace(V2_CIFAR100, name="mocov2-r20-cifar100", batchnorm="auto", **SMALL | {"learning_rate": 0.24})
PLUS_SMALL = replace(V2_SMALL, name="mocov2plus-r20-cifar100", symmetric=True)

RECIPES = [
    V1_IN1K, *WIDER, V2_IN1K, V2_IN1K_800, V1_CIFAR10, V1_CIFAR100, V2_CIFAR100, V2_CIFAR100_PAPER, V2_CIFAR10,
    PLUS_CIFAR10, PLUS_CIFAR100, PLUS_IN100, PLUS_IN1K, V1_CIFAR10_BOTH, *V2_OTHERS, PLUS_LIGHTLY, V2_SMALL, PLUS_SMALL,
]  # fmt: skip
