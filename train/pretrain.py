"""The training loop: algorithm 1 of He et al. 2020 (MoCo), whatever the paper.

    accelerate launch train/pretrain.py simco-r18-cifar100 --data DIR

Everything random is a function of (seed, step), so the same command, run again after a kill, goes on from the last
checkpoint to the same weights (on CPU: bit for bit).
"""

import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any

from zoo.command_line import run_command
from zoo.errors import BadNumber, ZooError
from zoo.processes import check_launch, cpu_threads, starting  # before torch: it notes the launcher

if __name__ == "__main__":
    run_command("train.pretrain", extra="train")

import numpy as np
import tensorboard  # noqa: F401  (train.run_log's)
import torch
import tyro
from accelerate import Accelerator, PartialState
from torch import Tensor

from train.batches import batches, images_to_look_at, share_what_is_skipped, steps_in_epoch
from train.batchnorm import least_unit
from train.gather import from_main
from train.gradcache import cached_backward
from train.method import Method, Step
from train.monitor import check_finite
from train.optim import make_optimizer
from train.probe import OnlineProbe, probe_beside
from train.recipe import Recipe, find_recipe, recipes
from train.run_folder import KeptRun, divergence_explained, only_run_in, resume, run_settings
from train.run_log import PROJECT
from train.stopping import EXIT_CODE, last_words, stop_requests, told_in_one_line
from train.views import Views
from train.watch import Watch
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.encoder import new_encoder
from zoo.names import parse_name

LOG_EVERY = 10  # steps between looks at the loss, each of which waits for the device
LEAST = {"limit": 1, "knn_every": 0, "chunk": 0, "workers": 1, "threads": 1}  # of the flags that are no recipe's


def pretrain(
    recipe: Recipe,
    *,
    data: Path | None = None,
    out: Path | None = None,
    limit: int | None = None,
    knn_every: int = 10,
    chunk: int = 0,
    stream: bool = False,
    workers: int = 2,
    threads: int | None = None,
    compile: bool = False,
    wandb_project: str = PROJECT,
) -> Path:
    """Train the encoder of `recipe`, or go on with it, and return the run folder, which `zoo.load` opens.

    data: as for `zoo.images.opening.open_images`; `folder:PATH` takes any images. out: the run folder, by default
    runs/NAME. limit: train on that many images. knn_every: epochs between looks at k-NN accuracy on held-out train
    images; 0 for none. chunk: images of a process that go through the encoder at a time, for a batch that the memory
    does not hold: the gradient of the whole batch all the same, but batch normalisation sees a chunk; 0 for all at
    once. stream: read and decode the images while training, from a folder, Parquet or tar shards, rather than once
    before; always so above 96 px. workers: threads of each process that decode them. threads: CPU threads of each
    process that compute, by default its share of the machine's cores. compile: torch.compile.
    wandb_project: where the package wandb is installed, the project of its run.
    Raises BadNumber; BadData; CorruptFile if the last checkpoint cannot be read; ZooError if another process trains
    there, the folder holds a run with other numbers, or loss, features or weights are not finite. SIGTERM ends it with
    SystemExit(143), all saved.
    """
    _check(limit=limit, knn_every=knn_every, chunk=chunk, workers=workers, threads=threads)
    accelerator = _accelerator()
    _set_threads(threads, accelerator)
    rank, world = accelerator.process_index, accelerator.num_processes
    main, device = accelerator.is_main_process, accelerator.device
    folder = out or Path("runs", recipe.name)
    images = open_images(parse_name(recipe.name).dataset, "train", data, stream=stream).sample(limit)
    if not images.square:
        images = images.whole()  # views are cut from all of each picture, not from a square in its middle
    batch_size, steps_per_epoch = recipe.batch_size, steps_in_epoch(len(images), recipe.batch_size, world)
    total = recipe.epochs * steps_per_epoch
    method, probe, look_at, optimizer = _untrained(recipe, images, device, main=main)
    views = _views(recipe, method.encoder.image_size, steps_per_epoch)

    with only_run_in(folder, main=main):
        progress = resume(folder, method, optimizer, run_settings(recipe, images, accelerator, chunk=chunk), main=main)
        kept = KeptRun(folder, recipe, method, optimizer, accelerator, progress=progress, total=total)
        if main:
            kept.write_lost_weights()
            if progress.step < total:
                kept.rehearse()
        if compile:
            method.compile()
        model, optimizer = accelerator.prepare(method, optimizer)
        first, stopping = progress.step, False
        share: Any = {"batch_size": batch_size, "rank": rank, "world": world, "workers": workers}
        chunks = _chunks(batch_size // world, chunk)
        unit = min(chunks * least_unit(method), chunk or batch_size)  # of a short batch: as many chunks, or as large
        loader = batches(images, views, first=first, last=total, unit=unit, **share)
        seen_from: Any = {"step": first, "total": total, "knn_every": knn_every, "probe": probe, "data": data}
        seen_from |= {"limit": limit, "wandb_project": wandb_project}
        with (
            Watch(folder, recipe, method, images, look_at, **seen_from) if look_at else nullcontext() as watch,
            stop_requests() as stop_asked,
            closing(loader),
            divergence_explained(folder),
        ):
            for step, (rows, pixels) in enumerate(loader, first):
                done, epoch = step + 1, (step + 1) / steps_per_epoch
                look = done % LOG_EVERY == 0 or epoch.is_integer() or done == 1
                learning_rate = _set_learning_rate(optimizer, recipe, step / steps_per_epoch)

                view1, view2 = views(_on(device, pixels), step, rank, world)  # aug(x), twice
                part = chunk if unit == chunk else len(view1) // chunks
                method.before_step(torch.from_numpy(rows).to(device))
                outcome = _backward(accelerator, model, method, view1, view2, part)  # queries, keys, loss, gradients
                if watch:
                    watch.step(outcome)
                if look or device.type == "cpu":  # elsewhere the question would wait for the device
                    check_finite(outcome.loss, done, method, view1, view2, folder if main else None)
                optimizer.step()
                optimizer.zero_grad()
                method.after_step(outcome, done / total)  # momentum update of the key encoder; enqueue, dequeue
                if probe:
                    rate = learning_rate / (recipe.peak_learning_rate or 1)
                    probe.learn(rows, rate=rate, chunk=part)

                if look:
                    share_what_is_skipped(images)
                if watch and look:
                    watch.look(done, epoch, loss=outcome.loss, learning_rate=learning_rate)
                stopping = stop_asked()
                if main and (stopping or kept.is_due(done)):
                    kept.save(done)
                if stopping:
                    break
            if watch and not stopping:
                watch.report()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if stopping:
        if main:
            told = f"stopped by SIGTERM, all is saved in {folder}; the same command goes on"
            print(last_words(told), file=sys.stderr)
        raise SystemExit(EXIT_CODE)
    return folder


def _check(**flags: int | None) -> None:
    for name, value in flags.items():
        if value is not None and value < LEAST[name]:
            raise BadNumber(f"{name} = {value}; at least {LEAST[name]} is needed")


def _accelerator() -> Accelerator:
    """As `accelerate launch` or its file asks for it. Raises ZooError if that cannot be."""
    with starting():
        no_device = not torch.accelerator.is_available()
        accelerator = Accelerator(cpu=no_device)  # which it has to be told: it would take each process for a single one
    check_launch(accelerator.num_processes)
    precision, device = accelerator.mixed_precision, accelerator.device.type
    if precision != "no" and not accelerator.native_amp:  # accelerate would compute in float32 and say nothing
        raise ZooError(f"mixed precision {precision} is not computed on {device}: choose --mixed_precision bf16 or no")
    n = accelerator.gradient_accumulation_steps
    if n != 1:
        raise ZooError(
            f"gradient accumulation over {n} batches does not enlarge the negatives: each would be contrasted with "
            "itself alone. Leave it at 1; a larger --batch-size with --chunk fits the memory and keeps the loss"
        )
    return accelerator


def _set_threads(asked: int | None, accelerator: Accelerator) -> None:
    """Let this process compute with its share of the machine's cores, and say with how many."""
    threads = cpu_threads(asked, processes=accelerator.num_processes)
    torch.set_num_threads(threads.number)
    if accelerator.is_main_process and accelerator.device.type == "cpu":
        print(f"CPU threads of each process: {threads.number} ({threads.reason})", file=sys.stderr)


def _untrained(
    recipe: Recipe, images: ImageSet, device: torch.device, *, main: bool
) -> tuple[Method, OnlineProbe | None, ImageSet | None, torch.optim.Optimizer]:
    """The recipe's method on the device, as its seed makes it, the probe that learns beside it, the images that tell
    how well it does, and its optimiser."""
    torch.manual_seed(recipe.seed)
    method = recipe.method(new_encoder(recipe.name))
    method.prepare(len(images))
    look_at, looked_at = images_to_look_at(images, method.encoder.image_size) if main else (None, np.empty(0))
    probe = probe_beside(method, images, from_main(looked_at))
    method = method.to(device).to(memory_format=torch.channels_last)
    numbers = {"lr": recipe.peak_learning_rate, "momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    return method, probe, look_at, make_optimizer(recipe.optimizer, method, **numbers)


def _views(recipe: Recipe, image_size: int, steps_per_epoch: int) -> Views:
    """The recipe's two views, whose size may grow with the epochs."""

    def size(step: int) -> int:
        return recipe.size_at(step / steps_per_epoch, image_size)

    return Views(recipe.view1, recipe.view2, size=size, seed=recipe.seed)


def _chunks(share: int, chunk: int) -> int:
    """In how many parts `share` images go through the encoder. Raises BadNumber if `chunk` does not divide them."""
    if chunk and share % chunk:
        raise BadNumber(f"--chunk {chunk} does not divide the {share} images of each process in a batch")
    return share // (chunk or share)


def _on(device: torch.device, pixels: Tensor) -> Tensor:
    """The pixels on the device; the copy to a GPU runs beside what was asked for before."""
    if device.type == "cuda":
        return pixels.pin_memory().to(device, non_blocking=True)
    return pixels.to(device)


def _backward(
    accelerator: Accelerator, model: torch.nn.Module, method: Method, view1: Tensor, view2: Tensor, chunk: int
) -> Step:
    """Gradients of the batch's loss, in one pass or in equal chunks of that many images."""
    if chunk < len(view1):
        how = {"backward": accelerator.backward, "autocast": accelerator.autocast}
        return cached_backward(method, view1, view2, chunk=chunk, **how)
    outcome: Step = model(view1, view2)
    accelerator.backward(outcome.loss)
    return outcome


def _set_learning_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, epoch: float) -> float:
    rate = recipe.learning_rate_at(epoch)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def main() -> None:
    """Command line: the recipe's name, then its numbers and ours as flags."""
    names = recipes()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"usage: zoo train RECIPE [--help] [flags]\n\nrecipes: {', '.join(names)}")
        sys.exit(0 if sys.argv[1:] else 2)
    with told_in_one_line():
        recipe = find_recipe(sys.argv[1])
        kind: Any = Annotated[type(recipe), tyro.conf.arg(name="")]

        def command_line(
            recipe: kind = recipe,
            data: Path | None = None,
            out: Path | None = None,
            limit: int | None = None,
            knn_every: int = 10,
            chunk: int = 0,
            stream: bool = False,
            workers: int = 2,
            threads: int | None = None,
            compile: bool = False,
            wandb_project: str = PROJECT,
        ) -> Path:
            """Train an encoder, or go on with the run in its folder.

            Args:
                recipe: The numbers of the training.
                data: Parquet shards, class folders, or an archive of them; folder:PATH takes any images without labels.
                    By default the Hub's copy.
                out: The run folder, by default runs/NAME.
                limit: Train on that many images, drawn at random.
                knn_every: Epochs between looks at k-NN accuracy on train images; 0 for none.
                chunk: Images of a process that go through the encoder at a time; the gradient is the whole batch's.
                stream: Read and decode images while training rather than once before; always so above 96 px.
                workers: Threads of each process that decode.
                threads: CPU threads of each process that compute. By default OMP_NUM_THREADS, or the machine's cores
                    divided by the processes on it.
                compile: Compile the networks with torch.compile.
                wandb_project: Project of the run on Weights & Biases, where the package wandb is installed.
            """
            flags: dict[str, Any] = {"knn_every": knn_every, "chunk": chunk, "stream": stream, "threads": threads}
            flags["wandb_project"] = wandb_project
            return pretrain(recipe, data=data, out=out, limit=limit, workers=workers, compile=compile, **flags)

        folder = tyro.cli(command_line, prog=f"zoo train {recipe.name}", args=sys.argv[2:])
    if PartialState().is_main_process:
        print(f'{folder}: trained. Next: zoo.load("{folder}"), zoo score {folder}')
