"""The models of the zoo as rows: what they are, where their weights are, and what was measured of them."""

import re
from collections.abc import Iterable, Sequence
from typing import TypedDict

from zoo.errors import ZooError
from zoo.hub import store
from zoo.hub.author_files import AUTHOR_FILES, SIZES
from zoo.hub.catalog import author_card, catalog, variants
from zoo.hub.store import folder_of_name, named_card
from zoo.model.card import Card
from zoo.names import parse_name

OWN_LICENCE = "Apache-2.0"  # of the weights that come with this package
# The result at the start of a card's `expects`. Of an online and an offline probe, the offline one is comparable.
PUBLISHED = re.compile(
    r"(?:about )?(?:[\d.]+ % online, )?(?P<percent>[\d.]+) %(?: offline)? top-1 on "
    r"(?:the )?(?P<data>[A-Z][\w-]*?)(?: test set)? by (?P<protocol>k-NN)?"
)


class Row(TypedDict):
    """One model. A missing string is "", a missing number None."""

    name: str
    image_size: int | None  # pixels
    dim: int | None  # of the embedding
    parameters: int | None  # of the backbone
    weights: str  # "bundled", "here", "to fetch", "loads NAME", "2 variants", "recipe only" or "broken"
    bytes: int | None  # size of the weights, once kept
    licence: str
    knn: float | None  # own top-1 accuracy, 0 to 1, by k-NN on the data set that the model is named after
    linear: float | None  # the same by a linear probe
    published: float | None  # published top-1 accuracy, 0 to 1
    published_data: str  # its data set, and its protocol where that is not a linear one
    error: str  # why the weights are broken


def table_rows(names: Iterable[str]) -> list[Row]:
    """One row for each of `names`; a kept model that cannot be read has the reason in `error`."""
    known = catalog()
    return [_row_or_error(name, known) for name in names]


def _row_or_error(name: str, known: dict[str, Card]) -> Row:
    try:
        return _row(name, known)
    except ZooError as error:
        return Row(
            name=name,
            image_size=None,
            dim=None,
            parameters=None,
            weights="broken",
            bytes=None,
            licence="",
            knn=None,
            linear=None,
            published=None,
            published_data="",
            error=str(error),
        )


def _row(name: str, known: dict[str, Card]) -> Row:
    folder, n_bytes = folder_of_name(name), None
    if folder is not None:
        card = named_card(folder)
        assert card.weights is not None
        weights, n_bytes = "bundled" if folder.parent == store.BUNDLED else "here", card.weights.bytes
    elif name in AUTHOR_FILES:
        card, weights, n_bytes = author_card(name), "to fetch", SIZES[parse_name(name).backbone]
    else:
        card = known[name]
        weights = _weights_elsewhere(card, variants(name, known))
        if card.published is not None:
            n_bytes = sum(file.bytes for file in card.published.files)
    published, data = published_result(card.expects)
    return Row(
        name=name,
        image_size=card.image_size,
        dim=card.dim,
        parameters=card.parameters,
        weights=weights,
        bytes=n_bytes,
        licence=card.licence or (OWN_LICENCE if weights == "bundled" else ""),
        knn=_own_accuracy(card, "k-NN"),
        linear=_own_accuracy(card, "linear probe"),
        published=published,
        published_data=data,
        error="",
    )


def _weights_elsewhere(card: Card, others: Sequence[str]) -> str:
    """Where the weights of a name of the catalog are."""
    if card.published is not None:
        return "to fetch"
    if len(others) == 1:
        return f"loads {others[0]}"
    return f"{len(others)} variants" if others else "recipe only"


def _own_accuracy(card: Card, protocol: str) -> float | None:
    """The latest top-1 accuracy on the data set that is the third part of the name; other data sets are in the card."""
    data = [*card.name.split("-"), "", ""][2]
    found = [
        row["value"]
        for row in card.accuracies
        if row["dataset"] == data and row["protocol"].split(",")[0].split(";")[0] == protocol
    ]
    return found[-1] if found else None


def published_result(expects: str) -> tuple[float | None, str]:
    """The accuracy, 0 to 1, and the data set that a card's `expects` begins with, or (None, "")."""
    found = PUBLISHED.match(expects)
    if found is None:
        return None, ""
    data = " ".join(filter(None, (found["data"], found["protocol"])))
    return round(float(found["percent"]) / 100, 6), data
