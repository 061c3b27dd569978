"""Is A better than B?

    python -m eval.compare results/predictions/A.npz results/predictions/B.npz   # kept by `eval.score --out`
    python -m eval.compare simco-r20-cifar100 simmoco-r20-cifar100               # whose cards `eval.seeds` wrote into

The first looks at two encoders image by image: another training might turn the answer over. The second looks at two
recipes, each trained with several seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from zoo.errors import BadData, needs

with needs("eval", command=__name__ == "__main__"):
    import scipy  # noqa: F401  (eval.intervals')

from eval.command import run
from eval.intervals import Comparison, compare, compare_scores, welch
from eval.results import read_predictions
from eval.seeds import measured_alike, whole
from eval.tables import Row, cell, pipes
from zoo.hub.resolve import known_card
from zoo.model.card import Card


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

    a: Row  # as `eval.seeds` wrote it
    b: Row
    low: float  # 95 % interval of the difference of their means, Welch's t
    high: float


def compare_recipes(a: Card, b: Card) -> list[Difference]:
    """Every number that both cards have over seeds, `eval.intervals.welch` of its values.

    Raises BadData if there is none, or if the same trainings stand on both sides; CorruptFile.
    """
    mine, theirs = (whole(card, [row for row in card.results if "trainings" in row]) for card in (a, b))
    found = [
        Difference(row, other, *welch(_values(row), _values(other)))
        for row in mine
        for other in theirs
        if measured_alike(row) == measured_alike(other)
    ]
    if not found:
        raise BadData(
            f"numbers over seeds: the first model has {len(mine)}, the second {len(theirs)}, none of the same measure; "
            "`python -m eval.seeds MODEL RUN RUN ...` writes them"
        )
    if any(_weights(one.a) & _weights(one.b) for one in found):
        raise BadData("the two models have trainings in common; no interval holds for such")
    return found


def table(differences: Sequence[Difference], a: str, b: str) -> str:
    """Means with standard deviations and their differences as Markdown, shares in percent."""
    heads = ["protocol, metric", "data set, train / test images", a, b, "difference [95 %, Welch]"]
    return pipes([heads, *map(_line, differences)]) + (
        "\n\nMean ± standard deviation (n - 1) over trainings, on one set of test images. Each interval stands for "
        "itself: where nothing differs, about one in 20 still leaves 0 out."
    )


def _line(found: Difference) -> list[str]:
    row = found.a
    scale, unit = (100, " (%)") if row["unit"] == "share" else (1, "")
    numbers = (scale * number for number in (row["value"] - found.b["value"], found.low, found.high))
    return [
        f"{row['protocol'].split(',')[0]}, {row['metric']}{unit}",
        f"{row['dataset']}, {row['n_train']:,} / {row['n_test']:,}",
        cell(row),
        cell(found.b),
        "{:+.2f} [{:+.2f}, {:+.2f}]".format(*numbers),
    ]


def _values(row: Row) -> list[float]:
    return [training["value"] for training in row["trainings"].values()]


def _weights(row: Row) -> set[str]:
    return {training.get("weights_sha256") for training in row["trainings"].values()} - {None}


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

    run(command_line, module="eval.compare", stopped="nothing was written")


if __name__ == "__main__":
    main()
