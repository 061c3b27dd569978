"""The momentum encoder: a copy that follows (He et al. 2020, MoCo, equation 2)."""

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

Module = TypeVar("Module", bound=nn.Module)


def ema_copy(module: Module) -> Module:
    """A copy of `module` that no gradient reaches."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def ema_update(key: nn.Module, query: nn.Module, momentum: float) -> None:
    """key <- momentum * key + (1 - momentum) * query, for every parameter.

    Buffers stay: the running statistics of a key encoder's batch normalisation come from its own forward passes, as in
    the official code of MoCo.
    """
    get_ema_multi_avg_fn(momentum)(list(key.parameters()), list(query.parameters()), 1)
