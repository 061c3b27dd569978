"""Which image stands where in which batch, and the pixels of a process's share of it.

The order is a function of (seed, epoch) alone, so a run that goes on after a kill, at any step, sees what it would have
seen, and nothing needs to be saved of a half-read shard or a shuffle buffer.
"""

import math
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from train.gather import world_size
from train.views import Views
from zoo.errors import BadData
from zoo.images.image_set import ImageSet

AHEAD = 2  # batches decoded before they are asked for
LANES = 8  # places of a sharded data set that one batch is mixed from
WINDOW = 1024  # images of a lane within which the order is random
MONITORED = 12_000  # images that the encoder is monitored with, at most
MONITORED_BYTES = 2**28  # of their decoded pixels, where the data set is not in memory
CANDIDATES = 4  # times as many images are in the blocks that they are drawn from


def monitored_images(images: ImageSet, image_size: int) -> tuple[ImageSet, np.ndarray]:
    """Some train images in memory, always the same ones, to monitor the encoder with, and their indices."""
    if images.labels.ndim > 1:  # several classes each; what is monitored has one
        images = replace(images, labels=np.full(len(images), -1))
    numbered = replace(images, labels=np.arange(len(images)))
    if not numbered.in_memory:
        most = min(MONITORED, MONITORED_BYTES // (3 * image_size**2))
        numbered = _of_few_blocks(numbered, CANDIDATES * most).sample(most).decoded(image_size)
    some = numbered.sample(MONITORED)
    return replace(some, labels=images.labels[some.labels]), some.labels


def _of_few_blocks(images: ImageSet, n: int) -> ImageSet:
    """The images of random blocks that hold n or more, or all: of a large data set little has to be read."""
    blocks, sizes = np.unique(images.blocks, return_counts=True)
    order = np.random.default_rng(0).permutation(len(blocks))
    few = blocks[order[: np.searchsorted(np.cumsum(sizes[order]), n) + 1]]
    return images.part(np.flatnonzero(np.isin(images.blocks, few)), digest=images.digest)


def steps_in_epoch(images: int, batch_size: int, world: int) -> int:
    """Batches in an epoch; what is left over waits for the next epoch's order. Raises BadData if there are none."""
    if batch_size % world:
        raise BadData(f"--batch-size {batch_size} does not divide over {world} processes; choose a multiple of {world}")
    if images < batch_size:
        raise BadData(f"{images} images are fewer than one batch of {batch_size}; lower --batch-size")
    return images // batch_size


class ImageBatch(NamedTuple):
    """The images of one step, before their views are made."""

    indices: np.ndarray  # (N,) of the images of all processes, in the order of ranks
    pixels: Tensor | tuple[Tensor, ...]  # uint8, of this process: (B, 3, H, W), or from disk the crops of each view


def batches(
    images: ImageSet,
    views: Views,
    *,
    first: int,
    last: int,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
    unit: int = 1,
) -> Generator[ImageBatch]:
    """The batches of steps first .. last - 1, with this process's share of the pixels as `Views` takes them.

    From disk they come decoded and cut by `workers` threads, AHEAD batches before they are asked for (Pillow decodes
    outside Python's lock). An image that cannot be decoded is left out and shortens its batch, on all processes alike
    and to a multiple of `unit`. Raises BadData if fewer than 2 of these are left.
    """
    if images.in_memory:
        for step in range(first, last):
            indices = share_of(images, step, batch_size, views.seed, rank=0, world=1)
            mine = share_of(images, step, batch_size, views.seed, rank, world)
            yield ImageBatch(indices, torch.from_numpy(images.array[mine]).permute(0, 3, 1, 2))
        return

    def cut(index: int, step: int, row: int) -> list[np.ndarray] | None:
        picture = images.picture(index)
        return views.cut(picture, step, row, batch_size) if picture else None

    meet, share = meeting(world), batch_size // world
    pool, waiting = ThreadPoolExecutor(workers, "decode"), deque[dict[int, Future[list[np.ndarray] | None]]]()
    try:
        for step in range(first, last + AHEAD):
            if step < last:
                mine = share_of(images, step, batch_size, views.seed, rank, world).tolist()
                waiting.append({i: pool.submit(cut, i, step, row) for row, i in enumerate(mine, rank * share)})
            if step >= min(first + AHEAD, last) and waiting:
                crops = {i: crop for i, ahead in waiting.popleft().items() if (crop := ahead.result()) is not None}
                everywhere = meet(list(crops))
                n = _in_each(everywhere, share=share, unit=unit, skipped=images.skipped)
                indices = np.concatenate([found[:n] for found in everywhere])
                columns = zip(*list(crops.values())[:n], strict=True)
                yield ImageBatch(indices, tuple(torch.from_numpy(np.stack(column)) for column in columns))
    finally:
        pool.shutdown(cancel_futures=True)


def meeting(world: int) -> Callable[[list[int]], list[list[int]]]:
    """A question on the CPU that all processes ask at once: each tells its own and hears all, in the order of ranks."""
    if world == 1 or not dist.is_initialized():
        return lambda mine: [mine]
    group: Any = dist.new_group(backend="gloo")

    def ask(mine: list[int]) -> list[list[int]]:
        found: list[list[int]] = [[]] * world
        dist.all_gather_object(found, mine, group=group)
        return found

    return ask


def _in_each(everywhere: list[list[int]], *, share: int, unit: int, skipped: dict[str, str]) -> int:
    """How many images each process trains on, where these could be decoded of its `share`: equally many."""
    least = min(map(len, everywhere))
    if least == share:
        return share
    n = least // unit * unit
    if n < 2 * unit:
        told = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[-1:])
        raise BadData(
            f"{share - least} of the {share} images that a process has of one batch cannot be decoded"
            f"{f' ({told})' if told else ''}, and only {n} could be trained on. Mend or remove such files, or choose "
            "a larger --batch-size (or --chunk)"
        )
    return n


def share_of(images: ImageSet, step: int, batch_size: int, seed: int, rank: int, world: int) -> np.ndarray:
    """Indices (batch_size / world,) of the images of this process in the batch of `step`."""
    epoch, nth = divmod(step, len(images) // batch_size)
    if images.in_memory:
        order = memory_order(seed, epoch, len(images), batch_size)
    else:
        order = _shard_order(images, seed, epoch, batch_size)
    share = batch_size // world
    return order[nth, rank * share : rank * share + share]


@lru_cache(maxsize=2)
def memory_order(seed: int, epoch: int, images: int, batch_size: int) -> np.ndarray:
    """(steps, batch_size) indices: one permutation an epoch."""
    steps = images // batch_size
    return np.random.default_rng([seed, epoch]).permutation(images)[: steps * batch_size].reshape(steps, batch_size)


@lru_cache(maxsize=2)
def _shard_order(images: ImageSet, seed: int, epoch: int, batch_size: int) -> np.ndarray:
    return shard_order(images.blocks, seed, epoch, batch_size)


def shard_order(block: np.ndarray, seed: int, epoch: int, batch_size: int) -> np.ndarray:
    """(steps, batch_size) indices of images that lie in blocks (n,), every one at most once, near ones at near steps.

    The blocks come in random order; that line is cut into up to LANES equal lanes, each shuffled within windows of
    WINDOW images, and a batch takes equally many from each. Processes that share a batch evenly own whole lanes, so
    each reads its own part of the shards.
    """
    rng = np.random.default_rng([seed, epoch])
    numbers, block = np.unique(block, return_inverse=True)
    line = np.argsort(rng.permutation(len(numbers))[block], kind="stable")
    steps, lanes = len(line) // batch_size, math.gcd(batch_size, LANES)
    table = line[: steps * batch_size].reshape(lanes, -1)
    for lane in table:
        for start in range(0, len(lane), WINDOW):
            rng.shuffle(lane[start : start + WINDOW])
    return table.reshape(lanes, steps, -1).transpose(1, 0, 2).reshape(steps, batch_size)


def share_what_is_skipped(images: ImageSet) -> None:
    """Let every process know what any could not decode: a meeting of all, after the same step.

    Images in memory need none: each process has the same ones.
    """
    if images.in_memory or world_size() == 1:
        return
    found: list[dict[str, str]] = [{} for _ in range(world_size())]
    dist.all_gather_object(found, dict(images.skipped))
    for others in found:
        images.skipped.update(others)


def what_is_skipped(images: ImageSet) -> list[str]:
    """A line on every image found undecodable so far, its name first, in the order of their discovery."""
    return [f"{name}: {reason}" for name, reason in list(images.skipped.items())]  # a copy: threads add to it
