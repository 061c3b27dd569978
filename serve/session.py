"""An ONNX file as a function of images. onnxruntime, numpy and Pillow; never torch."""

import json
import os
from pathlib import Path
from typing import Any, final

import numpy as np
import onnxruntime

from serve.limits import FORMATS
from zoo.errors import CorruptFile, NoWeights, ZooError
from zoo.pixels import preprocess
from zoo.store import ONNX, locate, read_card

FORMAT = "contrastive-zoo/1"  # of the metadata; a reader refuses others
INPUT, OUTPUT = "pixels", "embedding"
AGAIN = "Export it again: python -m serve.export"


@final
class Session:
    """The encoder in an ONNX file that `serve.export` wrote.

    path: the file. threads: CPU threads of one run.
    Raises NoWeights if there is no such file, CorruptFile if it is not one of ours.
    """

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        if not path.is_file():
            raise NoWeights(f"{path} is not there. Export it: python -m serve.export {path.parent}")
        try:
            self._runtime = onnxruntime.InferenceSession(path, _options(threads), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a dozen unrelated classes for a file it cannot read
            raise CorruptFile(f"{path}: onnxruntime cannot read it ({error}). {AGAIN}") from error
        facts = _facts(self._runtime, path)
        self.path = path
        self.name: str = facts["name"]
        self.dim: int = facts["dim"]  # D
        self.image_size: int = facts["image_size"]  # pixels, H = W
        self.crop: float = facts["crop"]  # share of the shorter side, (0, 1]
        self.weights_sha256: str = facts["weights_sha256"]  # of the safetensors file it was exported from

    def preprocess(self, picture: bytes) -> np.ndarray:
        """(S, S, 3) uint8 of an encoded JPEG, PNG or WebP, S = image_size.

        Raises BadImage, ImageTooLarge, ImageFormatNotAllowed.
        """
        return preprocess(picture, image_size=self.image_size, crop=self.crop, formats=FORMATS)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, S, S, 3) uint8 -> (B, D) float32, B >= 1."""
        (features,) = self._runtime.run([OUTPUT], {INPUT: pixels})
        return features


def open_model(where: str) -> Session:
    """The session of a run folder, a kept name, or a path that ends in .onnx.

    Raises UnknownName, NoWeights, CorruptFile; also when the folder's weights changed after the export.
    """
    if not where:
        raise ZooError("no model to serve. Set ZOO_MODEL to a run folder, a kept name or an .onnx file")
    if where.endswith(".onnx"):
        return Session(Path(where))
    folder = locate(where)
    session = Session(folder / ONNX)
    weights = read_card(folder).weights
    if weights is None or weights.sha256 != session.weights_sha256:
        raise CorruptFile(f"{session.path} was exported from other weights than {folder} holds. {AGAIN} {folder}")
    return session


def model_from_environment() -> Session:
    """The session of the model that `$ZOO_MODEL` names; see `open_model`."""
    return open_model(os.environ.get("ZOO_MODEL", ""))


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads would eat a shared CPU
    return options


def _facts(runtime: onnxruntime.InferenceSession, path: Path) -> dict[str, Any]:
    """The metadata, checked against the graph. Raises CorruptFile."""
    written = runtime.get_modelmeta().custom_metadata_map
    if written.get("format") != FORMAT:
        raise CorruptFile(
            f"{path}: metadata of format {written.get('format')!r}, this version reads {FORMAT!r}. {AGAIN}"
        )
    try:
        facts = {key: json.loads(written[key]) for key in ("dim", "image_size", "crop")}
        facts |= {key: written[key] for key in ("name", "weights_sha256")}
    except (KeyError, ValueError) as error:
        raise CorruptFile(f"{path}: incomplete metadata ({error!r}). {AGAIN}") from error
    size, dim = facts["image_size"], facts["dim"]
    promised = [(INPUT, "tensor(uint8)", [size, size, 3]), (OUTPUT, "tensor(float)", [dim])]
    found = [(node.name, node.type, node.shape[1:]) for node in (*runtime.get_inputs(), *runtime.get_outputs())]
    if found != promised:
        raise CorruptFile(f"{path}: the graph is {found}, its metadata says {promised}. {AGAIN}")
    return facts
