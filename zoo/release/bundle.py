"""Models that come with the package: `zoo/weights/NAME`, at half their size.

    zoo keep runs/simco-r18-cifar100 --inside

Convolutions, matrices and position tables are stored in float16 and opened as float32; what batch normalisation keeps
stays float32, for float16 ends at 65504. The golden embeddings are those of the rounded weights.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from zoo.errors import ZooError
from zoo.files import new_folder, write_bytes
from zoo.hub import store
from zoo.hub.load import load_encoder
from zoo.hub.published import fingerprint
from zoo.hub.store import CARD, GOLDEN, WEIGHTS, checked_weights, kept_folder, read_zoo_card
from zoo.model.card import Card
from zoo.model.tensors import write_tensors
from zoo.model.timm_form import Tensors
from zoo.release.verify import gap, golden_pictures, write_golden

MAX_ROUNDING = 1e-2  # largest change of an embedding over its largest value


def keep_inside(run: Path, *, force: bool = False) -> tuple[Path, float]:
    """Write `zoo/weights/NAME` from a run. Returns the folder, and how far rounding moved the embeddings (relative).

    Raises NoWeights, CorruptFile; ZooError if the name is there already, or rounding moves an embedding by over 1 %.
    """
    card = read_zoo_card(run)
    tensors = rounded(load_file(checked_weights(run, card)))
    target = store.BUNDLED / card.name
    kept = kept_folder(card.name)
    if (kept / CARD).is_file():
        raise ZooError(f"{kept} is what {card.name} loads, which would hide the bundled weights. Remove it first")
    if target.exists() and not force:
        raise ZooError(f"{target} exists already; --force replaces it")
    with new_folder(target) as aside:
        write_tensors(aside / WEIGHTS, tensors)
        moved = _finish(aside, replace(card, weights=fingerprint(aside / WEIGHTS), published=None), run)
    return target, moved


def rounded(tensors: Tensors) -> Tensors:
    """The backbone's tensors of 2 and more dimensions in float16, all others as they are."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused with its embeddings
        return {
            key: value.astype(np.float16) if key.startswith("backbone.") and value.ndim > 1 else value
            for key, value in tensors.items()
        }


def _finish(folder: Path, card: Card, run: Path) -> float:
    """Write the card, which tells the rounding, and the golden embeddings; return how far they are from the run's."""
    write_bytes(folder / CARD, card.to_json().encode())
    embeddings = write_golden(load_encoder(folder), folder / GOLDEN)
    moved = gap(embeddings, load_encoder(run).embed_pixels(golden_pictures(card.image_size)))
    if not moved <= MAX_ROUNDING:  # a NaN is refused, too
        raise ZooError(
            f"nothing kept: in float16 an embedding of {card.name} moves by {moved:.1e}, over {MAX_ROUNDING}"
        )
    stored = f"matrices in float16; largest change of an embedding {moved:.1e} of its largest value"
    write_bytes(folder / CARD, replace(card, training=card.training | {"stored": stored}).to_json().encode())
    return moved
