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
from zoo.model.backbone import Backbone, backbone_row
from zoo.names import split_name

REPO = r"(?a:(?!.*(--|\.\.|\.git$))\b[\w.-]+\b/\b[\w.-]{1,96}\b)"  # ORG/NAME as the Hub has it, a regular expression
FORMAT = 1  # of the card; a reader refuses other numbers
ACCURACY = "top-1 accuracy"  # metric of a result
LOADING = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "scriptable"}
MAX_SIDE = 8192  # pixels of an image_size; larger ones are a slip, and would take all memory


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Which bytes belong to the card."""

    file: str  # a name in the card's folder, never a path
    sha256: str  # 64 hex digits
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Published:
    """Where on the Hugging Face Hub the card's files are."""

    repo: str  # ORG/NAME
    revision: str  # commit, 40 hex digits
    files: tuple[Weights, ...]  # every file that is fetched


@dataclass(frozen=True, kw_only=True)
class Card:
    """What travels with an encoder: identity, preprocessing, recipe, training record, results."""

    name: str  # <method>-<backbone>-<data set>[-<variant>]; ORG/NAME of a repository of plain timm
    paper: str  # citation of the method
    image_size: int  # pixels, H = W
    crop: float = 1.0  # share of the shorter side that the centre crop keeps, (0, 1]
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    dim: int  # of an embedding, D
    network: dict[str, Any] = field(default_factory=dict)  # the backbone's row, where the table has none of its name
    stem_padding: int = 1  # pixels around the image in a 3x3 stem: 1, or 2 as in solo-learn and the code built on it
    parameters: int | None = None  # of the encoder; None before it is trained
    licence: str = ""  # of the weights, an SPDX identifier; "" for weights trained with this package
    expects: str  # the published result of the recipe with its table, or "none published"
    recipe: dict[str, Any] = field(default_factory=dict)  # every number of the training
    training: dict[str, Any] = field(default_factory=dict)  # steps, images, seconds, hardware, date, versions, command
    results: tuple[dict[str, Any], ...] = ()  # rows written by `eval.score` and `eval.seeds`
    weights: Weights | None = None  # None in the catalogue: not published yet
    published: Published | None = None  # None for a run, and for weights that come with the package
    format: int = FORMAT

    @property
    def backbone(self) -> str:
        return split_name(self.name).backbone

    @property
    def backbone_row(self) -> Backbone:
        """The row of its network. Raises UnknownName if neither the card nor the table has one."""
        return Backbone(**self.network) if self.network else backbone_row(self.backbone)

    @property
    def dataset(self) -> str:
        return split_name(self.name).dataset

    @property
    def is_plain_timm(self) -> bool:
        """Whether it is a repository in plain timm's form: of no recipe, backbone's row or data set of this zoo."""
        return "/" in self.name

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The results of these weights; the others are of baselines, or means over several trainings."""
        return [row for row in self.results if row.get("encoder") == self.name and "trainings" not in row]

    @property
    def accuracies(self) -> list[dict[str, Any]]:
        """The results of these weights that are top-1 accuracies."""
        return [row for row in self.measured if row.get("metric") == ACCURACY]

    def with_result(self, row: dict[str, Any]) -> "Card":
        """A copy with `row` in place of an earlier row of the same `key`."""
        others = tuple(old for old in self.results if old["key"] != row["key"])
        return replace(self, results=(*others, row))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    def to_line(self) -> str:
        """The card as a line of the catalog."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"


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
        if values.get("published") is not None:
            files = tuple(Weights(**file) for file in values["published"]["files"])
            values["published"] = Published(**values["published"] | {"files": files})
        card = Card(**values)
        if not re.fullmatch(REPO, card.name):
            _ = card.backbone_row
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
    weights, published = card.weights, card.published
    return {
        "paper": isinstance(card.paper, str),
        "image_size": type(card.image_size) is int and 0 < card.image_size <= MAX_SIDE,
        "crop": isinstance(card.crop, int | float) and 0 < card.crop <= 1,
        "mean": len(card.mean) == 3 and all(map(isfinite, card.mean)),
        "std": len(card.std) == 3 and all(0 < value < inf for value in card.std),
        "dim": type(card.dim) is int and card.dim > 0,
        "parameters": card.parameters is None or (type(card.parameters) is int and card.parameters > 0),
        "network": not card.network or _sound_network(card.backbone_row),
        "stem_padding": card.stem_padding in (1, 2),
        "licence": isinstance(card.licence, str) and len(card.licence) < 100,
        "expects": isinstance(card.expects, str),
        "recipe": isinstance(card.recipe, dict),
        "training": isinstance(card.training, dict),
        "results": all(map(_sound_result, card.results)),
        "weights.file, sha256 or bytes": weights is None or _sound_file(weights, r"\w[\w.-]*\.safetensors"),
        "published.repo": published is None or re.fullmatch(REPO, published.repo) is not None,
        "published.revision": published is None or re.fullmatch("[0-9a-f]{40}", published.revision) is not None,
        "published.files": published is None or all(_sound_file(file, r"\w[\w.-]*") for file in published.files),
    }


def _sound_network(row: Backbone) -> bool:
    """Whether the row names a network of timm's registry, and no weights to load from anywhere."""
    arguments = {*row.options, *row.small_options, *row.initial}
    return re.fullmatch("[a-z0-9_]+", row.architecture) is not None and not arguments & LOADING


def _sound_result(row: Any) -> bool:
    """Whether a result has its key and, if it tells a metric, all that tables show of it."""
    if not isinstance(row, dict) or "key" not in row:
        return False
    if "metric" not in row:
        return True
    texts = [row.get(entry) for entry in ("encoder", "dataset", "protocol", "metric")]
    trainings = row.get("trainings", {}).values()
    numbers = [row.get("value"), row.get("std") or 0, *(training.get("value") for training in trainings)]
    return all(isinstance(text, str) for text in texts) and all(type(number) in (int, float) for number in numbers)


def _sound_file(file: Weights, name: str) -> bool:
    return bool(
        re.fullmatch(name, file.file)
        and re.fullmatch("[0-9a-f]{64}", file.sha256)
        and type(file.bytes) is int
        and file.bytes > 0
    )
