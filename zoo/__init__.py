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

    from zoo.card import Card
    from zoo.encoder import Encoder

__all__ = ["info", "list", "load"]


def list(pattern: str = "*", *, method: str = "*", backbone: str = "*", dataset: str = "*") -> builtins.list[str]:
    """Names of the catalogue and of the kept models, in natural order.

    Each argument is a pattern as in a shell: `pattern` of the whole name, the others of its parts.
    """
    from fnmatch import fnmatchcase

    from zoo.names import natural_order, parse_name
    from zoo.store import catalogue, kept

    def fits(name: str) -> bool:
        wanted = zip((method, backbone, dataset), parse_name(name), strict=False)  # a name may have a variant, too
        return fnmatchcase(name, pattern) and all(fnmatchcase(part, pattern) for pattern, part in wanted)

    return sorted(filter(fits, {**catalogue(), **kept()}), key=natural_order)


def info(name_or_path: str | Path) -> Card:
    """The card of a model: of its weights if they are here, else of the catalogue. Raises UnknownName."""
    from zoo.errors import NoWeights
    from zoo.store import catalogue, locate, read_card

    try:
        return read_card(locate(name_or_path))
    except NoWeights:
        if str(name_or_path) in catalogue():
            return catalogue()[str(name_or_path)]
        raise


def load(name_or_path: str | Path, *, device: str | torch.device = "cpu") -> Encoder:
    """The encoder of a name, of a run folder, or of `hf://ORG/NAME[@REVISION]` or `timm/NAME` on the Hugging Face Hub.

    Fetched if need be, every file verified, in evaluation mode, preprocessing inside. Raises UnknownName (with the
    nearest names), NoWeights (and how to get them), CorruptFile, Unreachable, AccessDenied, NotInstalled.
    """
    from zoo.errors import needs

    with needs("core"):
        from zoo.encoder import load_encoder

    return load_encoder(name_or_path, device=device)
