"""The state of a run in one safetensors file: written aside and renamed, the last two kept, never a pickle."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from zoo.errors import CorruptFile, ZooError
from zoo.files import new_file

KEPT = 2


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside its tensors."""

    step: int  # optimiser updates done
    seconds: float  # spent training so far
    settings: dict[str, Any]  # recipe numbers and data: what must not change between two starts
    joules: float | None = None  # spent so far by the machine, where it counts them


def save_checkpoint(folder: Path, method: nn.Module, optimizer: Optimizer, progress: Progress) -> Path:
    """Write the state after `progress.step` updates into `folder`, then delete all but the last two.

    Raises ZooError if it cannot be written, as on a full disk; the earlier ones stay.
    """
    tensors = {f"method.{key}": value for key, value in method.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": v for key, v in state.items() if isinstance(v, Tensor)}
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    path = folder / f"step-{progress.step:08d}.safetensors"
    with new_file(path) as aside:
        try:
            save_file(tensors, aside, metadata={"progress": json.dumps(progress.__dict__)})
        except SafetensorError as error:  # its name for a full disk, too
            raise ZooError(
                f"cannot write {path}: {error}. The earlier checkpoints are untouched: make room, and the same command "
                "goes on from the last one"
            ) from error
    for old in _checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first; a copy that somebody put beside them under another name is none of ours."""
    ours = [path for path in folder.glob("step-*.safetensors") if path.stem.removeprefix("step-").isdecimal()]
    return sorted(ours, key=_step)


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, if there is one."""
    return next(reversed(_checkpoints(folder)), None)


def read_progress(path: Path) -> Progress:
    """What a checkpoint says of its run. Raises CorruptFile if it is not one."""
    try:
        with safe_open(path, "pt") as file:
            return Progress(**json.loads(file.metadata()["progress"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path} is not a checkpoint ({error}). {_way_out(path)}") from error


def load_checkpoint(path: Path, method: nn.Module, optimizer: Optimizer) -> None:
    """Put the state of `path` into a fresh method and optimiser of the same recipe. Raises CorruptFile if it cannot."""
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    weights = {key.removeprefix("method."): v for key, v in tensors.items() if key.startswith("method.")}
    try:
        method.load_state_dict(weights)
    except RuntimeError as error:
        raise CorruptFile(f"{path} is of another method or version ({error}). {_way_out(path)}") from error
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _way_out(path: Path) -> str:
    """What to do about a checkpoint that cannot be read."""
    before = [other.name for other in _checkpoints(path.parent) if _step(other) < _step(path)]
    if before:
        return f"Delete it: the run then goes on from the one before, {before[-1]}"
    return "Delete it: there is none before it, so the run then starts anew"
