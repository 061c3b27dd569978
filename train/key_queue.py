"""The dictionary as a queue: keys of earlier batches (He et al. 2020, MoCo, section 3.2)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class KeyQueue(nn.Module):
    """The last `size` keys, unit rows, in buffers that a checkpoint keeps. It starts with random directions."""

    keys: Tensor  # (K, P) unit rows
    oldest: Tensor  # () int64, the index of the key that is replaced next

    def __init__(self, size: int, width: int) -> None:
        if size < 1:
            raise ValueError(f"queue_size = {size}; at least 1 key is needed as a negative")
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, width), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys by keys (N, P), in their order, for any N and K; scaled to unit rows."""
        size, n = len(self.keys), len(keys)
        skipped = max(0, n - size)  # of more keys than places only the last ones stay
        places = (self.oldest + torch.arange(skipped, n, device=keys.device)) % size
        self.keys[places] = F.normalize(keys[skipped:].to(self.keys.dtype), dim=1)
        self.oldest.copy_((self.oldest + n) % size)


def key_age(queue_size: int, batch_size: int, *, key_momentum: float) -> str:
    """One line on how old the queue's keys are, in steps.

    A key that came j steps ago was made by an encoder m / (1 - m) steps behind (under steady drift): j + m / (1 - m).
    """
    if key_momentum >= 1:
        return "the queue's keys come from an encoder that never moves (key momentum 1)"
    lag, oldest = key_momentum / (1 - key_momentum), math.ceil(queue_size / batch_size)
    return (
        f"the queue's keys are {1 + lag:,.0f} steps old (newest) to {oldest + lag:,.0f} (oldest): up to {oldest:,} in "
        f"the queue, and {lag:,.0f} that the key encoder lags behind (momentum {key_momentum:g})"
    )


def stale_negatives(queue_size: int, images: int) -> str:
    """What to do if the queue holds more keys than half the data set, else nothing."""
    if 2 * queue_size <= images:
        return ""
    return (
        f"warning: a queue of {queue_size:,} keys over {images:,} images spans {queue_size / images:.2f} epochs: an "
        f"image soon meets its own old key as a negative. Choose --queue-size {max(1, images // 2)} or less "
        "(4096 is usual)"
    )
