"""A published folder: which files it has, and how it becomes a model folder of this machine again.

On the Hub a model has the form of plain timm (`zoo.model.timm_form`); here it has the form that training writes.
"""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zoo.errors import CorruptFile, ZooError
from zoo.files import sha256, write_bytes
from zoo.hub.store import CARD, GOLDEN, HEAD, ONNX, WEIGHTS
from zoo.model.card import Card, Published, Weights, parse_card
from zoo.model.timm_form import Tensors, from_timm, timm_config

CONFIG = "config.json"
RECIPE = "recipe.json"
RESULTS = "results.json"
TRANSFORM = {"interpolation": "bicubic", "crop_mode": "center"}  # of `zoo.images.pixels`; another is another embedding
EXTRAS = (HEAD, GOLDEN, ONNX)  # fetched on demand
FETCHED = (CONFIG, RECIPE, RESULTS, WEIGHTS, *EXTRAS)  # whatever else a repository holds is left there
APART = {RECIPE: ("recipe", "training"), RESULTS: ("results",)}  # entries of the card with their own file


def fingerprint(path: Path) -> Weights:
    """Name, sha256 and size of a file."""
    return Weights(file=path.name, sha256=sha256(path), bytes=path.stat().st_size)


def fingerprints(folder: Path) -> tuple[Weights, ...]:
    """Those of every file that is fetched and lies in `folder`."""
    return tuple(fingerprint(folder / name) for name in FETCHED if (folder / name).is_file())


def card_files(card: Card) -> dict[str, bytes]:
    """`config.json`, `recipe.json` and `results.json` of a card."""
    entries = asdict(replace(card, published=None))
    files = {name: {key: entries.pop(key) for key in keys} for name, keys in APART.items()}
    files[CONFIG] = timm_config(card) | {"zoo": entries}
    return {name: (json.dumps(value, indent=1, allow_nan=False) + "\n").encode() for name, value in files.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`. Raises CorruptFile if it is not a JSON object."""
    return _object(folder / CONFIG)


def read_release_card(folder: Path) -> Card:
    """The card that `card_files` took apart. Raises CorruptFile."""
    entries = read_config(folder).get("zoo", {})
    for name in APART:
        entries = entries | _object(folder / name)
    return parse_card(json.dumps(entries), where=folder / CONFIG)


def read_release(folder: Path) -> tuple[Card, Tensors]:
    """The card and the encoder's own tensors of a published folder. Raises CorruptFile."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    card = read_release_card(folder)
    try:
        return card, from_timm(card, load_file(folder / WEIGHTS))
    except SafetensorError as error:
        raise CorruptFile(f"{folder / WEIGHTS}: not safetensors ({error}). Fetch it again") from error


def timm_card(config: dict[str, Any], published: Published) -> Card:
    """The card of a repository in timm's own form: its name is the repository's, its preprocessing pretrained_cfg's.

    Raises ZooError for a preprocessing that this package does not do, CorruptFile.
    """
    repo, where = published.repo, f"https://huggingface.co/{published.repo}"
    settings: dict[str, Any] = config.get("pretrained_cfg", {})
    try:
        channels, height, width = settings["input_size"]
        wanted = {key: settings.get(key, value) for key, value in TRANSFORM.items()}
        if wanted != TRANSFORM or channels != 3 or height != width:
            raise ZooError(
                f"{repo} wants {wanted}, input {settings['input_size']}; zoo.load only does {TRANSFORM} on square RGB "
                "images. Use timm.create_model with timm's own transform"
            )
        card = Card(
            name=repo,
            paper=f"See {where}",
            image_size=height,
            crop=settings["crop_pct"],
            mean=tuple(settings["mean"]),
            std=tuple(settings["std"]),
            dim=config["num_features"],
            licence=str(settings.get("license") or ""),
            expects=f"none here; see {where}",
            training={"architecture": config["architecture"]},
            published=published,
        )
        return parse_card(card.to_json(), where=f"{CONFIG} of {repo}")
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{CONFIG} of {repo} is neither this zoo's nor timm's ({error!r}). Give another repository or revision"
        ) from error


def refuse_config(release: Path, published: Published) -> None:
    """Raise what `unpack` would raise for the config alone, before anything large is downloaded."""
    config = read_config(release)
    if "zoo" not in config:
        timm_card(config, published)


def unpack(release: Path, target: Path, published: Published) -> None:
    """Fill the folder `target` with the model in the published folder `release`.

    A repository of plain timm, without our card, keeps its form and gets one. Raises CorruptFile; ZooError if it wants
    a preprocessing that this package does not do.
    """
    config = read_config(release)
    if "zoo" not in config:
        card = timm_card(config, published)
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(release / name, target / name)
        card = replace(card, weights=fingerprint(target / WEIGHTS))
        write_bytes(target / CARD, card.to_json().encode())
        return
    from zoo.model.tensors import write_tensors

    card, tensors = read_release(release)
    write_tensors(target / WEIGHTS, tensors)
    card = replace(card, weights=fingerprint(target / WEIGHTS), published=published)
    write_bytes(target / CARD, card.to_json().encode())


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(f"a JSON {type(value).__name__}, not an object")
    except (OSError, ValueError) as error:
        raise CorruptFile(f"{path}: not readable ({error}). Fetch the model again") from error
    return value
