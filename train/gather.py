"""Rows of all processes in one tensor, with the right gradient (`accelerator.gather` has none)."""

import torch
import torch.distributed as dist
from torch import Tensor


class _GatherRows(torch.autograd.Function):
    """Forward: all-gather. Backward: the sum over processes of the gradient of this process's rows.

    Every process computes the loss of the global batch. The sum is the world size times the single-process gradient,
    which the mean of DistributedDataParallel divides out again.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:  # (B, P) -> (world * B, P)
        rows = rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def gather_rows(rows: Tensor) -> Tensor:
    """rows (B, P) of this process -> (world * B, P), in the order of ranks; differentiable. One process: rows."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows)
    return gathered
