"""The study of MoCo's dictionary: Zhang et al. 2022 (Dual temperature), figures 2 and 3 and table 1, from our runs.

    python -m train.study mocov2-r18-cifar100-study --data DIR

Each run is one of `train.pretrain` in a folder of its own below `--out`, and goes on after a kill as any other does.
Leaves `study.json` and `study.svg`.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.methods.dictionaries import RECIPES, TwoDictionariesRecipe
from train.pretrain import pretrain
from train.recipe import find_recipe
from train.run_log import read_log
from train.stopping import exit_on_user_error
from zoo.errors import unknown
from zoo.files import write_bytes
from zoo.provenance import command, hardware, today

SIZES = (64, 256, 1024, 4096, 16384)  # keys of a dictionary, figure 2
TEMPERATURES = (0.05, 0.1, 0.5, 1.0, 10.0)  # tau_beta, figure 3
SAMPLED = 256  # keys of the vector dictionary of table 1
ACCURACIES = ("online_test", "online_held_out", "knn_held_out")  # the first that a run has


def settings(queue_size: int) -> dict[str, list[dict[str, Any]]]:
    """What each figure compares, as changes of the recipe; a run that two of them need comes twice."""
    sizes = [n for n in SIZES if n < queue_size]
    few = min(SAMPLED, queue_size)
    return {
        "vector": [{"vector_keys": n} for n in sizes] + [{}],
        "scalar": [{"scalar_keys": n} for n in sizes] + [{}],
        "temperature": [{"scalar_keys": few, "inter_temperature": t} for t in TEMPERATURES],
        "sampling": [{"vector_keys": few, "sampling": which} for which in ("earliest", "random", "recent")],
    }


def study(
    recipe: TwoDictionariesRecipe,
    *,
    data: Path | None = None,
    out: Path = Path("runs/study"),
    limit: int | None = None,
    knn_every: int = 10,
    parts: Iterable[str] = ("vector", "scalar", "temperature", "sampling"),
) -> Path:
    """Train `recipe` once for each setting of `parts`, and return the folder with `study.json` and `study.svg`.

    data, limit, knn_every: as for `pretrain`. Raises what it raises, and UnknownName for a part that there is not.
    """
    table = settings(recipe.queue_size)
    for part in parts:
        if part not in table:
            raise unknown("part of the study", part, table)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found[part] = []
        for changes in table[part]:
            run = out / ("-".join(f"{key}-{value}" for key, value in changes.items()) or "whole-queue")
            pretrain(replace(recipe, **changes), data=data, out=run, limit=limit, knn_every=knn_every)
            found[part].append({"changes": changes} | outcome(read_log(run)))
    facts = {"recipe": recipe.name, "numbers": recipe.hyperparameters(), "limit": limit}
    facts |= {"date": today(), "hardware": hardware(), "command": command()}
    write_bytes(out / "study.json", json.dumps(facts | {"parts": found}, indent=1).encode())
    draw(found, recipe.queue_size).savefig(out / "study.svg", metadata={"Date": None})
    return out


def outcome(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The last accuracies of a run's log, [0, 1], and its curve [step, anchor entropy in nats]."""
    last = {name: line[name] for line in lines for name in ACCURACIES if name in line}
    return last | {"anchor_entropy": [[line["step"], line["anchor_entropy"]] for line in lines]}


def label(changes: dict[str, Any]) -> str:
    """`vector_keys 256, sampling random`."""
    return ", ".join(f"{key} {value}" for key, value in changes.items()) or "whole queue"


def draw(found: dict[str, list[dict[str, Any]]], queue_size: int) -> Figure:
    """Figure 2 (accuracy over dictionary sizes), figure 3 (entropy over steps), table 1 (accuracy by sampling)."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    sizes, entropy, sampling = figure.subplots(1, 3)
    for part in ("vector", "scalar"):
        rows = [row for row in found.get(part, []) if accuracy(row) is not None]
        places = [row["changes"].get(f"{part}_keys", queue_size) for row in rows]
        sizes.semilogx(places, [accuracy(row) for row in rows], marker="o", label=f"{part} dictionary")
    _named(sizes, "Figure 2: accuracy, [0, 1]", "keys")
    for row in [*found.get("scalar", []), *found.get("temperature", [])]:
        entropy.plot(*zip(*row["anchor_entropy"], strict=True), label=label(row["changes"]))
    _named(entropy, "Figure 3: entropy of the anchors' weights, nats", "step")
    rows = [row for row in found.get("sampling", []) if accuracy(row) is not None]
    sampling.bar([row["changes"]["sampling"] for row in rows], [accuracy(row) for row in rows])
    sampling.set_title("Table 1: accuracy by sampling of the vector dictionary", fontsize=10)
    return figure


def accuracy(row: dict[str, Any]) -> float | None:
    """The online probe's on the test split where the run has one, else the nearest thing to it."""
    return next((row[name] for name in ACCURACIES if name in row), None)


def _named(axes: Axes, title: str, horizontal: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(horizontal)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=7)


def main() -> None:
    """Command line: the recipe's name, then its numbers and ours as flags."""
    known = [recipe.name for recipe in RECIPES]
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"usage: python -m train.study RECIPE [--help] [flags]\n\nrecipes: {', '.join(known)}")
        sys.exit(0 if sys.argv[1:] else 2)
    with exit_on_user_error():
        recipe = find_recipe(sys.argv[1])
        if not isinstance(recipe, TwoDictionariesRecipe):
            raise unknown("recipe of the study", recipe.name, known)
        kind: Any = Annotated[TwoDictionariesRecipe, tyro.conf.arg(name="")]

        def command_line(
            recipe: kind = recipe,
            data: Path | None = None,
            out: Path = Path("runs/study"),
            limit: int | None = None,
            knn_every: int = 10,
            parts: tuple[str, ...] = ("vector", "scalar", "temperature", "sampling"),
        ) -> Path:
            """Train with dictionaries of many sizes and draw what they change.

            Args:
                recipe: The numbers of each training.
                data: As for zoo train.
                out: The folder for all runs, study.json and study.svg.
                limit: Train on that many images.
                knn_every: Epochs between looks at the accuracies; 0 for none.
                parts: What to compare.
            """
            return study(recipe, data=data, out=out, limit=limit, knn_every=knn_every, parts=parts)

        print(tyro.cli(command_line, prog=f"train.study {recipe.name}", args=sys.argv[2:]) / "study.svg")


if __name__ == "__main__":
    main()
