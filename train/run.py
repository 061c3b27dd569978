"""A training run as one value: what is trained, on what, how far it is, and the folder that keeps it."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from train.batches import ImageBatch, batches, monitored_images, share_what_is_skipped, steps_in_epoch
from train.batchnorm import least_unit
from train.checkpoint import Progress
from train.config import write_config
from train.gather import from_main
from train.gradcache import cached_backward
from train.launch import new_accelerator, set_threads
from train.method import Batch, Method, Step, loss_of
from train.monitor import check_finite, gradient_norms
from train.optim import make_optimizer
from train.options import Options
from train.probe import OnlineProbe, probe_beside
from train.recipe import Recipe
from train.run_folder import RunFolder, divergence_explained, only_run_in, resume, run_settings
from train.start import start_from
from train.stopping import EXIT_CODE, report_end, stop_requests
from train.views import Views
from train.watch import Watch
from zoo.errors import BadNumber
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.names import split_name

OnLog = Callable[[dict[str, float]], None]  # gets each line of the log, on the main process
LOG_EVERY = 10  # steps between readings of the loss, each of which waits for the device


@dataclass(frozen=True)
class Epochs:
    """The length of a run, in optimizer updates."""

    steps: int  # of an epoch
    number: int

    @property
    def total(self) -> int:
        return self.number * self.steps


@final
class Run:
    """What the loop in `train.pretrain` goes through: `batches`, `backward`, `check`, `record`.

    Attributes:
        method: The algorithm with its encoder, as trained; `model` is what accelerate and DDP make of it.
        optimizer: Of the method's parameters.
        done: Optimizer updates so far.
        stopping: Whether SIGTERM, or the launcher's end, has asked the run to stop.
    """

    def __init__(self, recipe: Recipe, options: Options, on_log: OnLog | None = None) -> None:
        self.recipe, self.options, self._on_log = recipe, options, on_log
        self.folder = options.out or Path("runs", recipe.name)
        self.accelerator = new_accelerator()
        set_threads(options.threads, self.accelerator)
        self.main, self.device = self.accelerator.is_main_process, self.accelerator.device
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.images = train_images(recipe, options)
        steps = steps_in_epoch(len(self.images), recipe.batch_size, self.world)
        self.epochs = Epochs(steps, recipe.epochs)
        self.chunks = chunks_of(recipe.batch_size // self.world, options.chunk)
        self.done, self.stopping = 0, False
        self.method, self.probe, self._monitored = new_method(recipe, self.images, self.device, main=self.main)
        self._start = (
            start_from(self.method, options.start, name=recipe.name, main=self.main) if options.start else None
        )
        self.optimizer: Optimizer = make_optimizer(
            recipe.optimizer, self.method, lr=recipe.peak_learning_rate, momentum=recipe.momentum,
            weight_decay=recipe.weight_decay, backbone_rate=options.backbone_rate,
        )  # fmt: skip
        self.model: nn.Module = self.method
        image_size = self.method.encoder.image_size
        self.views = Views(
            *recipe.view_policies, seed=recipe.seed, sizes=lambda step: recipe.sizes_at(step / steps, image_size)
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the block runs, the run goes on from its last checkpoint in its folder, which nobody else writes to."""
        with ExitStack() as stack:
            stack.enter_context(only_run_in(self.folder, main=self.main))
            settings = run_settings(self.recipe, self.images, self.accelerator, options=self.options, start=self._start)
            progress = resume(self.folder, self.method, self.optimizer, settings, main=self.main)
            self.done = progress.step
            self._keep(progress)
            if self.options.compile:
                self.method.compile()
            self.model, self.optimizer = self.accelerator.prepare(self.method, self.optimizer)
            self._watch = stack.enter_context(self._new_watch()) if self._monitored else None
            self._stop_asked = stack.enter_context(stop_requests())
            stack.enter_context(divergence_explained(self.folder))
            yield
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()
        if self.stopping:
            if self.main:
                line = f"stopped by SIGTERM, all is saved in {self.folder}; the same command goes on"
                print(report_end(line), file=sys.stderr)
            raise SystemExit(EXIT_CODE)

    def batches(self) -> Iterator[Batch]:
        """The batches that are still to be trained on, on the device, until the end or a request to stop. Sets each
        one's learning rate."""
        with closing(self._image_batches()) as found:
            for images in found:
                self._set_learning_rate()
                views = self.views(self._on_device(images.pixels), self.done, self.rank, self.world)
                indices = torch.from_numpy(images.indices).to(self.device)
                self._indices, self._chunk = images.indices, self._chunk_of(len(views[0]))
                yield Batch(views, indices, (self.done + 1) / self.epochs.total)
                if self.stopping:
                    return

    def backward(self, batch: Batch) -> Step:
        """Gradients of the batch's loss: project, gather, loss, backward; in equal chunks if asked for.

        Returns:
            The step; on the main process with the norms of the gradients among its metrics.
        """
        backward, autocast = self.accelerator.backward, self.accelerator.autocast
        if self._chunk < len(batch.views[0]):
            step = cached_backward(self.method, batch, chunk=self._chunk, backward=backward, autocast=autocast)
        else:
            step = loss_of(self.method, self.model(batch.views), batch)
            backward(step.loss)
        norms = gradient_norms(self.method) if self.main else {}
        if self.done < self.options.freeze_epochs * self.epochs.steps:
            for parameter in self.method.encoder.parameters():
                parameter.grad = None  # the optimizer passes over it
        return step._replace(metrics={**step.metrics, **norms})

    def check(self, step: Step, batch: Batch) -> None:
        """Stop at a loss that is not finite. Raises ZooError, which names what broke and where the batch is kept.

        On a GPU only where the loss is logged, for reading it waits for the device.
        """
        if self._logs(self.done + 1) or self.device.type == "cpu":
            check_finite(step.loss, self.done + 1, self.method, batch.views, self.folder if self.main else None)

    def record(self, step: Step) -> None:
        """Count the update; teach the online probe, log and save what is due, and ask whether to stop."""
        self.done += 1
        if self.probe:
            rate = self._learning_rate / (self.recipe.peak_learning_rate or 1)
            self.probe.learn(self._indices, rate=rate, chunk=self._chunk)
        if self._watch:
            self._watch.step(step)
        if self._logs(self.done):
            share_what_is_skipped(self.images)
            if self._watch:
                epoch = self.done / self.epochs.steps
                line = self._watch.log(self.done, epoch, loss=step.loss, learning_rate=self._learning_rate)
                if self._on_log:
                    self._on_log(line)
        if self.main and self._keeps_model():
            self._kept.keep_model(self.done)
        self.stopping = self._stop_asked()
        if self.main and (self.stopping or self._kept.is_due(self.done)):
            self._kept.save(self.done)

    def report(self) -> None:
        """Write the page of a run that has come to its end."""
        if self._watch and not self.stopping:
            self._watch.report()

    def _keep(self, progress: Progress) -> None:
        self._kept = RunFolder(
            self.folder, self.recipe, self.method, self.optimizer, self.accelerator, progress=progress,
            total=self.epochs.total,
        )  # fmt: skip
        if self.main and self.done == self.epochs.total:
            self._kept.write_lost_weights()
            line = f"{self.folder} has all its {self.epochs.number} epochs; to train further, start a new run from it"
            print(f"{line}: --start {self.folder} --out ANOTHER", file=sys.stderr)
        elif self.main:
            self._kept.rehearse()
            write_config(self.folder, self.recipe, self.options)

    def _new_watch(self) -> Watch:
        assert self._monitored is not None
        return Watch(
            self.folder, self.recipe, self.method, self.images, self._monitored, step=self.done,
            total=self.epochs.total, options=self.options, probe=self.probe,
        )  # fmt: skip

    def _image_batches(self) -> Generator[ImageBatch]:
        batch_size = self.recipe.batch_size
        return batches(
            self.images, self.views, first=self.done, last=self.epochs.total, batch_size=batch_size, rank=self.rank,
            world=self.world, workers=self.options.workers, unit=self._unit,
        )  # fmt: skip

    def _on_device(self, pixels: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        if isinstance(pixels, Tensor):
            return _on(self.device, pixels)
        return tuple(_on(self.device, crops) for crops in pixels)

    @property
    def _unit(self) -> int:
        """What the number of images in a short batch is a multiple of: as many chunks, or chunks as large."""
        return min(self.chunks * least_unit(self.method), self.options.chunk or self.recipe.batch_size)

    def _chunk_of(self, size: int) -> int:
        """Images that go through the encoder at a time, of `size` in this process's batch."""
        return self.options.chunk if self._unit == self.options.chunk else size // self.chunks

    def _set_learning_rate(self) -> None:
        self._learning_rate = self.recipe.learning_rate_at(self.done / self.epochs.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate * group.get("rate", 1.0)

    def _keeps_model(self) -> bool:
        """Whether the model is kept after this update: at the end of each `keep_every` epochs."""
        every = self.options.keep_every * self.epochs.steps
        return every > 0 and self.done % every == 0

    def _logs(self, done: int) -> bool:
        """Whether the loss after `done` updates is logged: the first, each tenth, and each epoch's last."""
        return done == 1 or done % LOG_EVERY == 0 or done % self.epochs.steps == 0


def train_images(recipe: Recipe, options: Options) -> ImageSet:
    """The images to train on, as many as asked for. What is larger than the data set's cached pixels is streamed."""
    larger = (recipe.image_size or 0) > recipe.dataset.image_size
    images = open_images(split_name(recipe.name).dataset, "train", options.data, stream=options.stream or larger)
    sample = images.sample(options.limit)
    return sample if sample.square else sample.whole()  # views are cut from all of each picture


def new_method(
    recipe: Recipe, images: ImageSet, device: torch.device, *, main: bool
) -> tuple[Method, OnlineProbe | None, ImageSet | None]:
    """The recipe's method on the device, initialized by its seed; the probe that learns beside it; and, on the main
    process, the images that it is monitored with."""
    torch.manual_seed(recipe.seed)
    method = recipe.method(recipe.new_encoder())
    method.prepare(len(images))
    monitored, indices = monitored_images(images, method.encoder.image_size) if main else (None, np.empty(0))
    probe = probe_beside(method, images, from_main(indices))
    return method.to(device).to(memory_format=torch.channels_last), probe, monitored


def chunks_of(share: int, chunk: int) -> int:
    """In how many chunks `share` images go through the encoder. Raises BadNumber if `chunk` does not divide them."""
    if chunk and share % chunk:
        raise BadNumber(f"--chunk {chunk} does not divide the {share} images of each process in a batch")
    return share // (chunk or share)


def _on(device: torch.device, pixels: Tensor) -> Tensor:
    """The pixels on the device; a copy to a GPU runs beside what was asked for before."""
    return pixels.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else pixels.to(device)
