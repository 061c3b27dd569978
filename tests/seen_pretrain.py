"""train/pretrain.py as it is, in a process that writes down every picture that reaches the network.

    accelerate launch tests/seen_pretrain.py FOLDER RECIPE [flags]

Where a view is the whole picture, FOLDER/RANK.jsonl gets the digests of the first views, one line a step.
"""

import hashlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from train.views import Views

ROOT = Path(__file__).parents[1]
WHOLE = {"crop_area": (1, 1), "crop_ratio": (1, 1), "flip": 0, "jitter": 0, "grey": 0}  # of ViewPolicy


def digest(picture: np.ndarray) -> str:
    """Of (H, W, 3) uint8."""
    return hashlib.blake2b(np.ascontiguousarray(picture).tobytes(), digest_size=8).hexdigest()


def write_down(folder: Path, stop_in: int | None = None, by: int = signal.SIGKILL) -> None:
    """Write down from now on what this process trains on. stop_in: a step, in which the signal `by` comes."""
    folder.mkdir(parents=True, exist_ok=True)
    make = Views.__call__

    def watched(self: Views, images: Any, step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, ...]:
        views = make(self, images, step, rank, world)
        if world > 1:  # what the main process alone shows on the page at the end is no training
            levels = (views[0].permute(0, 2, 3, 1) * 255).round().byte().numpy()
            line = json.dumps({"step": step, "pid": os.getpid(), "pictures": [digest(picture) for picture in levels]})
            with (folder / f"{rank}.jsonl").open("a") as file:
                file.write(line + "\n")
        if step == stop_in:
            os.kill(os.getpid(), by)
        return views

    Views.__call__ = watched  # type: ignore[method-assign]


def _lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What one process has written down; a line that a kill cut short is left out."""
    path = folder / f"{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def seen_by(folder: Path, rank: int) -> dict[int, list[str]]:
    """step: digests of the pictures that one process trained on, in order."""
    lines = _lines(folder, rank)
    assert len({line["step"] for line in lines}) == len(lines)
    return {line["step"]: line["pictures"] for line in lines}


def pids_of(folder: Path) -> list[int]:
    """The two processes that write there."""
    return [_lines(folder, rank)[-1]["pid"] for rank in (0, 1)]


def trained_on(lives: Sequence[Path]) -> list[list[str]]:
    """The pictures of each step, over both processes and all lives of a run.

    A life that goes on from before the end of the one that was killed makes the steps between again, of the same
    pictures: their first making is lost with its weights.
    """
    steps: dict[int, list[str]] = {}
    for life in lives:
        first, second = seen_by(life, 0), seen_by(life, 1)
        together = {step: first[step] + second[step] for step in sorted(first.keys() & second.keys())}
        assert min(together) <= len(steps), f"{life} leaves out steps"
        assert all(steps[step] == together[step] for step in together if step in steps)
        steps |= together
    assert list(steps) == list(range(len(steps)))
    return list(steps.values())


if __name__ == "__main__":
    write_down(Path(sys.argv.pop(1)))
    sys.argv[0] = str(ROOT / "train" / "pretrain.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
