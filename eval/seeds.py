"""One recipe trained several times, each with another seed: the mean and the spread of every number.

    python -m eval.seeds simco-r20-cifar100 runs/seed16 runs/seed17 runs/seed18

The runs have been measured by `eval.score`; what all of them were measured on goes as further rows into the card of the
model named first, which may be one of them, or come with the package.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from eval.own_card import add_rows
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
SAME = ("protocol", "protocol_version", "dataset", "metric", "feature", "image_size", "n_train", "n_test")


def over_seeds(card: Card, runs: Sequence[Card]) -> list[Row]:
    """Rows for `card`: of each number that it and all the runs have, the mean and standard deviation (n - 1) over runs.

    Raises BadData for fewer than two runs, for runs that differ in more than their seeds, or share one, and for numbers
    that were not all measured.
    """
    _check(runs)
    rows = []
    for row in card.accuracies:
        if "trainings" in row:
            continue
        twins = [_twin(row, run) for run in runs]
        values = [twin["value"] for twin in twins]
        rows.append(
            {key: row[key] for key in KEPT}
            | {
                "key": f"seeds/{row['key']}",
                "protocol": f"{row['protocol']}; mean of {len(runs)} trainings",
                "value": statistics.fmean(values),
                "ci95": None,
                "std": statistics.stdev(values),
                "trainings": {
                    str(run.recipe["seed"]): {"value": twin["value"], "weights_sha256": twin["weights_sha256"]}
                    for run, twin in zip(runs, twins, strict=True)
                },
                "date": today(),
                "versions": versions(),
                "command": command(),
            }
        )
    return rows


def _check(runs: Sequence[Card]) -> None:
    if len(runs) < 2:
        raise BadData(f"{len(runs)} run; a spread over seeds needs two at least")
    for run in runs[1:]:
        others = {key for key in {**run.recipe, **runs[0].recipe} if run.recipe.get(key) != runs[0].recipe.get(key)}
        if run.name != runs[0].name or others - {"seed"}:
            raise BadData(
                f"{run.name} and {runs[0].name} differ in more than the seed: {', '.join(sorted(others)) or 'the name'}"
            )
    seeds = [run.recipe["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise BadData(f"seeds {seeds}: two runs share one; train with another --seed")


def _twin(row: Row, run: Card) -> Row:
    """The row of `run` that was measured as `row` was."""
    for other in run.accuracies:
        if "trainings" not in other and all(other[key] == row[key] for key in SAME):
            return other
    raise BadData(
        f"{run.name} with seed {run.recipe['seed']} was not measured by {row['protocol']} on {row['dataset']} "
        f"({row['n_train']:,} / {row['n_test']:,} images): python -m eval.score RUN --data {row['dataset']}=DIR"
    )


def main() -> None:
    """Command line: the model whose card takes the rows, then the runs."""

    def command_line(
        model: Annotated[Path, tyro.conf.Positional], runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    ) -> None:
        """Write mean and spread over several trainings of one recipe into a card.

        Args:
            model: The model whose card takes the rows: a run folder or a name.
            runs: Run folders of its recipe, each with another seed, measured by eval.score.
        """
        folder = locate(str(model))
        rows = over_seeds(read_card(folder), [read_card(run) for run in runs])
        add_rows(folder, rows)
        print(markdown(rows))

    try:
        tyro.cli(command_line, prog="python -m eval.seeds")
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
