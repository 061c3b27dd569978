"""One recipe trained several times, each with another seed: the mean and the spread of every number.

    python -m eval.seeds zoo/weights/simco-r20-cifar100 runs/seed15 runs/seed16 runs/seed17

The runs have been measured by `eval.score`; what all of them were measured on goes as further rows into the card of the
model named first, which may be one of them.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from eval.command import run
from eval.own_card import add_rows, is_ours
from eval.tables import Row, markdown
from zoo.card import Card
from zoo.errors import BadData, ZooError
from zoo.provenance import command, today, versions
from zoo.store import locate, read_card

KEPT = (
    "protocol_version", "encoder", "encoder_sha256", "weights_sha256", "feature", "image_size", "dim", "collapsed",
    "dataset", "metric", "unit", "n_train", "n_test", "skipped", "unlabelled", "unseen", "duplicates", "data_sha256",
    "hardware",
)  # fmt: skip
SAME = ("protocol_version", "dataset", "metric", "feature", "image_size", "n_train", "n_test", "data_sha256")
SAME_TRAINING = ("steps", "images", "data_sha256", "precision")
MEAN = "; mean of "


def over_seeds(card: Card, runs: Sequence[Card]) -> list[Row]:
    """Rows for `card`: of each number that it and all the runs have, the mean and standard deviation (n - 1) over runs.

    Raises BadData for fewer than two runs, for runs that differ in more than their seeds, or share one, and for numbers
    that were not all measured.
    """
    _check(card, runs)
    rows = []
    for row in card.accuracies:
        if "trainings" in row:
            continue
        twins = [_twin(row, trained) for trained in runs]
        values = [twin["value"] for twin in twins]
        rows.append(
            {key: row[key] for key in KEPT}
            | {
                "key": f"seeds/{row['key']}",
                "protocol": f"{row['protocol']}{MEAN}{len(runs)} trainings",
                "value": statistics.fmean(values),
                "ci95": None,
                "std": statistics.stdev(values),
                "trainings": {
                    str(trained.recipe["seed"]): {"value": twin["value"], "weights_sha256": twin["weights_sha256"]}
                    for trained, twin in zip(runs, twins, strict=True)
                },
                "date": today(),
                "versions": versions(),
                "command": command(),
            }
        )
    return rows


def what(row: Row) -> tuple[object, ...]:
    """What two numbers have in common that may be averaged or compared; a number over seeds as each behind it."""
    return (row["protocol"].partition(MEAN)[0], *(row[key] for key in SAME))


def _check(card: Card, runs: Sequence[Card]) -> None:
    if len(runs) < 2:
        raise BadData(f"{len(runs)} run; a spread over seeds needs two at least")
    for trained in runs:
        if changed := _differences(card, trained):
            raise BadData(f"{trained.name} and {card.name} differ in more than the seed: {', '.join(changed)}")
    seeds = [trained.recipe["seed"] for trained in runs]
    if len(set(seeds)) < len(seeds):
        raise BadData(f"seeds {seeds}: two runs share one; train with another --seed")


def _differences(one: Card, other: Card) -> list[str]:
    """Where two trainings differ beside the seed: name, keys of the recipe, what was trained on and how long."""
    recipe = sorted({**one.recipe, **other.recipe}.keys() - {"seed"})
    return (
        ["name"] * (one.name != other.name)
        + [key for key in recipe if one.recipe.get(key) != other.recipe.get(key)]
        + [key for key in SAME_TRAINING if one.training.get(key) != other.training.get(key)]
    )


def _twin(row: Row, trained: Card) -> Row:
    """The row of `trained` that was measured as `row` was."""
    for other in trained.accuracies:
        if "trainings" not in other and what(other) == what(row):
            return other
    raise BadData(
        f"{trained.name} with seed {trained.recipe['seed']} was not measured by {row['protocol']} on {row['dataset']} "
        f"({row['n_train']:,} / {row['n_test']:,} images): python -m eval.score RUN --data {row['dataset']}=DIR"
    )


def main() -> None:
    """Command line: the model whose card takes the rows, then the runs."""

    def command_line(
        model: Annotated[Path, tyro.conf.Positional], runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    ) -> None:
        """Write mean and spread over several trainings of one recipe into a card.

        Args:
            model: The model whose card takes the rows: a run folder, or a name that `zoo keep` has kept.
            runs: Run folders of its recipe, each with another seed, measured by eval.score.
        """
        folder = locate(model)
        if not is_ours(model, folder):
            raise ZooError(f"{model} keeps its card as it came; to write into it, give its folder: {folder}")
        rows = over_seeds(read_card(folder), [read_card(one) for one in runs])
        add_rows(folder, rows)
        print(markdown(rows))

    run(command_line, module="eval.seeds", stopped="nothing was written")


if __name__ == "__main__":
    main()
