"""Is A better than B?

    python -m eval.compare results/predictions/A.npz results/predictions/B.npz   # kept by `eval.score --out`
    python -m eval.compare simco-r20-cifar100 simmoco-r20-cifar100               # whose cards `eval.seeds` wrote into

The first compares two encoders image by image: another training run might turn the answer over. The second compares
two recipes, each trained with several seeds. One test decides each, at the level 0.05; where several comparisons are
made at once, their p-values are adjusted for that (Holm).
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import tyro

from zoo.command_line import parse_and_call, run_command
from zoo.errors import BadData

if __name__ == "__main__":
    run_command("eval.compare", extra="eval")

import scipy  # noqa: F401  (eval.intervals')

from eval.intervals import LEVEL, ImageComparison, MeanDifference, compare_predictions, compare_scores, holm, welch
from eval.result import Result
from eval.results import read_predictions
from eval.seeds import measured_alike, results_of
from eval.tables import cell, pipes
from zoo.hub.resolve import known_card
from zoo.model.card import Card


def compare_files(a: Path, b: Path) -> ImageComparison:
    """`eval.intervals.compare_predictions` of two files, or `compare_scores` where an image may be of several classes.

    Raises BadData if they are not of the same images, CorruptFile.
    """
    first, second = _read(a), _read(b)
    if any(first[name].tolist() != second[name].tolist() for name in ("data_sha256", "labels")):
        raise BadData(f"{a.name} and {b.name} were not made on the same images; only such can be compared")
    measure = compare_predictions if first["labels"].ndim == 1 else compare_scores
    return measure(first["predicted"], second["predicted"], first["labels"])


def sentence(result: ImageComparison, a: str, b: str) -> str:
    """A comparison in words: the verdict of the one test, then the other numbers."""
    verdict = f"{a if result.better == 'a' else b} is better" if result.better else "no difference can be told"
    if result.p is None:
        test, more = "95 % interval of the difference of the 11-point mAP, paired bootstrap", ""
    else:
        test = f"McNemar's exact test, p = {result.p:.2g}"
        more = f"; right alone {result.only_a} and {result.only_b}"
    return (
        f"{verdict} ({test}). {a} {100 * result.a:.2f} %, {b} {100 * result.b:.2f} % on {result.n} images: difference "
        f"{100 * result.difference:+.2f} points, by paired bootstrap {100 * result.low:+.2f} to "
        f"{100 * result.high:+.2f}{more}"
    )


class RecipeComparison(NamedTuple):
    """Recipe a against recipe b by one metric of one protocol, each trained several times."""

    a: Result  # as `eval.seeds` wrote it
    b: Result
    difference: MeanDifference


def compare_recipes(a: Card, b: Card) -> list[RecipeComparison]:
    """Every number that both cards have over seeds, `eval.intervals.welch` of its values.

    Raises BadData if there is none, or if the same trainings stand on both sides; CorruptFile.
    """
    mine, theirs = (results_of(card, [row for row in card.results if "trainings" in row]) for card in (a, b))
    found = [
        RecipeComparison(one, other, welch(_values(one), _values(other)))
        for one in mine
        for other in theirs
        if measured_alike(one) == measured_alike(other)
    ]
    if not found:
        raise BadData(
            f"numbers over seeds: the first model has {len(mine)}, the second {len(theirs)}, none of the same measure; "
            "`zoo seeds MODEL RUN RUN ...` writes them"
        )
    if any(_weights(one.a) & _weights(one.b) for one in found):
        raise BadData("the two models have training runs in common; no interval holds for such")
    return found


def table(comparisons: Sequence[RecipeComparison], a: str, b: str) -> str:
    """Means with standard deviations, their differences and verdicts as Markdown, shares in percent."""
    heads = ["protocol, metric", "data set, train / test images", a, b, "difference [95 %]", "p", "better"]
    adjusted = holm([found.difference.p for found in comparisons])
    lines = [_line(found, p, (a, b)) for found, p in zip(comparisons, adjusted, strict=True)]
    return pipes([heads, *lines]) + (
        "\n\nMean ± standard deviation (n - 1) over training runs, on one set of test images; interval and test are "
        f"Welch's. p is adjusted for {len(lines)} comparison{'s' * (len(lines) > 1)} (Holm), the intervals are not; "
        f"one recipe is better where p < {LEVEL}."
    )


def _line(found: RecipeComparison, p: float, names: tuple[str, str]) -> list[str]:
    one, (low, high, _) = found.a, found.difference
    scale, unit = (100, " (%)") if one.unit == "share" else (1, "")
    difference = fmean(_values(one)) - fmean(_values(found.b))
    return [
        f"{one.protocol.split(',')[0]}, {one.metric}{unit}",
        f"{one.data.name}, {one.data.n_train:,} / {one.data.n_test:,}",
        cell(one),
        cell(found.b),
        f"{scale * difference:+.2f} [{scale * low:+.2f}, {scale * high:+.2f}]",
        f"{p:.2g}",
        names[difference < 0] if p < LEVEL else "",
    ]


def _values(one: Result) -> list[float]:
    return [training["value"] for training in one.extras["trainings"].values()]


def _weights(one: Result) -> set[str]:
    return {training.get("weights_sha256") for training in one.extras["trainings"].values()} - {None}


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        near = [other.name for other in sorted(path.parent.glob("*.npz"))] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"{path}: no such file; there are {near or 'none'}. eval.score --out FOLDER writes them"
        )
    return read_predictions(path)


def main() -> None:
    """Command line: two files of predictions, or two models."""

    def command_line(a: tyro.conf.Positional[str], b: tyro.conf.Positional[str]) -> None:
        """Compare two encoders, or two protocols, image by image; or two recipes over their seeds.

        Args:
            a: A file below predictions/ of an evaluation's folder; or a model whose card eval.seeds wrote into.
            b: Another one, of the same images; or another model, whose trainings were measured alike.
        """
        if a.endswith(".npz") != b.endswith(".npz"):
            raise BadData(f"{a} and {b}: one is a file of predictions, one is a model; give two files or two models")
        if a.endswith(".npz"):
            print(sentence(compare_files(Path(a), Path(b)), Path(a).stem, Path(b).stem))
        else:
            first, second = known_card(a), known_card(b)
            names = (first.name, second.name) if first.name != second.name else (a, b)
            print(table(compare_recipes(first, second), *names))

    parse_and_call(command_line, prog="python -m eval.compare", stopped="nothing was written")
