"""The dictionary as a queue: keys of earlier batches (He et al. 2020, MoCo, section 3.2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class KeyQueue(nn.Module):
    """The last `size` keys, unit rows, in buffers that a checkpoint keeps. It starts with random directions."""

    rows: Tensor  # (K, P)
    oldest: Tensor  # () int64, the row that the next key replaces

    def __init__(self, size: int, width: int) -> None:
        if size < 1:
            raise ValueError(f"queue_size = {size}; at least 1 key is needed as a negative")
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(size, width), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys by keys (N, P), in their order, for any N and K; scaled to unit rows."""
        size, n = len(self.rows), len(keys)
        skipped = max(0, n - size)  # of more keys than places only the last ones stay
        places = (self.oldest + torch.arange(skipped, n, device=keys.device)) % size
        self.rows[places] = F.normalize(keys[skipped:].to(self.rows.dtype), dim=1)
        self.oldest.copy_((self.oldest + n) % size)
