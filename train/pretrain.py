"""The training loop: algorithm 1 of He et al. 2020 (MoCo), whatever the paper.

    accelerate launch train/pretrain.py simco-r18-cifar100 --data DIR

Everything random is a function of (seed, step), so the same command, run again after a kill, goes on from the last
checkpoint to the same weights (on CPU: bit for bit).
"""

import fcntl
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from accelerate import Accelerator
from torch import Tensor
from tqdm import tqdm

from train.checkpoint import Progress, last_checkpoint, load_checkpoint, read_progress, save_checkpoint
from train.method import Method
from train.monitor import online_knn
from train.optim import make_optimizer
from train.recipe import Recipe, differences, find_recipe, recipes
from train.run_log import RunLog
from train.schedules import warmup_cosine
from train.views import Views
from zoo.card import Card
from zoo.dataset import Split, open_split
from zoo.encoder import new_encoder, save_encoder, save_head
from zoo.errors import BadData, ZooError
from zoo.names import parse_name
from zoo.provenance import command, hardware, today, versions

LOG_EVERY = 10  # steps between looks at the loss, each of which waits for the device


def pretrain(
    recipe: Recipe, *, data: Path | None = None, out: Path | None = None, limit: int | None = None, knn_every: int = 10
) -> Path:
    """Train the encoder of `recipe`, or go on with it, and return the run folder, which `zoo.load` opens.

    data: as for `zoo.dataset.open_split`. out: the run folder, by default runs/NAME. limit: train on that many images.
    knn_every: epochs between looks at k-NN accuracy on held-out train images; 0 for none.
    Raises BadData; ZooError if another process trains there, the folder holds a run with other numbers, or the loss
    is not finite.
    """
    accelerator = Accelerator()
    rank, world = accelerator.process_index, accelerator.num_processes
    folder = out or Path("runs", recipe.name)
    with accelerator.main_process_first():
        images = open_split(parse_name(recipe.name).dataset, "train", data=data).sample(limit)
    steps_per_epoch = _steps_per_epoch(len(images), recipe.batch_size, world)
    total = recipe.epochs * steps_per_epoch

    torch.manual_seed(recipe.seed)
    method = recipe.method(new_encoder(recipe.name)).to(accelerator.device)
    optimizer = make_optimizer(
        recipe.optimizer,
        method,
        lr=recipe.peak_learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    views = Views(recipe.view1, recipe.view2, size=method.encoder.image_size, seed=recipe.seed)

    with _only_run_in(folder, accelerator):
        progress = Progress(0, 0.0, recipe.numbers() | {"images": len(images), "data": images.sha256})
        checkpoint = last_checkpoint(folder / "checkpoints")
        if checkpoint:
            progress = _same_run(read_progress(checkpoint), progress, folder)
            load_checkpoint(checkpoint, method, optimizer)
        model, optimizer = accelerator.prepare(method, optimizer)
        started = time.monotonic() - progress.seconds
        main = accelerator.is_main_process
        with (
            RunLog(folder, step=progress.step) if main else nullcontext() as log,
            tqdm(total=total, initial=progress.step, unit=" steps", disable=not main, dynamic_ncols=True) as bar,
        ):
            for step in range(progress.step, total):
                learning_rate = _set_learning_rate(optimizer, recipe, step / steps_per_epoch)
                pixels = _batch(images, step, steps_per_epoch, recipe, rank, world).to(accelerator.device)
                view1, view2 = views(pixels, step, rank, world)
                outcome = model(view1, view2)
                accelerator.backward(outcome.loss)
                optimizer.step()
                optimizer.zero_grad()
                method.after_step(outcome, (step + 1) / total)

                done, epoch = step + 1, (step + 1) / steps_per_epoch
                bar.update()
                if log and (done % LOG_EVERY == 0 or epoch.is_integer() or done == 1):
                    loss = _finite(outcome.loss, done, folder)
                    log.write(done, loss=loss, learning_rate=learning_rate, epoch=epoch)
                    bar.set_description_str(_description(loss, learning_rate, method, recipe, bar))
                if log and epoch.is_integer():
                    if knn_every and (epoch % knn_every == 0 or done == total):
                        log.write(done, **_knn(method, images, bar))
                    progress = replace(progress, step=done, seconds=time.monotonic() - started)
                    card = save_encoder(method.encoder, folder, _card(recipe, progress, accelerator))
                    save_head(method, folder, card)
                    # The checkpoint comes last: a kill before it repeats an epoch and loses nothing.
                    save_checkpoint(folder / "checkpoints", method, optimizer, progress)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return folder


def _steps_per_epoch(images: int, batch_size: int, world: int) -> int:
    if batch_size % world:
        raise BadData(f"--batch-size {batch_size} does not divide over {world} processes")
    if images < batch_size:
        raise BadData(f"{images} images are fewer than one batch of {batch_size}; lower --batch-size")
    return images // batch_size  # what is left over waits for the next epoch's shuffle


@lru_cache(maxsize=1)
def _epoch_order(seed: int, epoch: int, images: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(images)


def _batch(images: Split, step: int, steps_per_epoch: int, recipe: Recipe, rank: int, world: int) -> Tensor:
    """This process's share of the batch of `step`: (B, 3, H, W) uint8."""
    epoch, nth = divmod(step, steps_per_epoch)
    share = recipe.batch_size // world
    first = nth * recipe.batch_size + rank * share
    rows = _epoch_order(recipe.seed, epoch, len(images))[first : first + share]
    return torch.from_numpy(images.pixels[rows]).permute(0, 3, 1, 2)


def _set_learning_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, epoch: float) -> float:
    rate = warmup_cosine(
        epoch, peak=recipe.peak_learning_rate, epochs=recipe.epochs, warmup_epochs=recipe.warmup_epochs
    )
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


@contextmanager
def _only_run_in(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Hold the run folder's lock, which the system lets go of when the process dies, however it dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        if accelerator.is_main_process:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ZooError(f"another process trains in {folder}; wait for it, or give another --out") from error
        yield


def _same_run(found: Progress, mine: Progress, folder: Path) -> Progress:
    """The progress found in a checkpoint, if it is of a run with the same numbers and data."""
    different = differences(found.identity, mine.identity)
    if different:
        raise ZooError(
            f"{folder} holds a run with other numbers:\n  " + "\n  ".join(different) + "\n"
            "Go on with the same ones, give another --out, or delete the folder"
        )
    return found


def _finite(loss: Tensor, done: int, folder: Path) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise ZooError(
            f"the loss is {value} after {done} steps. {folder / 'checkpoints'} holds the last good state; "
            "lower --learning-rate, or lengthen --warmup-epochs"
        )
    return value


def _description(loss: float, learning_rate: float, method: Method, recipe: Recipe, bar: Any) -> str:
    """`loss 4.101 (from 5.545 to at best 0.993)  lr 0.0300  812 images/s`, before the bar."""
    start, floor = method.loss_range(recipe.batch_size)
    speed = (bar.format_dict["rate"] or 0) * recipe.batch_size
    return f"loss {loss:.3f} (start {start:.3f}, floor {floor:.3f})  lr {learning_rate:.4f}  {speed:,.0f} images/s"


def _knn(method: Method, images: Split, bar: Any) -> dict[str, float]:
    value = online_knn(method.encoder, images)
    if value is None:
        return {}
    bar.write(f"k-NN on held-out train images, k = 20: {100 * value:.2f} %")
    return {"knn_held_out": value}


def _card(recipe: Recipe, progress: Progress, accelerator: Accelerator) -> Card:
    """The recipe's card with the record of this run. A changed recipe expects nothing published."""
    changed = differences(find_recipe(recipe.name).numbers(), recipe.numbers())
    n_images = progress.identity["images"]
    device = torch.cuda.get_device_name() if accelerator.device.type == "cuda" else ""
    training = {
        "steps": progress.step,
        "epochs": progress.step // (n_images // recipe.batch_size),
        "images": n_images,
        "data_sha256": progress.identity["data"],
        "seconds": round(progress.seconds, 1),
        "hardware": hardware(device, accelerator.num_processes),
        "precision": accelerator.mixed_precision,
        "date": today(),
        "versions": versions(),
        "command": command(),
    }
    card = recipe.card()
    expects = f"none published with {'; '.join(changed)}" if changed else card.expects
    return replace(card, expects=expects, training=training)


def main() -> None:
    """Command line: the recipe's name, then its numbers and ours as flags."""
    names = recipes()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"usage: accelerate launch train/pretrain.py RECIPE [--help] [flags]\n\nrecipes: {', '.join(names)}")
        sys.exit(0 if sys.argv[1:] else 2)
    try:
        recipe = find_recipe(sys.argv[1])
        kind: Any = Annotated[type(recipe), tyro.conf.arg(name="")]

        def command_line(
            recipe: kind = recipe,
            data: Path | None = None,
            out: Path | None = None,
            limit: int | None = None,
            knn_every: int = 10,
        ) -> Path:
            return pretrain(recipe, data=data, out=out, limit=limit, knn_every=knn_every)

        command_line.__doc__ = pretrain.__doc__
        folder = tyro.cli(command_line, prog=f"train/pretrain.py {recipe.name}", args=sys.argv[2:])
    except (ZooError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if Accelerator().is_main_process:
        print(f'{folder}: trained. Next: zoo.load("{folder}"), python -m eval.score {folder}')


if __name__ == "__main__":
    main()
