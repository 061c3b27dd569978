"""One recipe trained several times, each with another seed: the mean and the spread of every number.

    python -m eval.seeds zoo/weights/simco-r20-cifar100 runs/seed15 runs/seed16 runs/seed17

The means over the run folders go as further rows into the card of the model named first, which may be one of them. All
of them have been measured by `eval.score`, the runs in every way that the model was.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from zoo.command_line import parse_and_call, run_command

if __name__ == "__main__":
    run_command("eval.seeds", extra="eval")

from eval.card_results import add_results, is_ours, writable
from eval.notes import IN_ONE_RUN
from eval.result import Provenance, Result, Row
from eval.tables import markdown, over_seeds
from zoo.errors import BadData, ZooError
from zoo.hub.resolve import locate
from zoo.hub.store import read_card
from zoo.model.card import Card
from zoo.provenance import command, today, versions

SAME_TRAINING = ("steps", "images", "data_sha256", "precision")


def mean_results(card: Card, runs: Sequence[Card]) -> list[Result]:
    """Results for `card`: of each number of its own weights, the mean and standard deviation (n - 1) over the runs.

    Raises BadData for fewer than two runs, for runs that differ in more than their seeds or share one, and for numbers
    that were not all measured; CorruptFile.
    """
    _check(card, runs)
    of_runs = [(trained, results_of(trained, trained.measured)) for trained in runs]
    mine = results_of(card, card.measured)
    return [_mean(one, [_twin(one, trained, found) for trained, found in of_runs], runs) for one in mine]


def results_of(card: Card, rows: Sequence[Row]) -> list[Result]:
    """`rows` of `card` as results. Raises CorruptFile."""
    return [Result.from_row(row, where=f"the card of {card.name}") for row in rows]


def measured_alike(one: Result) -> tuple[object, ...]:
    """Equal for numbers that may be averaged or compared."""
    encoder, data = one.encoder, one.data
    images = (data.name, data.n_train, data.n_test, data.sha256)
    return one.protocol, one.version, one.metric, encoder.feature, encoder.image_size, *images


def _mean(one: Result, twins: Sequence[Result], runs: Sequence[Card]) -> Result:
    mean = over_seeds(twins)
    trainings = {
        str(trained.recipe["seed"]): {"value": twin.value, "weights_sha256": twin.encoder.weights_sha256}
        for trained, twin in zip(runs, twins, strict=True)
    }
    notes = dict.fromkeys(f"{IN_ONE_RUN}{note}" for twin in twins for note in twin.notes)
    kept = {key: mean.extras[key] for key in ("std", "trained", "started")}
    return replace(
        mean,
        key=f"seeds/{one.key}",
        protocol=f"{one.protocol}; mean ± std over trainings",
        interval=None,
        encoder=replace(mean.encoder, sha256="", weights_sha256=""),  # of several
        collapsed=any(twin.collapsed for twin in twins),
        columns={},
        notes=tuple(notes),
        details=(),
        provenance=Provenance(hardware=mean.provenance.hardware, date=today(), versions=versions(), command=command()),
        extras=kept | {"trainings": trainings},
    )


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


def _twin(one: Result, trained: Card, found: Sequence[Result]) -> Result:
    """The result of `trained`, among those `found` in its card, that was measured as `one` was, of its weights now."""
    for other in found:
        of_these = trained.weights is not None and other.encoder.weights_sha256 == trained.weights.sha256
        if of_these and measured_alike(other) == measured_alike(one):
            return other
    data = one.data
    raise BadData(
        f"the run of seed {trained.recipe['seed']} was not measured by {one.protocol} on the same "
        f"{data.n_train:,} / {data.n_test:,} images of {data.name}; measure it by eval.score as the model was"
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
        means = mean_results(read_card(folder), [read_card(one) for one in runs])
        add_results(folder, means)
        print(markdown(means))

    parse_and_call(command_line, prog="zoo seeds", stopped="nothing was written")
