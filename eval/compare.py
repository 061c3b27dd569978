"""Is A better than B?

    python -m eval.compare results/predictions/A.npz results/predictions/B.npz   # kept by `eval.score --out`
    python -m eval.compare simco-r20-cifar100 simmoco-r20-cifar100               # whose cards `eval.seeds` wrote into

The first looks at two encoders image by image: another training might turn the answer over. The second looks at two
recipes, each trained with several seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import tyro

from zoo.errors import BadData, needs

with needs("eval", command=__name__ == "__main__"):
    import scipy  # noqa: F401  (eval.intervals')

from eval.command import run
from eval.intervals import Comparison, compare, compare_scores, welch
from eval.results import read_predictions
from eval.seeds import what
from eval.tables import Row, pipes
from zoo.card import Card
from zoo.store import known_card


def compare_files(a: Path, b: Path) -> Comparison:
    """`eval.intervals.compare` of two files, or `compare_scores` where an image may be of several classes.

    Raises BadData if they are not of the same images, CorruptFile.
    """
    first, second = _read(a), _read(b)
    if any(first[name].tolist() != second[name].tolist() for name in ("data_sha256", "labels")):
        raise BadData(f"{a.name} and {b.name} were not made on the same images; only such can be compared")
    measure = compare if first["labels"].ndim == 1 else compare_scores
    return measure(first["predicted"], second["predicted"], first["labels"])


def sentence(result: Comparison, a: str, b: str) -> str:
    """A comparison in words."""
    verdict = (
        "no difference can be told" if result.low <= 0 <= result.high else f"{a if result.low > 0 else b} is better"
    )
    if result.p is None:
        how = "paired bootstrap of the 11-point mAP)"
    else:
        how = f"paired bootstrap); right alone {result.only_a} and {result.only_b}, McNemar p = {result.p:.2g}"
    return (
        f"{a} {100 * result.a:.2f} %, {b} {100 * result.b:.2f} % on {result.n} images: difference "
        f"{100 * result.difference:+.2f} points, 95 % interval {100 * result.low:+.2f} to {100 * result.high:+.2f} "
        f"({how}: {verdict}"
    )


class Difference(NamedTuple):
    """Recipe a against recipe b by one number, each trained several times."""

    row: Row  # of a: which number it is
    a: list[float]  # a value of each training, [0, 1]
    b: list[float]
    low: float  # 95 % interval of mean(a) - mean(b), Welch's t
    high: float


def compare_recipes(a: Card, b: Card) -> list[Difference]:
    """Every number that both cards have over seeds, `eval.intervals.welch` of its values. Raises BadData for none."""
    mine, theirs = ([row for row in card.accuracies if "trainings" in row] for card in (a, b))
    found = [
        Difference(row, _values(row), _values(other), *welch(_values(row), _values(other)))
        for row in mine
        for other in theirs
        if what(row) == what(other)
    ]
    if not found:
        raise BadData(
            f"numbers over seeds: {a.name} has {len(mine)}, {b.name} has {len(theirs)}, none of the same measure; "
            "`python -m eval.seeds MODEL RUN RUN ...` writes them"
        )
    return found


def table(differences: Sequence[Difference], a: str, b: str) -> str:
    """Means with standard deviations, in percent, and the difference in points, as Markdown."""
    heads = ["data set, protocol", f"{a}, trainings", f"{b}, trainings", "difference [95 %, Welch]"]
    lines = [
        [
            f"{found.row['dataset']}, {found.row['protocol'].split(',')[0]}",
            *(f"{100 * fmean(values):.2f} ± {100 * stdev(values):.2f}, {len(values)}" for values in (found.a, found.b)),
            f"{100 * (fmean(found.a) - fmean(found.b)):+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]",
        ]
        for found in differences
    ]
    return pipes([heads, *lines])


def _values(row: Row) -> list[float]:
    return [training["value"] for training in row["trainings"].values()]


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
            b: Another one, of the same images.
        """
        if a.endswith(".npz") or b.endswith(".npz"):
            print(sentence(compare_files(Path(a), Path(b)), Path(a).stem, Path(b).stem))
        else:
            first, second = known_card(a), known_card(b)
            print(table(compare_recipes(first, second), first.name, second.name))

    run(command_line, module="eval.compare", stopped="nothing was written")


if __name__ == "__main__":
    main()
