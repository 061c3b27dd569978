"""The gradient of a large batch in the memory of a small one (Gao et al. 2021, arXiv 2101.06983, section 3.2).

Accumulating the gradients of small batches would contrast each of them with itself alone. Here the projections of all
chunks come first, without a graph; the loss of the whole batch gives the gradient of every projection; then each chunk
runs once more, with a graph, and that gradient goes on through it. Exact but for batch normalization, whose statistics
are each chunk's own.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.gather import world_size
from train.method import Batch, Method, Step, loss_of, map_tensors, tensors_of
from zoo.errors import BadNumber


def cached_backward(
    method: Method,
    batch: Batch,
    *,
    chunk: int,
    backward: Callable[[Tensor], Any] = Tensor.backward,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Step:
    """Put the gradient of the whole batch, averaged over processes, into the parameters of `method`.

    Args:
        method: What is trained; every image goes through each of its encoders twice.
        batch: Encoded `chunk` images at a time.
        chunk: Images of this process; a divisor of their number.
        backward: Turns the loss into gradients (a scaled one, too).
        autocast: Context around the encoders.

    Raises:
        BadNumber: If chunk does not divide B, for batch normalization would weigh a smaller rest as much.
    """
    size = len(batch.views[0])
    if chunk < 1 or size % chunk:
        raise BadNumber(
            f"chunk = {chunk} does not divide the {size} images of each process in a batch; choose a divisor"
        )
    chunks = list(zip(*(view.split(chunk) for view in batch.views), strict=True))
    before = [buffer.clone() for buffer in method.buffers()]
    with torch.no_grad(), autocast():
        parts = [method.project(views) for views in chunks]
    columns = zip(*map(tensors_of, parts), strict=True)
    leaves = [torch.cat(column).requires_grad_() for column in columns]
    remaining = iter(leaves)
    step = loss_of(method, map_tensors(lambda _: next(remaining), parts[0]), batch)
    backward(step.loss)
    with torch.no_grad():  # running statistics and shuffles: the second pass is the one that counts
        for buffer, value in zip(method.buffers(), before, strict=True):
            buffer.copy_(value)
    gradients = zip(*(_gradient(leaf).split(chunk) for leaf in leaves), strict=True)
    for views, gradient in zip(chunks, gradients, strict=True):
        with autocast():
            again = tensors_of(method.project(views))
        learning = [(x, grad) for x, grad in zip(again, gradient, strict=True) if x.requires_grad]  # not keys
        torch.autograd.backward(*map(list, zip(*learning, strict=True)))  # type: ignore[arg-type]
    _average_gradients(method)
    return Step(step.loss.detach(), tuple(keys.detach() for keys in step.keys), step.metrics)


def _gradient(leaf: Tensor) -> Tensor:
    """Zeros where the loss does not depend on the projection."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _average_gradients(method: Method) -> None:
    """The mean over processes, which DistributedDataParallel takes where its own forward runs."""
    if world_size() > 1:
        for parameter in method.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size()
