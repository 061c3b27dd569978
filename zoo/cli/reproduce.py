"""A checkpoint of the package from nothing: trained by its own command, measured, put beside the row that came with it.

    make reproduce                                                # the cheapest: mocov2-r20-cifar100
    make reproduce DATA=path/to/cifar100                          # from a copy of the data that is here
    zoo reproduce simco-r20-cifar100 --data path/to/cifar100

On the same kind of processor and with the same versions, the weights are the same to the bit before their rounding to
float16; elsewhere expect a number within the spread over seeds, not the same one.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from safetensors.numpy import load_file

from eval.seeds import results_of
from eval.tables import markdown
from zoo.cli.demo import run
from zoo.command_line import parse_and_call
from zoo.hub import store
from zoo.hub.store import WEIGHTS, read_card
from zoo.model.card import Card
from zoo.release.bundle import rounded

CHEAPEST = "mocov2-r20-cifar100"  # of the r20 rows the shortest training
PROTOCOL = "knn"


def reproduce(name: str = CHEAPEST, *, data: Path | None = None, out: Path = Path("runs/reproduce")) -> None:
    """Train and measure `name`, and print its row beside the one of the checkpoint inside the package.

    data: as for training; by default the Hub's copy. out: a folder; called again, it goes on where it stopped.
    Raises CorruptFile if no such checkpoint is there.
    """
    shipped, folder = read_card(store.BUNDLED / name), out / name
    launcher = ["accelerate", "launch", "--num_processes=1", "--num_machines=1", "--num_cpu_threads_per_process=1"]
    launcher += ["--dynamo_backend=no", f"--mixed_precision={shipped.training['precision']}"]
    run(*launcher, "-m", "zoo.cli", "train", name, "--out", str(folder), *(["--data", str(data)] if data else []))
    where = f"{shipped.dataset}={data}" if data else shipped.dataset
    run("zoo", "score", str(folder), "--data", where, "--protocol", PROTOCOL, "--out", str(out / "eval"))
    print(beside(shipped, read_card(folder)))
    same = equal_weights(folder, store.BUNDLED / name)
    print(f"\nweights, rounded to float16: {'the same, bit for bit' if same else 'others than those of the package'}")


def beside(shipped: Card, again: Card) -> str:
    """The rows of both on their own data set as one table, and the mean over seeds if the package has it."""
    rows = [row for row in shipped.results if f"{PROTOCOL}/{shipped.dataset}/" in row["key"]]
    mine = [row | {"encoder": f"{row['encoder']}, again"} for row in again.accuracies]
    return markdown([*results_of(shipped, rows), *results_of(again, mine)])


def equal_weights(run_folder: Path, inside: Path) -> bool:
    """Whether a run's weights are those of a checkpoint inside the package, before rounding as after it."""
    mine, theirs = rounded(load_file(run_folder / WEIGHTS)), load_file(inside / WEIGHTS)
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[key], theirs[key]) for key in theirs)


def main() -> None:
    """Command line: a checkpoint of the package, and where the data lies."""

    def command_line(name: Annotated[str, tyro.conf.Positional] = CHEAPEST, data: Path | None = None) -> None:
        """Train and measure a checkpoint of the package again.

        Args:
            name: A name that has weights inside the package.
            data: Its training data, as for zoo train. Without it the Hub's copy is fetched.
        """
        reproduce(name, data=data)

    parse_and_call(command_line, prog="zoo reproduce", stopped="the same command goes on from there")
