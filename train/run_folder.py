"""A run's folder: one training at a time, always of the same numbers, and the card that tells of it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from accelerate import Accelerator

from train.checkpoint import Progress
from train.recipe import Recipe, differences, find_recipe
from zoo.card import Card
from zoo.encoder import accelerator_name
from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.provenance import command, hardware, today, versions
from zoo.store import checked_weights, read_card

# Files that a kill left half-written, under names that nothing reads.
LEFT_BEHIND = (".card.json.*", ".*.safetensors.*", ".log.jsonl.*", "checkpoints/.step-*")


@contextmanager
def only_run_in(folder: Path, *, main: bool) -> Iterator[None]:
    """Hold the run folder's lock, which the system lets go of when the process dies, however it dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        if main:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ZooError(f"another process trains in {folder}; wait for it, or give another --out") from error
            for pattern in LEFT_BEHIND:
                for path in folder.glob(pattern):
                    path.unlink()
        yield


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


def run_card(recipe: Recipe, progress: Progress, steps_per_epoch: int, accelerator: Accelerator) -> Card:
    """The recipe's card with the record of this run. A changed recipe expects nothing published."""
    changed = differences(find_recipe(recipe.name).numbers(), recipe.numbers())
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
    if progress.joules is not None:
        training["energy_kwh"] = round(progress.joules / 3.6e6, 6)
    card = recipe.card()
    expects = f"none published with {'; '.join(changed)}" if changed else card.expects
    return replace(card, expects=expects, training=training)
