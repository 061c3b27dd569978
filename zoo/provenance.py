"""Where and when a number was made: what every reported result carries beside its value."""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RECORDED = ("contrastive-zoo", "torch", "timm", "accelerate", "numpy", "pillow")


def hardware(accelerator: str = "", processes: int = 1) -> str:
    """One line: `2 cores of AMD EPYC`, or `4 x NVIDIA H200, 16 cores of ...`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"{cores} cores of {_processor()}"
    if accelerator:
        return f"{processes} x {accelerator}, {machine}"
    return f"{processes} processes on {machine}" if processes > 1 else machine


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def today() -> str:
    """The date in UTC, as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def versions(*more: str) -> dict[str, str]:
    """Versions of Python and of the packages that decide a result, `more` of them for some."""
    found = {"python": platform.python_version()}
    for package in (*RECORDED, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | ({"commit": commit} if (commit := _commit()) else {})


def _commit() -> str:
    """The commit of the code that runs, with "-dirty" if files differ from it; "" outside a git checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("-dirty" if changed else "")


def command() -> str:
    """The command line of this process, as one would type it, without this machine's folders: cards are published."""
    words = shlex.join(map(_without_folder, sys.argv[1:]))
    if sys.argv[0].startswith("zoo ") and _runner() == "python":
        return f"{sys.argv[0]} {words}".rstrip()
    return " ".join([_runner(), _script(), words]).rstrip()


def _runner() -> str:
    """`python`, or `accelerate launch --mixed_precision bf16`: the precision is a flag of the launcher."""
    if not any(key.startswith("ACCELERATE_") for key in os.environ):
        return "python"
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    return "accelerate launch" + (f" --mixed_precision {precision}" if precision != "no" else "")


def _without_folder(word: str) -> str:
    """`cifar100=/home/me/data/cifar100` -> `cifar100=.../cifar100`."""
    return re.sub(r"(^|[=:])/(?:[^/]*/)*([^/]+)/*$", r"\1.../\2", word)


def _script() -> str:
    """`train/pretrain.py`, `-m eval.score` or `-m zoo.cli score` rather than an absolute path."""
    if sys.argv[0].startswith("zoo "):
        return f"-m zoo.cli {sys.argv[0].removeprefix('zoo ')}"
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return f"-m {spec.name}"
    path = Path(sys.argv[0])
    return str(Path(path.parent.name, path.name))
