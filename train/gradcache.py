"""The gradient of a large batch in the memory of a small one (Gao et al. 2021, arXiv 2101.06983, section 3.2).

Accumulating the gradients of small batches would contrast each of them with itself alone. Here the rows of all chunks
come first, without a graph; the loss of the whole batch gives the gradient of every row; then each chunk runs once
more, with a graph, and that gradient goes on through it. Exact but for batch normalisation, whose statistics are each
chunk's own.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.gather import gather_rows, world_size
from train.method import Method, Step
from zoo.errors import BadNumber


def cached_backward(
    method: Method,
    view1: Tensor,
    view2: Tensor,
    *,
    chunk: int,
    backward: Callable[[Tensor], Any] = Tensor.backward,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Step:
    """Put the gradient of the whole batch, averaged over processes, into the parameters of `method`.

    view1, view2 (B, 3, H, W) of this process, encoded `chunk` images at a time; every image goes through each encoder
    twice. backward: what turns the loss into gradients (a scaled one, too). autocast: around the encoders.
    Raises BadNumber if chunk does not divide B, for batch normalisation would weigh a smaller rest as much.
    """
    if chunk < 1 or len(view1) % chunk:
        raise BadNumber(
            f"chunk = {chunk} does not divide the {len(view1)} images of each process in a batch; choose a divisor"
        )
    chunks = list(zip(view1.split(chunk), view2.split(chunk), strict=True))
    before = [buffer.clone() for buffer in method.buffers()]
    with torch.no_grad(), autocast():
        parts = [method.rows(*views) for views in chunks]
    rows = [torch.cat(column).requires_grad_() for column in zip(*parts, strict=True)]
    step = method.loss(*map(gather_rows, rows))
    backward(step.loss)
    with torch.no_grad():  # running statistics and shuffles: the second pass is the one that counts
        for buffer, value in zip(method.buffers(), before, strict=True):
            buffer.copy_(value)
    gradients = zip(*(row.grad.split(chunk) for row in rows), strict=True)  # type: ignore[union-attr]  # all have one
    for views, gradient in zip(chunks, gradients, strict=True):
        with autocast():
            again = method.rows(*views)
        learning = [(row, grad) for row, grad in zip(again, gradient, strict=True) if row.requires_grad]  # not keys
        torch.autograd.backward(*map(list, zip(*learning, strict=True)))  # type: ignore[arg-type]
    _average_gradients(method)
    return Step(step.loss.detach(), tuple(keys.detach() for keys in step.keys), step.seen)


def _average_gradients(method: Method) -> None:
    """The mean over processes, which DistributedDataParallel takes where its own forward runs."""
    if world_size() > 1:
        for parameter in method.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size()
