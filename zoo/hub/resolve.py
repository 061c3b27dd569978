"""From a name, a path or an address to the verified folder of a model."""

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from zoo.errors import NoWeights, ZooError, unknown
from zoo.files import zoo_home
from zoo.hub import store
from zoo.hub.store import CARD, fetched_folder, named_card, own_folder, read_card
from zoo.model.card import Card, parse_card
from zoo.names import natural_order, parse_name

ADDRESSES = ("hf://", "timm/")


def names() -> list[str]:
    """Every name of the catalogue, inside the package and among the kept models, in natural order; no card is read."""
    folders = [path.parent for home in (store.INSIDE, zoo_home() / "models") for path in home.glob(f"*/{CARD}")]
    found = {folder.name for folder in folders if not folder.name.startswith(".")}
    return sorted(found | {file.name.removesuffix(".json") for file in _catalog_files()}, key=natural_order)


def _catalog_files() -> list[Traversable]:
    folder = resources.files("zoo").joinpath("catalog")
    return [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []


def catalog() -> dict[str, Card]:
    """The cards that come with the package, by name in natural order."""
    cards = [parse_card(file.read_text("utf-8"), where=file.name) for file in _catalog_files()]
    return {card.name: card for card in sorted(cards, key=lambda card: natural_order(card.name))}


def variants(name: str, cards: dict[str, Card]) -> list[str]:
    """The variants of a name, `NAME-VARIANT`, whose weights come with the package or are published (`cards` says)."""
    inside = {path.parent.name for path in store.INSIDE.glob(f"{name}-*/{CARD}")}
    published = {other for other, card in cards.items() if card.published and other.startswith(f"{name}-")}
    return sorted(inside | published, key=natural_order)


def locate(model: str | Path) -> Path:
    """The folder of a model, fetched from the Hub if it is not here. Raises what `find` and `zoo.hub.client` raise."""
    found = find(model)
    return found if isinstance(found, Path) else _fetch(found)


def known_card(model: str | Path) -> Card:
    """The card of a model: in its folder, or else in the catalogue. A name is never fetched for it."""
    try:
        found = find(model)
    except NoWeights:
        card = catalog().get(str(model))
        if card is None:
            raise
        return card
    return read_card(found) if isinstance(found, Path) else found


def find(model: str | Path) -> Path | Card:
    """The folder of a model, or the catalogue's card if the commit that it pins is not here yet.

    In this order: the path itself, if it is one; the weights inside the package; the kept model of that name; the
    pinned commit; the one variant NAME-VARIANT with weights inside the package or on the Hub. `hf://ORG/NAME` and
    `timm/NAME`, each also with `@REVISION`, are any other model on the Hub; these are fetched.

    Raises NoWeights for a name of the catalogue without weights or with several variants, UnknownName for any other,
    CorruptFile for a kept folder with the card of another model.
    """
    path, text = Path(model), str(model)
    if not text:
        parse_name(text)  # raises: it would be the path of the current folder
    if (path / CARD).is_file():
        return path
    if text.startswith(ADDRESSES):
        from zoo.hub.client import fetch_address

        return fetch_address(text)
    folder = own_folder(text)
    if folder is not None:
        named_card(folder)
        return folder
    if os.sep in text or path.is_dir():
        what = "a folder without card.json" if path.is_dir() else "a file" if path.exists() else "not there"
        raise NoWeights(f"{text}: {what}; a model is a folder that training wrote, such as runs/simco-r20-digits")
    parse_name(text)  # a name outside the grammar is told so first
    cards = catalog()
    card = cards.get(text)
    if card is not None and card.published is not None:
        folder = fetched_folder(card.published.repo, card.published.revision)
        return folder if (folder / CARD).is_file() else card
    others = variants(text, cards)
    if len(others) == 1:
        return find(others[0])
    raise _no_weights(text, others, known=card is not None)


def _no_weights(name: str, others: list[str], *, known: bool) -> ZooError:
    """Why a name gives no folder, and what to do."""
    if others:
        return NoWeights(f"{name} has no weights of its own, but {len(others)} variants: load {' or '.join(others)}")
    if not known:
        return unknown("model", name, names(), "`zoo list` shows all; a run folder works too")
    here = (
        f" A run of it lies here: use runs/{name}, or `zoo keep runs/{name}` first."
        if Path("runs", name, CARD).is_file()
        else ""
    )
    return NoWeights(
        f"the weights of {name} are not published yet and not in {zoo_home()}.{here} "
        f"Train them: accelerate launch train/pretrain.py {name}"
    )


def _fetch(card: Card) -> Path:
    from zoo.hub.client import (
        fetch,  # not before it is needed: its client takes longer to import than a fetched model to load
    )

    assert card.published is not None
    return fetch(card.published)
