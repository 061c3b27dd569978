"""What somebody probably meant by a text that is not a model name."""

import difflib
import re
from collections.abc import Sequence

from zoo.model.backbone import BACKBONES

SHOWN = 4  # names in a hint


def hint(text: str, names: Sequence[str]) -> str:
    """ " Nearest: ...", a sentence to append to an error, with the nearest of `names` or the form of address to use.

    Handles capitals, underscores and spaces, the first parts of a name (`simco-r18`), and names of architectures
    (`resnet50`); empty if nothing is near.
    """
    plain = re.sub(r"[\s_-]+", "-", text.strip().lower()).strip("-")
    if plain in names:
        return f" Nearest: {plain}"
    begun = [name for name in names if name.startswith(f"{plain}-")]
    if begun:
        return f" Nearest: {_some(begun)}"
    squeezed = plain.replace("-", "")
    rows = [key for key, row in BACKBONES.items() if squeezed in (key, row.architecture.replace("_", ""))]
    if rows:
        with_it = [name for name in names if name.split("-")[1:2] == rows[:1]]
        return (
            f" {text} is an architecture. Models of the zoo with it: {_some(with_it)}. "
            f"timm's own weights: timm/{text}.TAG, as named on the Hugging Face Hub"
        )
    near = difflib.get_close_matches(plain, names, n=3, cutoff=0.5)
    return f" Nearest: {', '.join(near)}" if near else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
