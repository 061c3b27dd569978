"""`zoo list` and `zoo info`: the standard library alone, since people wait for them."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import zoo
from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.hub.catalog import catalog, variants
from zoo.hub.store import named_card, own_folder
from zoo.model.card import Card

HEADER = ("name", "pixels", "D", "parameters", "MB", "top-1 accuracy")


def version_line() -> str:
    """What `zoo --version` prints."""
    return f"contrastive-zoo {zoo.__version__}"


def list_models(pattern: str = "*", /, method: str = "*", backbone: str = "*", dataset: str = "*") -> None:
    """The models of the catalogue, those inside the package and the kept ones, as a table.

    Every argument is a pattern as in a shell. A kept model that is broken has its line, and the exit code is 1.

    Args:
        pattern: Of the name: "*cifar100".
        method: Of the name's first part.
        backbone: Of its second part.
        dataset: Of its third part.
    """
    names = zoo.list(pattern, method=method, backbone=backbone, dataset=dataset)
    if not names:
        raise UnknownName("no model matches; `zoo list` alone shows all")
    known, broken = catalog(), []
    rows: list[tuple[str, ...]] = [HEADER]
    for name in names:
        try:
            folder = own_folder(name)
            rows.append(_row(named_card(folder)) if folder else _row(known[name], variants(name, known)))
        except ZooError as error:
            rows.append((name, "", "", "", "", "broken, see below"))
            broken.append(str(error))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if broken:
        raise CorruptFile("; ".join(broken))


def _row(card: Card, others: Sequence[str] = ()) -> tuple[str, ...]:
    """A model's cells; without weights the last one says what its name loads instead, or what the recipe expects."""
    size = (card.name, str(card.image_size), str(card.dim))
    if card.weights is None:
        instead = f"loads {others[0]}" if len(others) == 1 else ""
        return (*size, "", "", instead or f"no weights yet; expects {card.expects}")
    told = "; ".join(
        f"{100 * row['value']:.2f} % {row['protocol'].split(',')[0]}, {row['dataset']}" for row in card.accuracies
    )
    parameters = f"{card.parameters / 1e6:.2f} M" if card.parameters else ""
    return (*size, parameters, f"{card.weights.bytes / 1e6:.1f}", told or "not measured yet")


def info(model: str, /) -> None:
    """The card of a model, as JSON.

    Args:
        model: A name of the zoo, or a run folder.
    """
    print(json.dumps(asdict(zoo.info(model)), indent=1))
