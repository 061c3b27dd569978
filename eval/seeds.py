"""One recipe trained several times, each with another seed: the mean and the spread of every number.

    python -m eval.seeds zoo/weights/simco-r20-cifar100 runs/seed15 runs/seed16 runs/seed17

The means over the run folders go as further rows into the card of the model named first, which may be one of them. All
of them have been measured by `eval.score`, the runs in every way that the model was.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from zoo.command_line import parse_and_call, run_command

if __name__ == "__main__":
    run_command("eval.seeds", extra="eval")

from eval.own_card import add_rows, is_ours, writable
from eval.tables import Row, markdown, over_seeds
from zoo.errors import BadData, CorruptFile, ZooError
from zoo.hub.resolve import locate
from zoo.hub.store import read_card
from zoo.model.card import Card
from zoo.provenance import command, today, versions

SAME = (
    "protocol", "protocol_version", "dataset", "metric", "feature", "image_size", "n_train", "n_test", "data_sha256",
)  # fmt: skip
KEPT = ("encoder", "dim", "unit", "skipped", "unlabelled", "unseen", "duplicates", "hardware", *SAME)
NEEDED = frozenset({*KEPT, "value", "encoder_sha256", "weights_sha256", "collapsed", "ci95"})
SAME_TRAINING = ("steps", "images", "data_sha256", "precision")


def mean_rows(card: Card, runs: Sequence[Card]) -> list[Row]:
    """Rows for `card`: of each number of its own weights, the mean and standard deviation (n - 1) over the runs.

    Raises BadData for fewer than two runs, for runs that differ in more than their seeds or share one, and for numbers
    that were not all measured; CorruptFile.
    """
    _check(card, runs)
    return [_mean_row(row, [_twin(row, trained) for trained in runs], runs) for row in whole(card, card.measured)]


def whole(card: Card, rows: Sequence[Row]) -> Sequence[Row]:
    """`rows` of `card`, if they have all that is looked at here. Raises CorruptFile."""
    for row in rows:
        if missing := sorted(NEEDED - row.keys()):
            raise CorruptFile(
                f"the card of {card.name}: {row['key']} lacks {', '.join(missing)}; another version wrote it. Measure "
                "again with eval.score, then eval.seeds"
            )
    return rows


def measured_alike(row: Row) -> tuple[object, ...]:
    """Equal for numbers that may be averaged or compared."""
    return tuple(row[key] for key in SAME)


def _mean_row(row: Row, twins: Sequence[Row], runs: Sequence[Card]) -> Row:
    mean = over_seeds(twins)
    return {key: mean[key] for key in (*KEPT, "value", "std", "trained", "started")} | {
        "key": f"seeds/{row['key']}",
        "protocol": f"{row['protocol']}; mean ± std over trainings",
        "encoder_sha256": "",  # of several
        "weights_sha256": "",
        "collapsed": any(twin["collapsed"] for twin in twins),
        "grid_edge": any(twin.get("grid_edge") for twin in twins),
        "converged": all(twin.get("converged", True) for twin in twins),
        "ci95": None,
        "trainings": {
            str(trained.recipe["seed"]): {"value": twin["value"], "weights_sha256": twin["weights_sha256"]}
            for trained, twin in zip(runs, twins, strict=True)
        },
        "date": today(),
        "versions": versions(),
        "command": command(),
    }


def _check(card: Card, runs: Sequence[Card]) -> None:
    if not card.measured:
        raise BadData(f"{card.name} has no numbers yet: zoo score MODEL --data NAME=DIR, and so the runs")
    if len(runs) < 2:
        raise BadData(f"{len(runs)} run{'s' * (not runs)}; a spread over seeds needs two at least")
    for number, trained in enumerate(runs, 1):
        if "seed" not in trained.recipe:
            raise BadData(f"run {number} of {len(runs)}: its card tells no seed; it was not trained by this package")
        if changed := _differences(card, trained):
            raise BadData(
                f"run {number} of {len(runs)} and the model differ in more than the seed: {'; '.join(changed)}"
            )
    seeds = [trained.recipe["seed"] for trained in runs]
    if len(set(seeds)) < len(seeds):
        raise BadData(f"seeds {seeds}: two runs share one; train with another --seed")


def _differences(card: Card, trained: Card) -> list[str]:
    """Where two trainings differ beside the seed: name, keys of the recipe, what was trained on and how long."""
    its, ours = (
        {"name": one.name} | one.recipe | {key: one.training.get(key) for key in SAME_TRAINING}
        for one in (trained, card)
    )
    keys = sorted({**its, **ours}.keys() - {"seed"})
    return [f"{key} {its.get(key)}, not {ours.get(key)}" for key in keys if its.get(key) != ours.get(key)]


def _twin(row: Row, trained: Card) -> Row:
    """The row of `trained` that was measured as `row` was, of the weights that it has now."""
    for other in whole(trained, trained.measured):
        of_these = trained.weights is not None and other["weights_sha256"] == trained.weights.sha256
        if of_these and measured_alike(other) == measured_alike(row):
            return other
    raise BadData(
        f"the run of seed {trained.recipe['seed']} was not measured by {row['protocol']} on the same "
        f"{row['n_train']:,} / {row['n_test']:,} images of {row['dataset']}; measure it by eval.score as the model was"
    )


def main() -> None:
    """Command line: the model whose card takes the rows, then the runs."""

    def command_line(
        model: Annotated[str, tyro.conf.Positional], runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    ) -> None:
        """Write mean and spread over several trainings of one recipe into a card.

        Args:
            model: The model whose card takes the rows: a run folder, or a name that `zoo keep` has kept.
            runs: Run folders of its recipe, each with another seed, measured by eval.score.
        """
        folder = locate(model)
        if not is_ours(model, folder):
            raise ZooError(
                f"{model} keeps its card as it came; to write into it, give its folder: {folder}"
                if writable(folder)
                else f"cannot write into {folder}; nothing was changed"
            )
        rows = mean_rows(read_card(folder), [read_card(one) for one in runs])
        add_rows(folder, rows)
        print(markdown(rows))

    parse_and_call(command_line, prog="zoo seeds", stopped="nothing was written")
