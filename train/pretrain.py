"""The training loop: algorithm 1 of He et al. 2020 (MoCo), whatever the paper.

    accelerate launch train/pretrain.py simco-r18-cifar100 --data DIR

Everything random is a function of (seed, step), so the same command, run again after a kill, goes on from the last
checkpoint to the same weights (on CPU: bit for bit).
"""

import math
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from zoo.errors import ZooError, needs

with needs("train", command=__name__ == "__main__"):
    import tensorboard  # noqa: F401  (train.run_log's)
    import torch
    import tyro
    from accelerate import Accelerator, PartialState
    from torch import Tensor

from train.batches import batches, open_images, share_of, steps_in_epoch
from train.checkpoint import Progress, last_checkpoint, load_checkpoint, read_progress, save_checkpoint
from train.gradcache import cached_backward
from train.method import Method, Step
from train.monitor import first_bad_tensor, save_batch
from train.optim import make_optimizer
from train.probe import probe_beside
from train.recipe import Recipe, find_recipe, recipes
from train.run_folder import holds_weights_of, only_run_in, run_card, same_run, same_step_everywhere
from train.stopping import EXIT_CODE, stop_requests
from train.views import Views
from train.watch import Watch
from zoo.encoder import new_encoder, save_encoder, save_head
from zoo.energy import EnergyMeter
from zoo.names import parse_name

LOG_EVERY = 10  # steps between looks at the loss, each of which waits for the device
SAVE_EVERY = 60  # seconds of training that a kill may cost where an epoch is longer


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
    compile: bool = False,
) -> Path:
    """Train the encoder of `recipe`, or go on with it, and return the run folder, which `zoo.load` opens.

    data: as for `zoo.split.open_split`; `folder:PATH` takes any images. out: the run folder, by default runs/NAME.
    limit: train on that many images. knn_every: epochs between looks at k-NN accuracy on held-out train images; 0 for
    none. chunk: images of a process that go through the encoder at a time, for a batch that the memory does not hold:
    the gradient of the whole batch all the same, but batch normalisation sees a chunk; 0 for all at once. stream: read
    and decode the images while training, from a folder, Parquet or tar shards, rather than once before; always so above
    96 px. workers: threads of each process that decode them. compile: torch.compile.
    Raises BadData; CorruptFile if the last checkpoint cannot be read; ZooError if another process trains there, the
    folder holds a run with other numbers, or the loss is not finite. SIGTERM ends it with SystemExit(143), all saved.
    """
    accelerator = Accelerator()
    _refuse_accumulation(accelerator)
    rank, world = accelerator.process_index, accelerator.num_processes
    main, device = accelerator.is_main_process, accelerator.device
    folder = out or Path("runs", recipe.name)
    images = open_images(parse_name(recipe.name).dataset, data, stream=stream, limit=limit)
    steps_per_epoch = steps_in_epoch(len(images), recipe.batch_size, world)
    total = recipe.epochs * steps_per_epoch

    torch.manual_seed(recipe.seed)
    encoder = new_encoder(recipe.name)
    method = recipe.method(encoder)
    method.prepare(len(images))
    probe = probe_beside(method, images)
    method = method.to(device).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(
        recipe.optimizer,
        method,
        lr=recipe.peak_learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    views = Views(
        recipe.view1,
        recipe.view2,
        size=lambda step: recipe.size_at(step / steps_per_epoch, encoder.image_size),
        seed=recipe.seed,
    )

    with only_run_in(folder, main=main):
        data_read = {"images": len(images), "data": images.sha256}
        process = {"recipe": recipe.name, "precision": accelerator.mixed_precision, "chunk": chunk}
        process["processes"] = world  # each has batch statistics of its own
        progress = Progress(0, 0.0, recipe.numbers() | data_read | process, joules=0.0)
        checkpoint = last_checkpoint(folder / "checkpoints")
        if checkpoint:
            progress = same_run(read_progress(checkpoint), progress, folder)
            load_checkpoint(checkpoint, method, optimizer)
        same_step_everywhere(progress.step, folder)
        if compile:
            method.compile()
        model, optimizer = accelerator.prepare(method, optimizer)
        started, energy = time.monotonic() - progress.seconds, EnergyMeter(progress.joules)
        saved, stopping = time.monotonic(), False
        loader = batches(
            images,
            views,
            first=progress.step,
            last=total,
            batch_size=recipe.batch_size,
            rank=rank,
            world=world,
            workers=workers,
        )
        watch_me: Any = {"step": progress.step, "total": total, "knn_every": knn_every, "probe": probe, "data": data}
        with (
            Watch(folder, recipe, method, images, **watch_me) if main else nullcontext() as watch,
            stop_requests() as stop_asked,
            closing(loader),
        ):
            if main and progress.step == total and not holds_weights_of(folder, total):
                save_encoder(method.encoder, folder, run_card(recipe, progress, steps_per_epoch, accelerator))
            for step, pixels in enumerate(loader, progress.step):
                learning_rate = _set_learning_rate(optimizer, recipe, step / steps_per_epoch)
                view1, view2 = views(_on(device, pixels), step, rank, world)
                rows = share_of(images, step, recipe.batch_size, recipe.seed, rank=0, world=1)  # of all processes
                method.before_step(torch.from_numpy(rows).to(device))
                outcome = _backward(accelerator, model, method, view1, view2, chunk)
                done, epoch = step + 1, (step + 1) / steps_per_epoch
                look = done % LOG_EVERY == 0 or epoch.is_integer() or done == 1
                if watch:
                    watch.step(outcome)
                if look or device.type == "cpu":  # elsewhere the question would wait for the device
                    _check_finite(outcome.loss, done, method, view1, view2, folder if main else None)
                optimizer.step()
                optimizer.zero_grad()
                method.after_step(outcome, done / total)
                if probe:
                    probe.learn(rows, rate=learning_rate / (recipe.peak_learning_rate or 1), chunk=chunk or len(view1))

                stopping = stop_asked()
                if watch:
                    watch.bar.update()
                    if look:
                        watch.look(done, epoch, loss=outcome.loss, learning_rate=learning_rate)
                    if epoch.is_integer() or stopping or time.monotonic() - saved > SAVE_EVERY:
                        saved = time.monotonic()
                        progress = replace(progress, step=done, seconds=saved - started, joules=energy.joules())
                        card = run_card(recipe, progress, steps_per_epoch, accelerator)
                        save_head(method, folder, save_encoder(method.encoder, folder, card))
                        # The checkpoint comes last: a kill before it repeats some steps and loses nothing.
                        save_checkpoint(folder / "checkpoints", method, optimizer, progress)
                if stopping:
                    break
            if watch and not stopping:
                watch.report()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if stopping:
        if main:
            print(f"stopped by SIGTERM, all is saved in {folder}; the same command goes on", file=sys.stderr)
        raise SystemExit(EXIT_CODE)
    return folder


def _refuse_accumulation(accelerator: Accelerator) -> None:
    n = accelerator.gradient_accumulation_steps
    if n != 1:
        raise ZooError(
            f"gradient accumulation over {n} batches does not enlarge the negatives: each would be contrasted with "
            "itself alone. Leave it at 1; a larger --batch-size with --chunk fits the memory and keeps the loss"
        )


def _on(device: torch.device, pixels: Tensor) -> Tensor:
    """The pixels on the device; the copy to a GPU runs beside what was asked for before."""
    if device.type == "cuda":
        return pixels.pin_memory().to(device, non_blocking=True)
    return pixels.to(device)


def _backward(
    accelerator: Accelerator, model: torch.nn.Module, method: Method, view1: Tensor, view2: Tensor, chunk: int
) -> Step:
    """Gradients of the batch's loss, in one pass or `chunk` images at a time."""
    if chunk:
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


def _check_finite(loss: Tensor, done: int, method: Method, view1: Tensor, view2: Tensor, folder: Path | None) -> None:
    """Raises ZooError if the loss is not finite; names what broke and, given a folder, saves the batch there.

    Every process asks after the same steps and has the same loss, so none is left waiting for another.
    """
    value = loss.item()
    if math.isfinite(value):
        return
    bad = first_bad_tensor(method, view1, view2)
    where = f" The batch is in {save_batch(folder, view1, view2, done)}." if folder else ""
    raise ZooError(
        f"the loss is {value} after {done} steps; the first tensor that is not finite: {bad}.{where} The checkpoints "
        "hold the last good state. Start again with a lower --learning-rate, a longer --warmup-epochs, another --out"
    )


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
            chunk: int = 0,
            stream: bool = False,
            workers: int = 2,
            compile: bool = False,
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
                compile: Compile the networks with torch.compile.
            """
            flags: dict[str, Any] = {"knn_every": knn_every, "chunk": chunk, "stream": stream}
            return pretrain(recipe, data=data, out=out, limit=limit, workers=workers, compile=compile, **flags)

        folder = tyro.cli(command_line, prog=f"train/pretrain.py {recipe.name}", args=sys.argv[2:])
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    if PartialState().is_main_process:
        print(f'{folder}: trained. Next: zoo.load("{folder}"), python -m eval.score {folder}')


if __name__ == "__main__":
    main()
