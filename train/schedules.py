"""Schedules: pure functions of how far the training is."""

import math


def warmup_cosine(epoch: float, *, peak: float, epochs: float, warmup_epochs: float) -> float:
    """Learning rate at `epoch` (fractional): linear from 0 to peak over warmup_epochs, then a cosine to 0 at epochs."""
    if epoch < warmup_epochs:
        return peak * epoch / warmup_epochs
    return peak * 0.5 * (1 + math.cos(math.pi * (epoch - warmup_epochs) / (epochs - warmup_epochs)))
