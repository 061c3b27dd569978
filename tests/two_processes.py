"""Run by test_train_gather in two gloo processes: the gradients of every method against one process's.

python two_processes.py RANK FILE
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from train.batchnorm import with_batchnorm
from train.gradcache import cached_backward
from train.method import Batch, loss_of
from train.probe import OnlineProbe
from train.recipe import Recipe, recipes
from zoo.model.encoder import Encoder
from zoo.names import parse_name


class Rows(torch.nn.Module):
    """A tiny backbone without batch normalisation, so that both sides see the same function."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * 4 * 4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x.flatten(1)))


def without_norm(module: torch.nn.Module) -> torch.nn.Module:
    for name, child in module.named_children():
        norm = isinstance(child, torch.nn.modules.batchnorm._BatchNorm)
        setattr(module, name, torch.nn.Identity() if norm else without_norm(child))
    return module


def small(recipe: Recipe) -> Recipe:
    """The recipe with a small queue and narrow heads: the same equations."""
    numbers = {"queue_size": 12, "negatives": 12, "hidden": 16, "projection": 8}
    return replace(recipe, **{key: value for key, value in numbers.items() if getattr(recipe, key, 0)})


def two_steps(
    recipe: Recipe, views: torch.Tensor, wrap: Callable, *, norm: bool, chunk: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and gradients of two steps, between which parameters, momentum encoder, queue and probe move; the probe.

    In chunks without batch normalisation, whose statistics would be each chunk's own.
    """
    torch.manual_seed(0)
    method = recipe.method(Encoder(Rows(), mean=(0.5,) * 3, std=(0.2,) * 3, image_size=4))
    method.prepare(12)
    probe = OnlineProbe(method.encoder, np.arange(12) % 3, 3)
    method.add_module("probe", probe)
    method = (method if norm else without_norm(method)).double()
    model = wrap(method)  # kept alive: DistributedDataParallel reduces gradients only while it exists
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    losses, gradients = [], []
    for progress in (0.5, 1.0):
        batch = Batch(tuple(views), torch.arange(2, 10), progress)
        if chunk:
            step = cached_backward(method, batch, chunk=chunk)
        else:
            step = loss_of(method, model(batch.views), batch)
            step.loss.backward()
        losses.append(step.loss.detach())
        gradients += [p.grad.flatten().clone() for p in method.parameters() if p.requires_grad]
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(step, progress)
        probe.learn(np.arange(2, 10), rate=1.0, chunk=chunk or len(views[0]))
    return torch.stack(losses), torch.cat([*gradients, probe.weight.flatten(), probe.bias])


def main(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    one_of_each = {parse_name(name).method: small(recipe) for name, recipe in reversed(recipes().items())}
    views = torch.rand(2, 8, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alone = {
        (name, norm): two_steps(recipe, views, lambda method: method, norm=norm)
        for name, recipe in one_of_each.items()
        for norm in (True, False)
    }
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mine = views[:, 4 * rank : 4 * rank + 4]
    for name, recipe in one_of_each.items():
        for chunk in (0, 2):
            losses, gradient = alone[name, not chunk]
            shared_losses, shared = two_steps(recipe, mine, DistributedDataParallel, norm=not chunk, chunk=chunk)
            gap = ((shared - gradient).norm() / gradient.norm()).item()
            print(f"{name} {chunk} {(shared_losses - losses).abs().max().item():.3e} {gap:.3e}", flush=True)
    print(f"syncbn 0 {sync_batchnorm_gap(rank)}", flush=True)
    dist.destroy_process_group()


def sync_batchnorm_gap(rank: int) -> str:
    """Largest differences of outputs and of gradients, running statistics and all, from one process's plain layer."""
    x, weights = torch.rand(2, 8, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain, sync = torch.nn.BatchNorm1d(3).double(), with_batchnorm(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), "sync")
    sync = sync.double()
    whole, mine = x.clone().requires_grad_(), x[4 * rank : 4 * rank + 4].clone().requires_grad_()
    expected, got = plain(whole), sync(mine)
    (expected * weights).sum().backward()
    (got * weights[4 * rank : 4 * rank + 4]).sum().backward()
    share = slice(4 * rank, 4 * rank + 4)
    outputs = [(got - expected[share]).abs().max()]
    outputs += [(sync[0].running_mean - plain.running_mean).abs().max()]
    outputs += [(sync[0].running_var - plain.running_var).abs().max()]
    return f"{max(outputs).item():.3e} {(mine.grad - whole.grad[share]).abs().max().item():.3e}"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
