"""Whose statistics batch normalisation uses, as one switch.

Inside a batch the statistics tell which key belongs to which query: a network can lower MoCo's loss by that alone (He
et al. 2020, section 3.3). Across processes, shuffling the keys' images or common statistics (SyncBN) hide it. Within
one process shuffling alone changes nothing, for the statistics are over the same set of images in any order; they must
be split over groups as well.
"""

from collections.abc import Callable
from typing import Literal, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.gather import gather_rows, my_rows, sum_over_processes, world_size
from zoo.errors import BadNumber

BatchNormName = Literal["auto", "split", "shuffle", "sync", "plain"]
GROUPS = 8  # of "split", as the official CIFAR-10 demo of MoCo has it: the GPUs that it stands in for
Module = TypeVar("Module", bound=nn.Module)


def shuffles_keys(name: BatchNormName) -> bool:
    """Whether the key encoder sees the images in other groups than the query encoder does."""
    return name in ("auto", "split", "shuffle")


def with_batchnorm(module: Module, name: BatchNormName) -> Module:
    """Give every batch normalisation inside `module` the statistics of `name`, in place; returns it.

    plain, shuffle: of the images of one process. sync: of all processes. split: of 8 groups within a process.
    auto: split on one process, shuffle on several. The state's names and shapes stay, so weights load either way.
    Raises BadNumber for shuffle on one process.
    """
    if name == "auto":
        name = "split" if world_size() == 1 else "shuffle"
    if name == "shuffle" and world_size() == 1:
        raise BadNumber("batchnorm = shuffle changes nothing on one process; choose split, or auto")
    kinds: dict[str, type[_BatchNorm]] = {"split": SplitBatchNorm, "sync": SyncBatchNorm}
    for norm in module.modules() if name in kinds else ():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.__class__ = kinds[name]  # type: ignore[assignment]  # only forward differs; the state stays
    return module


def least_unit(module: nn.Module) -> int:
    """What the number of images that go through `module` at a time has to be a multiple of."""
    return GROUPS if any(isinstance(part, SplitBatchNorm) for part in module.modules()) else 1


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """What both share: running statistics that follow given ones."""

    running_mean: Tensor  # (C,)
    running_var: Tensor  # (C,)
    num_batches_tracked: Tensor  # ()
    momentum: float

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of positions behind (B, C)."""

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """mean and unbiased variance (C,) of a batch."""
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)


@final
class SplitBatchNorm(_BatchNorm):
    """Statistics of GROUPS groups of a batch; running statistics follow their mean. Evaluation is plain."""

    def forward(self, input: Tensor) -> Tensor:  # (B, C, ...)
        if not self.training:
            return super().forward(input)
        y, mean, variance = split_batch_norm(input, self.weight, self.bias, groups=GROUPS, eps=self.eps)
        self._track(mean, variance)
        return y


def split_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, C, ...) normalised group by group, and mean and unbiased variance (C,), averaged over the groups.

    Group j holds the rows j, j + groups, j + 2 groups, ... Raises BadNumber unless B is a multiple of `groups` that
    gives each at least 2 images.
    """
    size, channels = x.shape[:2]
    if size % groups or size == groups:
        raise BadNumber(
            f"{size} images on one process cannot be split into {groups} groups of 2 or more for batch normalisation; "
            f"choose a batch size (or chunk) that is a multiple of {groups} from {2 * groups} on, or batchnorm = plain"
        )
    wide = x.reshape(size // groups, groups * channels, *x.shape[2:])
    statistics = torch.promote_types(x.dtype, torch.float32)
    mean, variance = (torch.zeros(groups * channels, dtype=statistics, device=x.device) for _ in range(2))
    weight, bias = (None if p is None else p.repeat(groups) for p in (weight, bias))
    y = F.batch_norm(wide, mean, variance, weight, bias, training=True, momentum=1.0, eps=eps)  # fills both
    return y.reshape(x.shape), mean.view(groups, channels).mean(0), variance.view(groups, channels).mean(0)


@final
class SyncBatchNorm(_BatchNorm):
    """Statistics of the images of all processes, which must hold equally many. On one process: plain.

    torch's own needs CUDA; this one is plain tensor operations, so that two CPU processes can be tested against one.
    """

    def forward(self, input: Tensor) -> Tensor:  # (B, C, ...)
        if not self.training or world_size() == 1:
            return super().forward(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        over = [0, *range(2, x.ndim)]
        count = world_size() * x.numel() // x.shape[1]
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean = sum_over_processes(x.sum(over)) / count  # (C,)
        centred = x - mean.view(shape)
        variance = sum_over_processes(centred.square().sum(over)) / count  # (C,)
        self._track(mean, variance * count / (count - 1))
        y = centred * (variance + self.eps).rsqrt().view(shape)
        y = y if self.weight is None else y * self.weight.view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).to(input.dtype)


@final
class ShuffledKeys(nn.Module):
    """Keys of images that went through the key encoder in another order; another one every time.

    The order depends on a counter alone, which is a buffer: a run that goes on after a kill shuffles as it would have.
    """

    calls: Tensor  # () int64

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, key: Callable[[Tensor], Tensor], view: Tensor) -> Tensor:
        """key(view), (B, P), computed by whichever process the order gives each image to."""
        everything = gather_rows(view)  # (N, 3, H, W)
        order = scrambled(len(everything), self.calls)
        self.calls.add_(1)
        keys = gather_rows(key(everything[my_rows(order)]))  # (N, P), in that order
        return my_rows(keys[order.argsort()])


def scrambled(n: int, seed: Tensor) -> Tensor:
    """A permutation of 0 .. n - 1 from seed (), int64, on its device: the order of the numbers' hashes."""
    return hashes(n, seed).argsort()


def hashes(n: int, seed: Tensor) -> Tensor:
    """(n,) int64 in [0, 2^32) on the device of seed (), int64, other ones for every seed.

    A generator of torch would have to fetch the seed from the device, which waits for it.
    """
    x = torch.arange(n, device=seed.device) + seed * n
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    return x ^ (x >> 16)
