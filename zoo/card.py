"""The card: everything about an encoder but its weights, as one JSON file beside them.

The catalogue holds the cards of published names; a run folder holds the card of what was trained there.
"""

import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from zoo.errors import CorruptFile, UnknownName
from zoo.names import parse_name

FORMAT = 1  # of the card; a reader refuses other numbers


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Which bytes belong to the card."""

    file: str  # a name in the card's folder, never a path
    sha256: str  # 64 hex digits
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Card:
    """What travels with an encoder: identity, preprocessing, recipe, training record, results."""

    name: str  # <method>-<backbone>-<data set>[-<variant>]
    paper: str  # citation of the method
    image_size: int  # pixels, H = W
    crop: float = 1.0  # share of the shorter side that the centre crop keeps, (0, 1]
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    dim: int  # of an embedding, D
    expects: str  # the published result of the recipe with its table, or "none published"
    recipe: dict[str, Any] = field(default_factory=dict)  # every number of the training
    training: dict[str, Any] = field(default_factory=dict)  # steps, images, seconds, hardware, date, versions, command
    results: tuple[dict[str, Any], ...] = ()  # rows written by `eval.score`
    weights: Weights | None = None  # None in the catalogue: not published yet
    format: int = FORMAT

    @property
    def backbone(self) -> str:
        return parse_name(self.name).backbone

    @property
    def dataset(self) -> str:
        return parse_name(self.name).dataset

    def with_result(self, row: dict[str, Any]) -> "Card":
        """A copy with `row` in place of an earlier row of the same `key`."""
        others = tuple(old for old in self.results if old["key"] != row["key"])
        return replace(self, results=(*others, row))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"


def parse_card(text: str, *, where: str | Path) -> Card:
    """The card written in `text`. Raises CorruptFile, naming `where`, if it is not one of this format."""
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(values, dict):
            raise ValueError(f"a JSON {type(values).__name__}, not an object")
        if values.get("format") != FORMAT:
            raise CorruptFile(f"{where}: card of format {values.get('format')!r}, this version reads {FORMAT}. Upgrade")
        surplus, missing = values.keys() - {f.name for f in fields(Card)}, _REQUIRED - values.keys()
        if surplus or missing:
            raise CorruptFile(
                f"{where}: entries unknown {sorted(surplus)}, missing {sorted(missing)}; is it a card of this zoo?"
            )
        values["mean"], values["std"] = (tuple(map(float, values[key])) for key in ("mean", "std"))
        values["results"] = tuple(values.get("results", ()))
        if values.get("weights") is not None:
            values["weights"] = Weights(**values["weights"])
        card = Card(**values)
        parse_name(card.name)
        bad = [entry for entry, sound in _soundness(card).items() if not sound]
        if bad:
            raise ValueError(f"no such value allowed in {', '.join(bad)}")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, UnknownName) as error:
        raise CorruptFile(
            f"{where}: not a card ({error}). Restore the file, or train or fetch the model again"
        ) from error
    return card


_REQUIRED = {f.name for f in fields(Card) if f.default is MISSING and f.default_factory is MISSING}


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _soundness(card: Card) -> dict[str, bool]:
    """Which entries hold a value that the entry may have."""
    weights = card.weights
    return {
        "paper": isinstance(card.paper, str),
        "image_size": type(card.image_size) is int and card.image_size > 0,
        "crop": isinstance(card.crop, int | float) and 0 < card.crop <= 1,
        "mean": len(card.mean) == 3 and all(map(isfinite, card.mean)),
        "std": len(card.std) == 3 and all(0 < value < inf for value in card.std),
        "dim": type(card.dim) is int and card.dim > 0,
        "expects": isinstance(card.expects, str),
        "recipe": isinstance(card.recipe, dict),
        "training": isinstance(card.training, dict),
        "results": all(isinstance(row, dict) and "key" in row for row in card.results),
        "weights.file": weights is None or re.fullmatch(r"\w[\w.-]*\.safetensors", weights.file) is not None,
        "weights.sha256": weights is None or re.fullmatch("[0-9a-f]{64}", weights.sha256) is not None,
        "weights.bytes": weights is None or (type(weights.bytes) is int and weights.bytes > 0),
    }
