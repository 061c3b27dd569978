"""Where models lie, by name.

A model is a folder with `card.json` and the weights file that the card names: a run folder, `zoo/weights/NAME` inside
the package, `$ZOO_HOME/models/NAME` (kept), or `$ZOO_HOME/hub/ORG/NAME/REVISION` (fetched).
"""

import os
import shutil
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from zoo.errors import CorruptFile, NoWeights, ZooError, unknown
from zoo.files import new_folder, sha256, write_bytes, zoo_home
from zoo.model.card import Card, parse_card
from zoo.names import natural_order, parse_name

CARD = "card.json"
WEIGHTS = "model.safetensors"
ONNX = "model.onnx"
INT8 = "model.int8.onnx"
HEAD = "head.safetensors"  # projector and predictor
GOLDEN = "golden.safetensors"  # pictures and the embeddings they must have
INSIDE = Path(__file__).parents[1] / "weights"  # of the package
ADDRESSES = ("hf://", "timm/")


def names() -> list[str]:
    """Every name of the catalogue, inside the package and among the kept models, in natural order; no card is read."""
    folders = [path.parent for home in (INSIDE, zoo_home() / "models") for path in home.glob(f"*/{CARD}")]
    found = {folder.name for folder in folders if not folder.name.startswith(".")}
    return sorted(found | {file.name.removesuffix(".json") for file in _catalogue_files()}, key=natural_order)


def _catalogue_files() -> list[Traversable]:
    folder = resources.files("zoo").joinpath("catalog")
    return [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []


def catalogue() -> dict[str, Card]:
    """The cards that come with the package, by name in natural order."""
    cards = [parse_card(file.read_text("utf-8"), where=file.name) for file in _catalogue_files()]
    return {card.name: card for card in sorted(cards, key=lambda card: natural_order(card.name))}


def own_folder(name: str) -> Path | None:
    """Where the weights of exactly this name lie: inside the package, or kept; else None."""
    plain = os.sep not in name and not name.startswith(".")  # no name leads out of the two folders
    folders = (INSIDE / name, zoo_home() / "models" / name) if plain else ()
    return next((folder for folder in folders if (folder / CARD).is_file()), None)


def named_card(folder: Path) -> Card:
    """The card in a folder that bears the model's name. Raises CorruptFile if the card there is of another name."""
    card = read_card(folder)
    if card.name != folder.name:
        raise CorruptFile(f"{folder} holds the card of {card.name}. Rename the folder to {card.name}, or delete it")
    return card


def variants(name: str, cards: dict[str, Card]) -> list[str]:
    """The variants of a name, `NAME-VARIANT`, whose weights come with the package or are published (`cards` says)."""
    inside = {path.parent.name for path in INSIDE.glob(f"{name}-*/{CARD}")}
    published = {other for other, card in cards.items() if card.published and other.startswith(f"{name}-")}
    return sorted(inside | published, key=natural_order)


def fetched_folder(repo: str, revision: str) -> Path:
    """Where a commit of a repository on the Hub lies once it is fetched."""
    return zoo_home() / "hub" / repo / revision


def onnx_file(folder: Path) -> Path:
    """Where the ONNX file of a model lies: beside the weights; of a model inside the package in `$ZOO_HOME/onnx`."""
    return zoo_home() / "onnx" / folder.name / ONNX if folder.parent == INSIDE else folder / ONNX


def locate(model: str | Path) -> Path:
    """The folder of a model, fetched from the Hub if it is not here. Raises what `find` and `zoo.hub.client` raise."""
    found = find(model)
    return found if isinstance(found, Path) else _fetch(found)


def known_card(model: str | Path) -> Card:
    """The card of a model: in its folder, or else in the catalogue. A name is never fetched for it."""
    try:
        found = find(model)
    except NoWeights:
        card = catalogue().get(str(model))
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
    cards = catalogue()
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


def read_card(folder: Path) -> Card:
    """The card in `folder`. Raises CorruptFile if it is not readable as one, NoWeights if there is none."""
    path = folder / CARD
    if not path.is_file():
        raise NoWeights(f"{path} is missing; a model is a folder that training wrote, such as runs/simco-r20-digits")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(
            f"{path}: not a card ({error}). Restore the file, or train or fetch the model again"
        ) from error
    return parse_card(text, where=path)


def read_own_card(folder: Path) -> Card:
    """The card in `folder`. Raises what `read_card` does; ZooError if the model is a repository of plain timm."""
    card = read_card(folder)
    if card.foreign:
        raise ZooError(
            f"{card.name} is no name of this zoo; once fetched it is kept as it is: zoo.load('hf://{card.name}')"
        )
    return card


def _again(folder: Path) -> str:
    """How to get files of a model folder again."""
    if zoo_home() / "hub" in folder.parents:
        return f"Delete {folder} and load again"
    return "Run the training command again in the same folder, or fetch the model again"


def checked_weights(folder: Path, card: Card) -> Path:
    """The weights file of `card`, size and sha256 verified. Raises NoWeights or CorruptFile."""
    if card.weights is None:
        raise NoWeights(f"{folder / CARD} names no weights. Train: accelerate launch train/pretrain.py {card.name}")
    path = folder / card.weights.file
    if not path.is_file():
        raise NoWeights(f"{path} is missing. {_again(folder)}")
    size, found = path.stat().st_size, sha256(path)
    if (size, found) != (card.weights.bytes, card.weights.sha256):
        raise CorruptFile(
            f"{path} does not match its card: {size} bytes, sha256 {found[:12]}...; the card says {card.weights.bytes} "
            f"bytes, sha256 {card.weights.sha256[:12]}... If it is being trained right now, try again. {_again(folder)}"
        )
    return path


def keep(folder: Path, *, force: bool = False) -> Path:
    """Copy a verified model into `$ZOO_HOME/models/NAME`, from where its name loads it. Returns that folder.

    Raises NoWeights, CorruptFile (also when the run saves while it is copied), ZooError if the name is kept already, or
    is a repository of plain timm.
    """
    card = read_own_card(folder)
    weights = checked_weights(folder, card)
    target = zoo_home() / "models" / card.name
    if target.exists() and not force:
        raise ZooError(f"{target} exists already; --force replaces it")
    with new_folder(target) as aside:
        for path in (weights, *(folder / name for name in (ONNX, INT8, HEAD, GOLDEN))):
            if path.is_file():
                shutil.copy2(path, aside / path.name)
        write_bytes(aside / CARD, card.to_json().encode())
        checked_weights(aside, card)
    return target
