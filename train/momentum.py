"""What MoCo, MoCo v3 and SimMoCo share: queries of an encoder that learns, keys of one that follows by momentum."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from train.batchnorm import ShuffledKeys
from train.ema import ema_copy, ema_update
from train.method import Method, Step
from zoo.model.encoder import Encoder


class MomentumMethod(Method):
    """A method whose rows are queries and momentum keys: (q1, k2), and (q2, k1) besides if symmetric.

    shuffled: keys are computed in a shuffled order, against the leak of batch normalisation (`train/batchnorm.py`).
    """

    shuffled: ShuffledKeys | None

    def __init__(self, encoder: Encoder, projector: nn.Sequential, *, symmetric: bool, shuffled: bool) -> None:
        super().__init__(encoder)
        self.projector = projector
        self.key_encoder = ema_copy(nn.Sequential(encoder, projector))
        self.shuffled = ShuffledKeys() if shuffled else None
        self.symmetric = symmetric

    def query(self, view: Tensor) -> Tensor:
        """(B, P) of the encoder that learns."""
        return self.projector(self.encoder(view))

    @torch.no_grad()
    def key(self, view: Tensor) -> Tensor:
        """(B, P) of the encoder that follows."""
        return self.key_encoder(view) if self.shuffled is None else self.shuffled(self.key_encoder, view)

    def rows(self, view1: Tensor, view2: Tensor) -> tuple[Tensor, ...]:
        forth = self.query(view1), self.key(view2)
        return (*forth, self.query(view2), self.key(view1)) if self.symmetric else forth

    @abstractmethod
    def key_momentum_at(self, progress: float) -> float:
        """m, [0, 1], at `progress` in [0, 1] of the training."""

    def after_step(self, step: Step, progress: float) -> None:
        """key <- m key + (1 - m) query, He et al. 2020, equation 2."""
        momentum = self.key_momentum_at(progress)
        ema_update(self.key_encoder, nn.Sequential(self.encoder, self.projector), momentum)
