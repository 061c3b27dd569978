"""Schedules: pure functions of how far the training is."""

import math
from typing import Literal

ScheduleName = Literal["cosine", "step"]


def warmup_cosine(epoch: float, *, peak: float, epochs: float, warmup_epochs: float) -> float:
    """Learning rate at `epoch` (fractional): linear from 0 to peak over warmup_epochs, then a cosine to 0 at epochs."""
    if epoch < warmup_epochs:
        return peak * epoch / warmup_epochs
    return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup_epochs) / (epochs - warmup_epochs)))


def warmup_step(epoch: float, *, peak: float, epochs: float, warmup_epochs: float) -> float:
    """Learning rate at `epoch` (fractional): linear from 0 over warmup_epochs, peak, a tenth from 60 % of the epochs
    on, a hundredth from 80 % on (He et al. 2020, MoCo, section 4: epochs 120 and 160 of 200)."""
    if epoch < warmup_epochs:
        return peak * epoch / warmup_epochs
    drops = (epoch >= 0.6 * epochs) + (epoch >= 0.8 * epochs)
    return peak * 0.1**drops


SCHEDULES = {"cosine": warmup_cosine, "step": warmup_step}


def cosine_between(progress: float, *, start: float, end: float) -> float:
    """Key momentum at `progress` in [0, 1]: from start to end on half a cosine, as BYOL and MoCo v3."""
    return end - (end - start) * 0.5 * (1 + math.cos(math.pi * progress))
