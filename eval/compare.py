"""Is A better than B? Two predictions of the same images, kept by `eval.score --out`.

python -m eval.compare results/predictions/A.npz results/predictions/B.npz
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from zoo.errors import BadData, needs

with needs("eval", command=__name__ == "__main__"):
    import scipy  # noqa: F401  (eval.intervals')

from eval.command import run
from eval.intervals import Comparison, compare, compare_scores
from eval.results import read_predictions


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


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        near = [other.name for other in sorted(path.parent.glob("*.npz"))] if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"{path}: no such file; there are {near or 'none'}. eval.score --out FOLDER writes them"
        )
    return read_predictions(path)


def main() -> None:
    """Command line: two files of predictions."""

    def command_line(a: Annotated[Path, tyro.conf.Positional], b: Annotated[Path, tyro.conf.Positional]) -> None:
        """Compare two encoders, or two protocols, image by image.

        Args:
            a: A file below predictions/ of an evaluation's folder.
            b: Another one, of the same images.
        """
        print(sentence(compare_files(a, b), a.stem, b.stem))

    run(command_line, module="eval.compare", stopped="nothing was written")


if __name__ == "__main__":
    main()
