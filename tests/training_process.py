"""Real trainings in processes of their own that start in milliseconds: forked from a server that has imported all.

`start` gives a process to kill; its function is what the command line calls, with the recipe changed by keywords.
"""

import multiprocessing
import os
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
from seen_pretrain import write_down
from torch import Tensor, nn

from train.losses import nt_xent
from train.method import Batch, LossRange, Method, Pair, Step
from train.methods.dual_temperature import SimCoRecipe
from train.pretrain import pretrain
from train.recipe import Recipe, find_recipe
from zoo.errors import ZooError
from zoo.model.encoder import Encoder

TINY = {"batch_size": 32, "epochs": 4, "warmup_epochs": 1}
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["training_process", "torch.utils.tensorboard", "sklearn.datasets", "matplotlib.figure"])


class Queued(Method):
    """A method whose keys of earlier batches are its negatives: what training moves beside the weights is a buffer."""

    queue: Tensor
    place: Tensor

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.register_buffer("queue", torch.randn(128, encoder.dim))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def project(self, views: tuple[Tensor, ...]) -> tuple[Pair]:
        query, key = (nn.functional.normalize(self.encoder(view)) for view in views)
        return (Pair(query, key.detach()),)

    def loss(self, pairs: tuple[Pair], batch: Batch) -> Step:
        ((query, key),) = pairs
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ nn.functional.normalize(self.queue).T], 1) / 0.2
        return Step(nn.functional.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long)), (key,))

    def after_step(self, step: Step, progress: float) -> None:
        (keys,) = step.keys
        rows = (self.place + torch.arange(len(keys))) % len(self.queue)
        self.queue[rows] = keys
        self.place.copy_((rows[-1] + 1) % len(self.queue))

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(5.0, 0.0)


class WithoutBatchNorm(Method):
    """NT-Xent over an encoder in which every row is normalised for itself, so batches may be split in any way."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        replace_modules(encoder, nn.BatchNorm2d, lambda norm: nn.GroupNorm(1, norm.num_features))

    def project(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(map(self.encoder, views))

    def loss(self, projections: tuple[Tensor, ...], batch: Batch) -> Step:
        return Step(nt_xent(torch.cat(projections), temperature=0.1))

    def loss_range(self, batch_size: int) -> LossRange:
        return LossRange(5.0, 0.0)


def replace_modules(network: nn.Module, kind: type[nn.Module], by: Callable[[Any], nn.Module]) -> None:
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, kind):
                setattr(module, name, by(child))


def comparable(method: Method, arithmetic: str) -> Method:
    """In float64, or smooth in float32: no rounding puts an activation on the other side of ReLU's kink."""
    if arithmetic == "smooth":
        replace_modules(method, nn.ReLU, lambda _: nn.GELU())
    return method.double() if arithmetic == "float64" else method


@dataclass(frozen=True, kw_only=True)
class SyncRecipe(SimCoRecipe):
    """SimCo in another arithmetic."""

    arithmetic: str = ""
    batchnorm: Literal["sync", "plain"] = "sync"

    def method(self, encoder: Encoder) -> Method:  # type: ignore[override]
        return comparable(super().method(encoder), self.arithmetic)


@dataclass(frozen=True, kw_only=True)
class ToyRecipe(Recipe):
    kind: str
    arithmetic: str = "float64"

    def method(self, encoder: Encoder) -> Method:
        if self.kind == "queued":
            return Queued(encoder)
        return comparable(WithoutBatchNorm(encoder), self.arithmetic)


def recipe_of(kind: str, **changes: Any) -> Recipe:
    """SimCo on digits, with SyncBN as `sync`, or one of the toys above with its numbers."""
    arithmetic = {"arithmetic": changes.pop("arithmetic")} if "arithmetic" in changes else {}
    simco = replace(find_recipe("simco-r20-digits"), **(TINY | changes))
    numbers = {field.name: getattr(simco, field.name) for field in fields(simco) if field.name != "batchnorm"}
    if kind == "simco":
        return simco
    if kind == "sync":
        return SyncRecipe(**numbers, **arithmetic)
    names = {field.name for field in fields(Recipe)} - {"view1", "view2"}
    return ToyRecipe(kind=kind, **{name: numbers[name] for name in names}, **arithmetic)


def start(kind: str, out: Path, *, rank: int = 0, world: int = 1, port: int = 0, **flags: Any) -> BaseProcess:
    """A training that runs in another process, its output in `OUT-RANK.txt`."""
    home = os.environ["ZOO_HOME"]
    process = _server.Process(target=_train, args=(kind, out, home, rank, world, port, flags))
    process.start()
    return process


def _train(kind: str, out: Path, home: str, rank: int, world: int, port: int, flags: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ["ZOO_HOME"] = home
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_PORT": str(port)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": str(world)}
    text = os.open(f"{out}-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(text, 1)
    os.dup2(text, 2)
    if "largest_file" in flags:  # bytes: past it the system refuses to write, as on a full disk
        most = flags.pop("largest_file")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if "seen" in flags:  # a folder, and perhaps the step and the signal that end it
        write_down(*flags.pop("seen"))
    changes = flags.pop("changes", {})
    try:
        pretrain(recipe_of(kind, **changes), out=out, **({"limit": 128, "knn_every": 0} | flags))
    except ZooError as error:
        print(f"error: {error}", flush=True)
        raise SystemExit(1) from error


def finish(process: BaseProcess) -> int:
    """Wait for a process; its exit code."""
    process.join(timeout=240)
    assert process.exitcode is not None, "still running"
    return process.exitcode


def text_of(out: Path, rank: int = 0) -> str:
    return Path(f"{out}-{rank}.txt").read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
