"""What a run says while it runs: one JSON object a line, and the same numbers for TensorBoard and Weights & Biases."""

import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, final

from torch.utils.tensorboard import SummaryWriter

from zoo.files import write_bytes

PROJECT = "contrastive-zoo"  # of runs on Weights & Biases


@final
class RunLog:
    """Appends to `log.jsonl` and `tensorboard/` in a run folder; lines after `step` go, for they will come again.

    Where the package wandb is installed, its run of the same folder gets the same numbers.
    """

    def __init__(self, folder: Path, *, step: int, config: dict[str, Any], wandb_project: str = PROJECT) -> None:
        """step: updates done so far. config: what Weights & Biases shows as the run's configuration."""
        path = folder / "log.jsonl"
        if path.exists():
            write_bytes(path, "".join(line + "\n" for line in _lines_until(path, step)).encode())
        self._file: IO[str] = path.open("a", buffering=1)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self._wandb = _weights_and_biases(folder, config, wandb_project)

    def write(self, step: int, **numbers: float) -> None:
        """Record numbers after `step` updates."""
        self._file.write(json.dumps({"step": step, **numbers}) + "\n")
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Write out what the boards still hold."""
        self._file.close()
        self._board.close()
        if self._wandb:
            self._wandb.finish()


def _weights_and_biases(folder: Path, config: dict[str, Any], project: str) -> Any:
    """The W&B run of this folder, or None. Without WANDB_API_KEY it stays on this machine: `wandb sync` uploads it."""
    try:
        version("wandb")
    except PackageNotFoundError:
        return None
    import wandb

    mode: Any = os.environ.get("WANDB_MODE") or ("online" if "WANDB_API_KEY" in os.environ else "offline")
    identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return wandb.init(
        project=project, name=folder.name, id=identity, resume="allow", dir=str(folder), mode=mode, config=config
    )


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a last line that a kill cut short is left out."""
    return [json.loads(line) for line in _lines_until(folder / "log.jsonl", None)]


def _lines_until(path: Path, step: int | None) -> list[str]:
    """The lines up to `step`; what a kill or a power cut left broken ends them."""
    whole = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            of = json.loads(line)["step"]
        except (json.JSONDecodeError, TypeError, KeyError):
            break
        if step is None or of <= step:
            whole.append(line)
    return whole
