"""Contrastively pretrained image encoders, by name.

    import zoo
    zoo.list("*cifar100")
    encoder = zoo.load("simco-r18-cifar100")
    encoder.embed(["cat.png"])  # (1, 512) float32

Importing this package loads no torch; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins
    from pathlib import Path

    import torch

    from zoo.hub.table import Row
    from zoo.model.card import Card
    from zoo.model.encoder import Encoder

__version__ = "0.1.0"

__all__ = ["info", "list", "load", "table"]


def list(pattern: str = "*", *, method: str = "*", backbone: str = "*", dataset: str = "*") -> builtins.list[str]:
    """Names of the catalogue, inside the package and of the kept models, in natural order.

    Each argument is a pattern as in a shell: `pattern` of the whole name, the others of its parts.
    """
    from fnmatch import fnmatchcase

    from zoo.hub.catalog import names

    def fits(name: str) -> bool:
        parts = [*name.split("-"), "", ""]  # whatever bears a name is listed, even a kept folder that is no model
        pairs = zip(parts, (method, backbone, dataset), strict=False)
        return fnmatchcase(name, pattern) and all(fnmatchcase(part, wanted) for part, wanted in pairs)

    return [name for name in names() if fits(name)]


def table(pattern: str = "*", *, method: str = "*", backbone: str = "*", dataset: str = "*") -> builtins.list[Row]:
    """The models as a list of dicts, filtered as in `list`; `pandas.DataFrame(zoo.table())` is a DataFrame.

    Each has size, weights, licence, and the measured and published top-1 accuracy; see `zoo.hub.table.Row`.
    """
    from zoo.hub.table import table_rows

    return table_rows(list(pattern, method=method, backbone=backbone, dataset=dataset))


def info(model: str | Path) -> Card:
    """The card of a model: of its weights if they are here, else of the catalogue. A name is never fetched for it.

    Raises UnknownName; NoWeights for a path without a model; CorruptFile; for an address on the Hub what `load` raises.
    """
    from zoo.hub.resolve import known_card

    return known_card(model)


def load(model: str | Path, *, device: str | torch.device = "cpu", exact: bool = False, head: bool = False) -> Encoder:
    """The encoder of a model, in evaluation mode, preprocessing included; every file of it is verified.

    A name without weights of its own gives its one variant that has some, with a `VariantWarning`;
    `encoder.card.name` says which model it is.

    Args:
        model: A name; `NAME@v1`, or `NAME@DIGEST` with the first digits of the weights' sha256, for weights that never
            change; a run folder; `hf://ORG/NAME[@REVISION]` or `timm/NAME` on the Hugging Face Hub.
        device: Where its tensors are placed.
        exact: Refuse a variant's weights in place of the name's own.
        head: Load the projector, too, as `encoder.projector`; it was trained with the weights.

    Raises:
        UnknownName: No such name; the message has the nearest ones.
        NoWeights: No weights are at hand; the message says how to get them.
        CorruptFile, Unreachable, AccessDenied, NotInstalled: As their names say.
    """
    from zoo.errors import needs

    with needs("core"):
        from zoo.hub.load import load_encoder

    return load_encoder(model, device=device, exact=exact, head=head)
