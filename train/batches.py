"""Which image stands where in which batch, and the pixels of a process's share of it.

The order is a function of (seed, epoch) alone, so a run that goes on after a kill, at any step, sees what it would have
seen, and nothing needs to be saved of a half-read shard or a shuffle buffer.
"""

import math
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from train.gather import world_size
from train.views import Views
from zoo.dataset import dataset_row
from zoo.errors import BadData
from zoo.shards import Shards, open_shards
from zoo.split import LARGEST_CACHED, Split, open_split

AHEAD = 2  # batches decoded before they are asked for
LANES = 8  # places of a sharded data set that one batch is mixed from
WINDOW = 1024  # images of a lane within which the order is random
LOOK_BYTES = 2**28  # of decoded pixels kept to look at the encoder with, where the data set is not in memory
LOOK = 12_000  # images to look at the encoder with


def open_images(name: str, data: Path | None, *, stream: bool, limit: int | None) -> Split | Shards:
    """The train split of the data set `name`: in memory where its images are small, else (or to stream) on disk."""
    if not stream and dataset_row(name).image_size <= LARGEST_CACHED:
        return open_split(name, "train", data=data).sample(limit)
    if data is None:
        raise BadData(f"--stream, and data sets above {LARGEST_CACHED} px, read a local copy: give --data DIR")
    return open_shards(name, "train", data).sample(limit)


def images_to_look_at(images: Split | Shards, image_size: int) -> Split:
    """Some train images in memory, always the same ones, to see with how well the encoder does."""
    if isinstance(images, Split):
        return images.sample(LOOK)
    return images.sample(_most_to_look_at(image_size)).decoded(image_size)


def rows_to_look_at(images: Split | Shards, image_size: int) -> np.ndarray:
    """Indices of the images that `images_to_look_at` takes, in its order."""
    numbered = replace(images, labels=np.arange(len(images)))
    return numbered.sample(LOOK if isinstance(images, Split) else _most_to_look_at(image_size)).labels


def _most_to_look_at(image_size: int) -> int:
    return min(LOOK, LOOK_BYTES // (3 * image_size**2))


def steps_in_epoch(images: int, batch_size: int, world: int) -> int:
    """Batches in an epoch; what is left over waits for the next epoch's order. Raises BadData if there are none."""
    if batch_size % world:
        raise BadData(f"--batch-size {batch_size} does not divide over {world} processes")
    if images < batch_size:
        raise BadData(f"{images} images are fewer than one batch of {batch_size}; lower --batch-size")
    return images // batch_size


def batches(
    images: Split | Shards,
    views: Views,
    *,
    first: int,
    last: int,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
) -> Generator[Tensor]:
    """This process's share of the batches of steps first .. last - 1, as `Views` takes them, uint8.

    (B, 3, H, W) from memory. From disk: (B, 2, 3, size, size), decoded and cut by `workers` threads, AHEAD batches
    before they are asked for (Pillow decodes outside Python's lock).
    """
    if isinstance(images, Split):
        for step in range(first, last):
            rows = share_of(images, step, batch_size, views.seed, rank, world)
            yield torch.from_numpy(images.pixels[rows]).permute(0, 3, 1, 2)
        return

    def cut(index: int, step: int, row: int) -> np.ndarray:
        return views.cut(images.picture(index), step, row, batch_size)

    pool, waiting = ThreadPoolExecutor(workers, "decode"), deque[list[Future[np.ndarray]]]()
    try:
        for step in range(first, last + AHEAD):
            if step < last:
                rows = share_of(images, step, batch_size, views.seed, rank, world)
                row = rank * (batch_size // world)
                waiting.append([pool.submit(cut, int(i), step, row + nth) for nth, i in enumerate(rows)])
            if step >= min(first + AHEAD, last) and waiting:
                yield torch.from_numpy(np.stack([future.result() for future in waiting.popleft()]))
    finally:
        pool.shutdown(cancel_futures=True)


def share_of(images: Split | Shards, step: int, batch_size: int, seed: int, rank: int, world: int) -> np.ndarray:
    """Indices (batch_size / world,) of the images of this process in the batch of `step`."""
    epoch, nth = divmod(step, len(images) // batch_size)
    if isinstance(images, Split):
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
def _shard_order(images: Shards, seed: int, epoch: int, batch_size: int) -> np.ndarray:
    return shard_order(images.block, seed, epoch, batch_size)


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


def share_what_is_skipped(images: Split | Shards) -> None:
    """Let every process know what any could not decode: a meeting of all, after the same step.

    A split in memory needs none: each process has decoded all of it.
    """
    if isinstance(images, Split) or world_size() == 1:
        return
    found: list[dict[str, str]] = [{} for _ in range(world_size())]
    dist.all_gather_object(found, dict(images.skipped))
    for others in found:
        images.skipped.update(others)


def what_is_skipped(images: Split | Shards) -> list[str]:
    """What is said of every image found undecodable so far, its name first, in the order of their discovery."""
    if isinstance(images, Split):
        return list(images.skipped)
    found = list(images.skipped.items())  # a copy: threads add to it
    return [reason if name in reason else f"{name}: {reason}" for name, reason in found]
