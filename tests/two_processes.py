"""Run by test_train_gather in two gloo processes: the gradient of every method against one process's.

python two_processes.py RANK FILE
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from train.recipe import recipes
from zoo.encoder import Encoder


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
        norm = isinstance(child, torch.nn.BatchNorm1d)
        setattr(module, name, torch.nn.Identity() if norm else without_norm(child))
    return module


def gradients(recipe, views, wrap) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    method = recipe.method(Encoder(Rows(), mean=(0.5,) * 3, std=(0.2,) * 3, image_size=4))
    method = without_norm(method).double()
    model = wrap(method)  # kept alive: DistributedDataParallel reduces gradients only while it exists
    loss = model(*views).loss
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in method.parameters()])


def main(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    one_of_each = {type(recipe): recipe for recipe in recipes().values()}
    views = torch.rand(2, 8, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alone = [gradients(recipe, views, lambda method: method) for recipe in one_of_each.values()]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mine = views[:, 4 * rank : 4 * rank + 4]
    for recipe, (loss, gradient) in zip(one_of_each.values(), alone, strict=True):
        shared_loss, shared = gradients(recipe, mine, DistributedDataParallel)
        gap = ((shared - gradient).norm() / gradient.norm()).item()
        print(f"{type(recipe).__name__} {abs(shared_loss - loss).item():.3e} {gap:.3e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
