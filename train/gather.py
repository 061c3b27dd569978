"""Rows of all processes in one tensor, with the right gradient (`accelerator.gather` has none)."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")


def world_size() -> int:
    """Processes that train together; 1 outside a distributed run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def from_main(value: Value) -> Value:
    """The value that the main process gives, on every process: a meeting of all."""
    if world_size() == 1:
        return value
    told: list[Any] = [value]
    dist.broadcast_object_list(told)
    given: Value = told[0]
    return given


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


class _SumOverProcesses(torch.autograd.Function):
    """Forward: the sum over processes. Backward: the same sum of the gradients."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def gather_rows(rows: Tensor) -> Tensor:
    """rows (B, ...) of this process -> (world * B, ...), in the order of ranks; differentiable. One process: rows."""
    if world_size() == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows)
    return gathered


def my_rows(rows: Tensor) -> Tensor:
    """This process's part (B, ...) of what `gather_rows` gave."""
    return rows if world_size() == 1 else rows.chunk(world_size())[dist.get_rank()]


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of every process's x, any shape; differentiable. One process: x."""
    if world_size() == 1:
        return x
    total: Tensor = _SumOverProcesses.apply(x)
    return total
