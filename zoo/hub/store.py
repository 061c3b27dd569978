"""Model folders on this machine: where they are, their cards, their verified weights.

A model is a folder with `card.json` and the weights file that the card names: a run folder, `zoo/weights/NAME` in
the package, `$ZOO_HOME/models/NAME` (kept), or `$ZOO_HOME/hub/ORG/NAME/REVISION` (fetched).
"""

import os
import shutil
from pathlib import Path

from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.files import new_folder, sha256, write_bytes, zoo_home
from zoo.model.card import Card, parse_card

CARD = "card.json"
WEIGHTS = "model.safetensors"
ONNX = "model.onnx"
INT8 = "model.int8.onnx"
HEAD = "head.safetensors"  # projector and predictor
GOLDEN = "golden.safetensors"  # pictures and the embeddings they must have
BUNDLED = Path(__file__).parents[1] / "weights"  # of the package
ADDRESSES = ("hf://", "timm/")


def kept_folder(name: str) -> Path:
    """Where `keep` puts the model of a name."""
    return zoo_home() / "models" / name


def candidates(name: str) -> list[Path]:
    """The folders on this machine with a model of exactly this name: the kept one, then the bundled one."""
    plain = os.sep not in name and not name.startswith(".")  # no name leads out of the two folders
    folders = (kept_folder(name), BUNDLED / name) if plain else ()
    return [folder for folder in folders if (folder / CARD).is_file()]


def folder_of_name(name: str) -> Path | None:
    """The folder that a name loads from: the kept model before the bundled one, since somebody chose to keep it."""
    return next(iter(candidates(name)), None)


def named_card(folder: Path) -> Card:
    """The card in a folder that bears the model's name. Raises CorruptFile if the card there is of another name."""
    card = read_card(folder)
    if card.name != folder.name:
        raise CorruptFile(f"{folder} holds the card of {card.name}. Rename the folder to {card.name}, or delete it")
    return card


def fetched_folder(repo: str, revision: str) -> Path:
    """Where a commit of a repository on the Hub is once it is fetched."""
    return zoo_home() / "hub" / repo / revision


def onnx_file(folder: Path) -> Path:
    """Where a model's ONNX file is: beside the weights, or in `$ZOO_HOME/onnx` for a bundled model."""
    return zoo_home() / "onnx" / folder.name / ONNX if folder.parent == BUNDLED else folder / ONNX


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


def read_zoo_card(folder: Path) -> Card:
    """The card in `folder`. Raises what `read_card` does; ZooError if the model is a repository of plain timm."""
    card = read_card(folder)
    if card.is_plain_timm:
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
        raise NoWeights(f"{folder / CARD} names no weights. Train it: zoo train {card.name}")
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
    card = read_zoo_card(folder)
    weights = checked_weights(folder, card)
    target = kept_folder(card.name)
    if target.exists() and not force:
        raise ZooError(f"{target} exists already; --force replaces it")
    with new_folder(target) as aside:
        for path in (weights, *(folder / name for name in (ONNX, INT8, HEAD, GOLDEN))):
            if path.is_file():
                shutil.copy2(path, aside / path.name)
        write_bytes(aside / CARD, card.to_json().encode())
        checked_weights(aside, card)
    return target
