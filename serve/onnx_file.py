"""The ONNX file of a ResNet of this zoo, made from its weights when it is first served; no torch is needed."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from zoo.errors import NoWeights
from zoo.files import locked, new_file
from zoo.hub.store import GOLDEN, checked_weights, onnx_file, read_card
from zoo.model.card import Card

FORMAT = "contrastive-zoo/1"  # of the metadata; a reader refuses others
INPUT, OUTPUT = "pixels", "embedding"


def metadata(card: Card, **exporter: str) -> dict[str, str]:
    """What an ONNX file says about itself; everything but names and hashes is JSON. exporter: packages and versions."""
    assert card.weights is not None
    numbers: dict[str, Any] = {name: getattr(card, name) for name in ("dim", "image_size", "crop", "mean", "std")}
    words = {"format": FORMAT, "name": card.name, "weights_sha256": card.weights.sha256, "interpolation": "bicubic"}
    words |= {"revision": card.published.revision} if card.published else {}
    words |= {"licence": card.licence} if card.licence else {}
    return words | {key: json.dumps(value) for key, value in (numbers | {"exporter": exporter}).items()}


def make_onnx(folder: Path) -> Path:
    """Write the ONNX file of a model folder unless it is there; it appears only if it gives the golden embeddings.

    Returns:
        Where it is: beside the weights, or in `$ZOO_HOME/onnx` for a model that is bundled with the package.

    Raises:
        NoWeights: It takes torch: the model is not a ResNet of this zoo, or has no golden embeddings to check.
        CorruptFile: The weights do not match the card, or the golden embeddings are missed.
    """
    path, card = onnx_file(folder), read_card(folder)
    if path.is_file():
        return path
    if card.is_plain_timm or card.network or not card.backbone_row.architecture.startswith(("resnet", "resnext")):
        raise NoWeights(f"{path} is not there. Export it: zoo export {folder}")
    if not (folder / GOLDEN).is_file():
        raise NoWeights(
            f"{path} is not there, and without {GOLDEN} there is nothing to check it by. Export it: zoo export {folder}"
        )
    with locked(path.parent / ".exporting"):  # several workers may start at once
        if not path.is_file():
            print(f"{card.name}: first start, writing {path}", file=sys.stderr)
            _write(folder, card, path)
    return path


def _write(folder: Path, card: Card, path: Path) -> None:
    import onnx  # not needed to serve a file that is there

    from serve.resnet_graph import resnet_graph
    from serve.session import Session, check_golden

    weights = load_file(checked_weights(folder, card))
    model = resnet_graph(weights, image_size=card.image_size, stem_padding=card.stem_padding)
    onnx.helper.set_model_props(model, metadata(card, onnx=version("onnx")))
    with new_file(path) as aside:
        onnx.save(model, aside)
        check_golden(Session(aside), folder / GOLDEN)
