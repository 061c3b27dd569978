"""What a protocol is given, and what it answers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eval.features import Features, PixelEncoder
from eval.metrics import grade, top_k
from zoo.images.dataset import Metric
from zoo.images.image_set import ImageSet


@dataclass(frozen=True)
class Task:
    """One encoder on one data set. The labels of `queries` decide nothing; they only score."""

    encoder: PixelEncoder
    train: ImageSet
    test: ImageSet
    bank: Features  # of train
    queries: Features  # of test
    classes: int  # C; labels are 0 to C - 1, or (n, C) where an image may be of several
    device: str | torch.device = "cpu"
    finetune_steps: int = 5000  # of each training; a smaller number is another protocol, and its rows say so
    metric: Metric = "top-1 accuracy"  # that the data set uses

    def grade(self, predicted: np.ndarray) -> tuple[float, tuple[float, float]]:
        """The metric of what was predicted for `queries`, [0, 1], and its 95 % interval; see `eval.metrics.grade`."""
        return grade(predicted, self.queries.labels, metric=self.metric, classes=self.classes)

    def top_5(self, scores: np.ndarray) -> dict[str, float]:
        """The column of the top-5 accuracy of scores (n_test, C), of 0 for a class without a chance; none of few."""
        return {"top-5": top_k(scores, self.queries.labels, k=5)} if self.classes > 5 else {}


@dataclass(frozen=True)
class Outcome:
    """One number, as a protocol answers it; `eval.measure` makes a `Result` of it."""

    name: str  # short, unique among the outcomes of a task: "knn", "fewshot-5"
    protocol: str  # all that has to be equal for two numbers to be compared
    metric: str
    value: float
    interval: tuple[float, float] | None = None  # 95 %
    predicted: np.ndarray | None = None  # (n_test,) classes, or scores (n_test, C); to compare two encoders
    unit: str = "share"  # of a number in [0, 1] that is shown in percent
    columns: dict[str, float] = field(default_factory=dict)  # further values of the same unit, by their heading
    notes: tuple[str, ...] = ()  # sentences: what a reader has to know to trust the number
    details: tuple[str, ...] = ()  # sentences for the report alone
    extras: dict[str, Any] = field(default_factory=dict)  # hyper-parameters selected, further metrics
