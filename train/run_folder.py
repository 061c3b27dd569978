"""A run's folder: one training at a time, of fixed hyperparameters; its checkpoints, its encoder and the card."""

import fcntl
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer

from train.checkpoint import Progress, last_checkpoint, newest_readable, restore, save_checkpoint, set_aside
from train.method import Method
from train.monitor import NotFinite, check_state
from train.options import Options
from train.recipe import Recipe, differences, recipes
from train.start import Start
from zoo.energy import EnergyMeter
from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.hub.store import checked_weights, read_card
from zoo.images.image_set import ImageSet
from zoo.model.card import Card
from zoo.model.encoder import accelerator_name, save_encoder, save_head
from zoo.provenance import command, hardware, today, versions

REHEARSAL = ".rehearsal-"  # prefix of the folder that `RunFolder.rehearse` writes to
# Files that a kill left half-written, under names that nothing reads.
LEFT_BEHIND = (
    ".card.json.*", ".*.safetensors.*", ".log.jsonl.*", ".skipped.txt.*", ".report.html.*", "checkpoints/.step-*",
    ".run.yaml.*", "epochs/*/.*.safetensors.*", "epochs/*/.card.json.*",
    f"checkpoints/{REHEARSAL}*",
)  # fmt: skip
WRITTEN = ("card.json", "model.safetensors", "head.safetensors", "log.jsonl", "skipped.txt", "report.html")
SAVE_EVERY = 60  # seconds of training that a kill may cost where an epoch is longer
WORTH_SAVING = 20  # times as long as saving took last: until then it waits, so it costs a twentieth of the time


@contextmanager
def only_run_in(folder: Path, *, main: bool) -> Iterator[None]:
    """While the block runs, no other training starts in the folder, and what a kill left half-written there is gone.

    The lock is the main process's, and goes with it, however it dies. Raises ZooError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ZooError(f"cannot keep a run in {folder}: {error.strerror}. Give another --out") from error
    with lock:
        if main:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ZooError(f"another process trains in {folder}; wait for it, or give another --out") from error
            for pattern in LEFT_BEHIND:
                for path in folder.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def run_settings(
    recipe: Recipe, images: ImageSet, accelerator: Accelerator, *, options: Options, start: Start | None
) -> dict[str, Any]:
    """What must not change when a run is resumed; each process has batch statistics of its own.

    Options at their default are left out, as versions before them did.
    """
    chosen = {key: getattr(options, key) for key in ("freeze_epochs", "backbone_rate")}
    extra = {key: value for key, value in chosen.items() if value != getattr(Options, key)}
    if start:
        extra["start"] = start._asdict()
    data = {"images": len(images), "data": images.digest}
    process = {"precision": accelerator.mixed_precision, "chunk": options.chunk, "processes": accelerator.num_processes}
    return recipe.hyperparameters() | data | {"recipe": recipe.name} | process | extra


def resume(folder: Path, method: Method, optimizer: Optimizer, settings: dict[str, Any], *, main: bool) -> Progress:
    """Bring a fresh method and optimizer to the state of the newest sound checkpoint, if there is one.

    The main process reports damaged ones and sets them aside.

    Returns:
        How far the run is.

    Raises:
        CorruptFile: If there are checkpoints, and none can be read.
        ZooError: If they are of another run, or not the same on all processes.
    """
    progress, kept = Progress(0, 0.0, settings, joules=0.0), folder / "checkpoints"
    checkpoint, damaged = newest_readable(kept)
    if checkpoint:
        progress = same_run(checkpoint.progress, progress, folder)
        restore(checkpoint, method, optimizer)
    same_step_everywhere(progress.step, folder)
    if checkpoint and damaged and main:
        for error in damaged:
            print(f"warning: {error}", file=sys.stderr)
        print(f"warning: the run goes on from the checkpoint before, {checkpoint.path.name}", file=sys.stderr)
        set_aside(kept, newer_than=progress.step)
    return progress


@final
class RunFolder:
    """Writes what a run leaves in its folder: the state to resume from, and the encoder with its card."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        method: Method,
        optimizer: Optimizer,
        accelerator: Accelerator,
        *,
        progress: Progress,
        total: int,
    ) -> None:
        """progress: how far the run is. total: optimizer updates at its end."""
        self._folder, self._recipe, self._accelerator = folder, recipe, accelerator
        self._method, self._optimizer = method, optimizer
        self._progress, self._total, self._steps_per_epoch = progress, total, total // recipe.epochs
        self._energy = EnergyMeter(progress.joules)
        self._saved, self._saving = time.monotonic(), 0.0  # when it began last, and for how many seconds

    def write_lost_weights(self) -> None:
        """Write the encoder of a run that has ended, if the folder no longer holds it."""
        if self._progress.step == self._total and not holds_weights_of(self._folder, self._total):
            self._write_encoder(self._folder, self._progress)

    def rehearse(self) -> None:
        """Save the state into a temporary folder inside the run's and delete it: what would end a run at its first
        save, such as a full disk or a card that cannot be made, ends it before the first step.

        Raises:
            ZooError: If something cannot be written.
        """
        for name in WRITTEN:
            if (self._folder / name).is_dir():
                raise ZooError(f"{self._folder / name} is a folder, where a file is to be written. Give another --out")
        try:
            (self._folder / "checkpoints").mkdir(exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=REHEARSAL, dir=self._folder / "checkpoints"))
        except OSError as error:
            raise ZooError(f"cannot keep a run in {self._folder}: {error}. Give another --out") from error
        try:
            self._write_encoder(aside, self._progress)
            save_checkpoint(aside, self._method, self._optimizer, self._progress)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def keep_model(self, done: int) -> None:
        """Write the encoder after an epoch into a folder of its own, `epochs/NNNN`, which `zoo.load` opens."""
        epoch = done // self._steps_per_epoch
        self._write_encoder(self._folder / "epochs" / f"{epoch:04d}", self._progress_at(done))

    def is_due(self, done: int) -> bool:
        """Whether to save after `done` updates: at the end, at an epoch's, each minute, if it is worth it."""
        since = time.monotonic() - self._saved
        pause = done % self._steps_per_epoch == 0 or since > SAVE_EVERY
        return done == self._total or (pause and since > WORTH_SAVING * self._saving)

    def save(self, done: int) -> None:
        """Write encoder and card, then the checkpoint: a kill in between repeats some steps and loses nothing.

        Raises ZooError if it cannot be written, or is not finite.
        """
        check_state(self._method, done)
        now = time.monotonic()
        self._progress = self._progress_at(done)
        self._write_encoder(self._folder, self._progress)
        save_checkpoint(self._folder / "checkpoints", self._method, self._optimizer, self._progress)
        self._saved, self._saving = now, time.monotonic() - now

    def _progress_at(self, done: int) -> Progress:
        seconds = self._progress.seconds + time.monotonic() - self._saved
        return replace(self._progress, step=done, seconds=seconds, joules=self._energy.joules())

    def _write_encoder(self, folder: Path, progress: Progress) -> None:
        card = run_card(self._recipe, progress, self._steps_per_epoch, self._accelerator)
        if "start" in progress.settings:  # the normalization came along
            encoder = self._method.encoder
            card = replace(card, mean=_shortest(encoder.mean), std=_shortest(encoder.std))
        save_head(self._method, folder, save_encoder(self._method.encoder, folder, card))


@contextmanager
def divergence_explained(folder: Path) -> Iterator[None]:
    """While the block runs, NotFinite becomes a ZooError that names the last good state and what to change."""
    try:
        yield
    except NotFinite as error:
        last = last_checkpoint(folder / "checkpoints")
        kept = f"The last good state is in {last}" if last else "No checkpoint had been saved yet"
        raise ZooError(
            f"{error}. {kept}. Start again with a lower --learning-rate, a longer --warmup-epochs, another --out"
        ) from error


def same_run(found: Progress, mine: Progress, folder: Path) -> Progress:
    """The progress found in a checkpoint. Raises ZooError if it is of a run with other numbers, data or processes."""
    different = differences({"processes": 1} | found.settings, mine.settings)  # where none stand it was one
    if different:
        raise ZooError(
            f"{folder} holds a run with other numbers:\n  " + "\n  ".join(different) + "\n"
            "Go on with the same ones, give another --out, or delete the folder"
        )
    return found


def same_step_everywhere(step: int, folder: Path) -> None:
    """Raises ZooError if the processes found different checkpoints, as on machines that do not share the folder."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    steps: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    if len(set(steps)) > 1:
        raise ZooError(
            f"the processes would start after different steps: {steps}. All machines must see the same {folder}; "
            "put it on a shared disk and name it with --out"
        )


def holds_weights_of(folder: Path, step: int) -> bool:
    """Whether the card and the weights in `folder` agree with each other and with a checkpoint after `step` updates."""
    try:
        card = read_card(folder)
        checked_weights(folder, card)
    except (NoWeights, CorruptFile):
        return False
    return card.training.get("steps") == step


def _shortest(values: Tensor) -> tuple[float, float, float]:
    """Three float32 numbers as the shortest decimals that are them."""
    red, green, blue = (float(str(value)) for value in values.flatten().cpu().numpy())
    return red, green, blue


def run_card(recipe: Recipe, progress: Progress, steps_per_epoch: int, accelerator: Accelerator) -> Card:
    """The recipe's card with the record of this run. A changed or renamed recipe has no published result."""
    published = recipes().get(recipe.name)
    changed = (
        differences(published.hyperparameters(), recipe.hyperparameters())
        if published
        else ["a recipe of another name"]
    )
    training = {
        "steps": progress.step,
        "epochs": progress.step // steps_per_epoch,
        "images": progress.settings["images"],
        "data_sha256": progress.settings["data"],
        "seconds": round(progress.seconds, 1),
        "hardware": hardware(accelerator_name(accelerator.device), accelerator.num_processes),
        "precision": accelerator.mixed_precision,
        "date": today(),
        "versions": versions(),
        "command": command(),
    }
    if recipe.dataset.own:
        training["data_licence"] = recipe.dataset.licence
    if progress.joules is not None:
        training["energy_kwh"] = round(progress.joules / 3.6e6, 6)
    for key in ("start", "freeze_epochs", "backbone_rate"):
        if key in progress.settings:
            training[key] = progress.settings[key]
            changed = [*changed, f"{key} {progress.settings[key]}"]
    card = recipe.card()
    own = published is None and recipe.dataset.own
    expects = f"none published with {'; '.join(changed)}" if changed and not own else card.expects
    return replace(card, expects=expects, training=training)
