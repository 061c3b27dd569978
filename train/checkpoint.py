"""The state of a training run in one safetensors file: written aside and renamed, the last two kept, never a pickle.

Each file carries a digest of all that it holds, so that a bit that has flipped on the disk is noticed when the run is
resumed.
"""

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.errors import CorruptFile, ZooError
from zoo.files import new_file

KEPT = 2
# What older versions call a method's tensors, and what they are called now: (pattern, replacement).
RENAMED = (
    (r"^queues\.(\d+)\.rows$", r"queues.\1.keys"),
    (r"^key_encoder\.(\d+)\.", r"key_encoder.network.\1."),
    (r"^shuffled\.", "key_encoder.shuffle."),
)


@dataclass(frozen=True)
class Progress:
    """How far a run is, beside its tensors."""

    step: int  # optimizer updates done
    seconds: float  # spent training so far
    settings: dict[str, Any]  # hyperparameters and data: what must not change when the run is resumed
    joules: float | None = None  # used so far by the machine, where it counts them


class Checkpoint(NamedTuple):
    """What one checkpoint file holds."""

    path: Path
    progress: Progress
    tensors: dict[str, Tensor]  # method.NAME and optimizer.INDEX.NAME


def save_checkpoint(folder: Path, method: nn.Module, optimizer: Optimizer, progress: Progress) -> Path:
    """Write the state after `progress.step` updates into `folder`, then delete all but the last two.

    Raises:
        ZooError: If it cannot be written, as on a full disk. Earlier checkpoints stay.
    """
    tensors = {f"method.{key}": value for key, value in method.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": v for key, v in state.items() if isinstance(v, Tensor)}
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    text = json.dumps(progress.__dict__)
    path = folder / f"step-{progress.step:08d}.safetensors"
    with new_file(path) as aside:
        try:
            save_file(tensors, aside, metadata={"progress": text, "sha256": digest(tensors, text)})
        except SafetensorError as error:  # safetensors' name for a full disk, too
            raise ZooError(
                f"cannot write {path}: {error}. The earlier checkpoints are untouched: make room, and the same command "
                "goes on from the last one"
            ) from error
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def digest(tensors: dict[str, Tensor], progress: str) -> str:
    """SHA-256, hexadecimal, of names, types, shapes and values of the tensors (on the CPU), and of the progress."""
    found = hashlib.sha256(progress.encode())
    for key in sorted(tensors):
        value = tensors[key].contiguous()
        found.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            found.update(value.flatten().view(dtype=torch.uint8).numpy().tobytes())
    return found.hexdigest()


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first. Files under other names, such as a user's copies, are left out."""
    ours = [path for path in folder.glob("step-*.safetensors") if path.stem.removeprefix("step-").isdecimal()]
    return sorted(ours, key=_step)


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, if there is one."""
    return next(reversed(checkpoints(folder)), None)


def read_checkpoint(path: Path) -> Checkpoint:
    """All that a checkpoint holds, on the CPU.

    Raises:
        CorruptFile: If it is not a checkpoint, or not what was once written. Files of versions that wrote no digest
            are taken as they are.
    """
    if path.is_dir():
        raise CorruptFile(f"{path} is a folder, not a checkpoint")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            progress = Progress(**json.loads(metadata["progress"]))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path} is not a checkpoint ({error})") from error
    if "sha256" in metadata and metadata["sha256"] != digest(tensors, metadata["progress"]):
        raise CorruptFile(f"{path} is damaged: its content does not have the SHA-256 that was written with it")
    return Checkpoint(path, progress, tensors)


def read_progress(path: Path) -> Progress:
    """How far the run of a checkpoint is. Raises CorruptFile as `read_checkpoint` does."""
    return read_checkpoint(path).progress


def restore(checkpoint: Checkpoint, method: nn.Module, optimizer: Optimizer) -> None:
    """Load the state of a checkpoint into a fresh method and optimizer of the same recipe.

    Raises:
        CorruptFile: If it is the state of another method.
    """
    tensors = checkpoint.tensors
    weights = {_present_name(key.removeprefix("method.")): v for key, v in tensors.items() if key.startswith("method.")}
    try:
        method.load_state_dict(weights)
    except RuntimeError as error:
        raise CorruptFile(
            f"{checkpoint.path} is of another method or version ({error}). Give another --out, or delete the folder to "
            "start anew"
        ) from error
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _present_name(key: str) -> str:
    for pattern, replacement in RENAMED:
        key = re.sub(pattern, replacement, key)
    return key


def newest_readable(folder: Path) -> tuple[Checkpoint | None, list[CorruptFile]]:
    """The newest checkpoint in `folder` that is sound, and why each newer one is not; None if there are no files.

    Raises:
        CorruptFile: If there are checkpoints, and none of them can be read.
    """
    damaged: list[CorruptFile] = []
    for path in reversed(checkpoints(folder)):
        try:
            return read_checkpoint(path), damaged
        except CorruptFile as error:
            damaged.append(error)
    if damaged:
        raise CorruptFile(
            f"no checkpoint of the run can be read: {'; '.join(map(str, damaged))}. Restore one of them from a copy, "
            f"or delete {folder} to start anew"
        )
    return None, []


def set_aside(folder: Path, *, newer_than: int) -> None:
    """Rename the checkpoints in `folder` of steps above `newer_than`, so that they are neither read nor overwritten."""
    for path in checkpoints(folder):
        if _step(path) > newer_than:
            names = (folder / f"damaged-{nth}-{path.name}" for nth in itertools.count(1))
            path.rename(next(name for name in names if not name.exists()))
