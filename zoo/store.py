"""Where models lie, by name.

A model is a folder with `card.json` and the weights file that the card names: a run folder, `zoo/weights/NAME` inside
the package, `$ZOO_HOME/models/NAME` (kept), or `$ZOO_HOME/hub/ORG/NAME/REVISION` (fetched).
"""

import os
import shutil
from importlib import resources
from pathlib import Path

from zoo.card import Card, Published, parse_card
from zoo.errors import CorruptFile, NoWeights, ZooError, unknown
from zoo.files import new_folder, sha256, write_bytes, zoo_home
from zoo.names import natural_order, parse_name

CARD = "card.json"
WEIGHTS = "model.safetensors"
ONNX = "model.onnx"
HEAD = "head.safetensors"  # projector and predictor
GOLDEN = "golden.safetensors"  # pictures and the embeddings they must have
INSIDE = Path(__file__).parent / "weights"  # of the package
ADDRESSES = ("hf://", "timm/")


def catalogue() -> dict[str, Card]:
    """The cards that come with the package, by name in natural order."""
    folder = resources.files("zoo").joinpath("catalog")
    files = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    cards = [parse_card(file.read_text("utf-8"), where=file.name) for file in files]
    return {card.name: card for card in sorted(cards, key=lambda card: natural_order(card.name))}


def kept() -> dict[str, Card]:
    """The cards of the models in `$ZOO_HOME/models`, by name in natural order."""
    paths = (zoo_home() / "models").glob(f"*/{CARD}")
    names = sorted((path.parent.name for path in paths if not path.parent.name.startswith(".")), key=natural_order)
    return {name: read_card(_kept_folder(name)) for name in names}


def _kept_folder(name: str) -> Path:
    """Where the model `name` is kept. Raises CorruptFile if the card there is of another name."""
    folder = zoo_home() / "models" / name
    found = read_card(folder).name
    if found != name:
        raise CorruptFile(f"{folder} holds the card of {found}. Rename the folder to {found}, or delete it")
    return folder


def fetched_folder(repo: str, revision: str) -> Path:
    """Where a commit of a repository on the Hub lies once it is fetched."""
    return zoo_home() / "hub" / repo / revision


def locate(name_or_path: str | Path) -> Path:
    """The folder of a model. In this order: the path itself, if it is one; the weights inside the package; the kept
    model of that name; the commit on the Hub that the catalogue pins, fetched if it is not here. `hf://ORG/NAME` and
    `timm/NAME`, each also with `@REVISION`, are any other model on the Hub.

    Raises NoWeights for a name of the catalogue without weights, UnknownName for any other, and what `zoo.hub` raises.
    """
    path, text = Path(name_or_path), str(name_or_path)
    if (path / CARD).is_file():
        return path
    if text.startswith(ADDRESSES):
        from zoo.hub import fetch_address

        return fetch_address(text)
    if os.sep not in text and not text.startswith(".") and (INSIDE / text / CARD).is_file():
        return INSIDE / text
    if os.sep not in text and not text.startswith(".") and (zoo_home() / "models" / text / CARD).is_file():
        return _kept_folder(text)
    if os.sep in text or path.is_dir():
        what = "a folder without card.json" if path.is_dir() else "a file" if path.exists() else "not there"
        raise NoWeights(f"{text}: {what}; a model is a folder that training wrote, such as runs/simco-r20-digits")
    parse_name(text)  # a name outside the grammar is told so first
    if text not in catalogue():
        raise unknown("model", text, [*catalogue(), *kept()], "`zoo list` shows all; a run folder works too")
    published = catalogue()[text].published
    if published is not None:
        folder = fetched_folder(published.repo, published.revision)
        return folder if folder.is_dir() else _fetch(published)
    here = (
        f" A run of it lies here: use runs/{text}, or `zoo keep runs/{text}` first."
        if Path("runs", text, CARD).is_file()
        else ""
    )
    raise NoWeights(
        f"the weights of {text} are not published yet and not in {zoo_home()}.{here} "
        f"Train them: accelerate launch train/pretrain.py {text}"
    )


def _fetch(published: Published) -> Path:
    from zoo.hub import fetch  # not before it is needed: its client takes longer to import than a fetched model to load

    return fetch(published)


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


def checked_weights(folder: Path, card: Card) -> Path:
    """The weights file of `card`, size and sha256 verified. Raises NoWeights or CorruptFile."""
    if card.weights is None:
        raise NoWeights(f"{folder / CARD} names no weights. Train: accelerate launch train/pretrain.py {card.name}")
    path = folder / card.weights.file
    if not path.is_file():
        raise NoWeights(
            f"{path} is missing. Run the training command again in the same folder, or fetch the model again"
        )
    size, found = path.stat().st_size, sha256(path)
    if (size, found) != (card.weights.bytes, card.weights.sha256):
        raise CorruptFile(
            f"{path} does not match its card: {size} bytes, sha256 {found[:12]}...; the card says {card.weights.bytes} "
            f"bytes, sha256 {card.weights.sha256[:12]}... If it is being trained right now, try again; else run the "
            "training command again, or fetch the model again"
        )
    return path


def keep(folder: Path, *, force: bool = False) -> Path:
    """Copy a verified model into `$ZOO_HOME/models/NAME`, from where its name loads it. Returns that folder.

    Raises NoWeights, CorruptFile (also when the run saves while it is copied), ZooError if the name is kept already.
    """
    card = read_card(folder)
    weights = checked_weights(folder, card)
    target = zoo_home() / "models" / card.name
    if target.exists() and not force:
        raise ZooError(f"{target} exists already; --force replaces it")
    with new_folder(target) as aside:
        for path in (weights, *(folder / name for name in (ONNX, HEAD, GOLDEN))):
            if path.is_file():
                shutil.copy2(path, aside / path.name)
        write_bytes(aside / CARD, card.to_json().encode())
        checked_weights(aside, card)
    return target
