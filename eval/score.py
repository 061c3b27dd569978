"""Measure encoders and write the results into their cards.

    python -m eval.score runs/simco-r18-cifar100 --data cifar100=DIR --protocol knn

Every table has two baselines under the same protocol: the raw pixels, and the same network at random initialisation.
The test split is read once and decides nothing.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from eval.features import PixelEncoder, RawPixels, extract
from eval.knn import TEMPERATURES, accuracy, knn_predict
from zoo.dataset import Split, dataset_row, open_split
from zoo.encoder import load_encoder, new_encoder
from zoo.errors import ZooError
from zoo.files import write_bytes
from zoo.provenance import command, hardware, today, versions
from zoo.store import CARD, locate, read_card

HEADLINE_K = 20
Row = dict[str, Any]


def score(
    model: str | Path,
    *,
    data: dict[str, Path | None] | None = None,
    max_train: int | None = None,
    max_test: int | None = None,
    device: str | torch.device = "cpu",
) -> list[Row]:
    """k-NN of one model and of its two baselines; the rows are written into the model's card and returned.

    data: where each data set to measure on lies (as for `open_split`); by default the model's own.
    max_train, max_test: use random subsets of these sizes; the rows say so.
    Raises BadData, UnknownName, NoWeights, CorruptFile.
    """
    encoder = load_encoder(model, device=device)
    card = read_card(locate(model))
    torch.manual_seed(0)
    contestants: dict[str, PixelEncoder] = {
        card.name: encoder,
        f"random {card.backbone}": new_encoder(card.name).to(device),
        "pixels": RawPixels(encoder.image_size),
    }
    rows = []
    for name, where in (data or {card.dataset: None}).items():
        train = open_split(name, "train", data=where).sample(max_train)
        test = open_split(name, "test", data=where).sample(max_test)
        rows += [_knn_row(label, one, train, test, device) for label, one in contestants.items()]
    weights = card.weights.sha256 if card.weights else ""
    rows = [row | {"weights_sha256": weights} if row["encoder"] == card.name else row for row in rows]
    _into_card(locate(model), rows)
    return rows


def _knn_row(label: str, encoder: PixelEncoder, train: Split, test: Split, device: str | torch.device) -> Row:
    """One protocol, one encoder, one data set: k-NN accuracy for every k."""
    bank, queries = (extract(encoder, part, progress=f"{label}: {part.dataset} {part.split}") for part in (train, test))
    temperature = TEMPERATURES[0]
    predicted = knn_predict(bank.rows, bank.labels, queries.rows, device=device)
    by_k = {k: accuracy(classes, queries.labels) for (k, _), classes in predicted.items()}
    headline = HEADLINE_K if HEADLINE_K in by_k else max(by_k)
    low, high = wilson(by_k[headline], len(queries))
    return {
        "key": f"knn/{train.dataset}/{label}",
        "protocol": f"k-NN, cosine, k = {headline}, T = {temperature}, weighted votes",
        "protocol_version": 1,
        "encoder": label,
        "feature": "backbone" if label != "pixels" else "raw pixels",
        "dataset": train.dataset,
        "metric": "top-1 accuracy",
        "value": by_k[headline],
        "ci95": [low, high],
        "by_k": {str(k): value for k, value in sorted(by_k.items())},
        "n_train": len(bank),
        "n_test": len(queries),
        "skipped": len(train.skipped) + len(test.skipped),
        "dim": bank.rows.shape[1],
        "data_sha256": [train.sha256, test.sha256],
        "hardware": hardware(),
        "date": today(),
        "versions": versions(),
        "command": command(),
    }


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % confidence interval of a share of n trials (Wilson 1927)."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _into_card(folder: Path, rows: list[Row]) -> None:
    card = read_card(folder)  # anew: the card may have changed while we measured
    for row in rows:
        card = card.with_result(row)
    write_bytes(folder / CARD, card.to_json().encode())


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, accuracies in percent; rows that differ in protocol say so."""
    ks = sorted({int(k) for row in rows for k in row["by_k"]})
    lines = [
        "| encoder | data set | D | n train | n test | " + " | ".join(f"k = {k}" for k in ks) + " | 95 % interval |",
        "|---" * 5 + "|--:" * len(ks) + "|---|",
    ]
    for row in rows:
        cells = [f"{100 * row['by_k'][str(k)]:.2f}" if str(k) in row["by_k"] else "" for k in ks]
        headline = f"{row['protocol'].split(', ')[2]}: {100 * row['ci95'][0]:.2f} to {100 * row['ci95'][1]:.2f}"
        sizes = [row["dim"], row["n_train"], row["n_test"]]
        lines.append("| " + " | ".join(map(str, [row["encoder"], row["dataset"], *sizes, *cells, headline])) + " |")
    return "\n".join(lines)


def main() -> None:
    """Command line: models, then where the data lies."""

    def command_line(
        models: Annotated[tuple[str, ...], tyro.conf.Positional],
        data: tuple[str, ...] = (),
        protocol: Literal["knn"] = "knn",
        max_train: int | None = None,
        max_test: int | None = None,
    ) -> None:
        """Measure models and write the results into their cards.

        Args:
            models: Names of the zoo, or run folders.
            data: NAME=PATH of every data set to measure on; NAME alone takes the Hub's copy. Default: the model's own.
            protocol: What to measure.
            max_train: Use a random subset of this many train images.
            max_test: Use a random subset of this many test images.
        """
        where = dict(_data_argument(text) for text in data)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows: list[Row] = []
        for model in models:
            rows += score(model, data=where, max_train=max_train, max_test=max_test, device=device)
        print(table(rows))

    try:
        tyro.cli(command_line, prog="eval.score")
    except (ZooError, OSError) as error:
        sys.exit(f"error: {error}")


def _data_argument(text: str) -> tuple[str, Path | None]:
    name, _, path = text.partition("=")
    dataset_row(name)
    return name, Path(path) if path else None


if __name__ == "__main__":
    main()
