"""A momentum encoder: what MoCo, MoCo v3 and SimMoCo compute their keys with."""

from typing import final

import torch
from torch import Tensor, nn

from train.batchnorm import ShuffledKeys
from train.ema import ema_copy, ema_update


@final
class MomentumEncoder(nn.Module):
    """A copy of an encoder and its head that no gradient reaches, and that follows them after each update."""

    shuffle: ShuffledKeys | None

    def __init__(self, *online: nn.Module, shuffle: bool = False) -> None:
        """online: encoder and head, applied in that order. shuffle: compute keys in a shuffled order, against the leak
        of batch normalization (see `train.batchnorm`)."""
        super().__init__()
        self.network = ema_copy(nn.Sequential(*online))
        self._online = online  # a tuple, so that they are not registered once more
        self.shuffle = ShuffledKeys() if shuffle else None

    @torch.no_grad()
    def forward(self, view: Tensor) -> Tensor:
        """(B, 3, S, S) -> keys (B, P), without gradient."""
        return self.network(view) if self.shuffle is None else self.shuffle(self.network, view)

    def follow(self, *, momentum: float) -> None:
        """key <- m key + (1 - m) query: He et al. 2020 (MoCo), equation 2."""
        ema_update(self.network, nn.Sequential(*self._online), momentum)

    def restart(self) -> None:
        """Become a copy again, running statistics included, as after other weights were loaded."""
        self.network.load_state_dict(nn.Sequential(*self._online).state_dict())
