"""An ONNX file as a function of images. onnxruntime, numpy and Pillow; never torch."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

from serve.aliases import split_alias
from serve.file_structure import check_structure
from serve.limits import FORMATS
from serve.onnx_file import FORMAT, INPUT, OUTPUT, make_onnx
from zoo.errors import CorruptFile, NotInstalled, NoWeights, Unreachable, ZooError
from zoo.hub.resolve import locate
from zoo.hub.store import GOLDEN, ONNX, read_card
from zoo.images.pixels import preprocess

GOLDEN_GAP = 1e-4  # largest difference over largest value; another machine sums in another order
AGAIN = "Export it again: zoo export"


@final
class Session:
    """The encoder in an ONNX file that `serve.export` wrote.

    path: the file. threads: CPU threads of one run.
    Raises NoWeights if there is no such file, CorruptFile if it is not one of ours.
    """

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        if not path.is_file():
            raise NoWeights(f"{path} is not there. Export it: zoo export {path.parent}")
        try:
            self._runtime = onnxruntime.InferenceSession(path, _options(threads), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a dozen unrelated classes for a file it cannot read
            raise CorruptFile(f"{path}: onnxruntime cannot read it ({error}). {AGAIN}") from error
        facts = _facts(self._runtime, path)
        self.path = path
        self.aliases: list[str] = []  # further names that it is served under
        self.name: str = facts["name"]
        self.dim: int = facts["dim"]  # D
        self.image_size: int = facts["image_size"]  # pixels, H = W
        self.crop: float = facts["crop"]  # share of the shorter side, (0, 1]
        self.weights_sha256: str = facts["weights_sha256"]  # of the safetensors file it was exported from
        self.licence: str = facts["licence"]  # of the weights, an SPDX identifier, or ""

    def preprocess(self, picture: bytes, *, formats: Sequence[str] | None = FORMATS) -> np.ndarray:
        """(S, S, 3) uint8 of an encoded picture, S = image_size.

        formats: allowed encodings, in Pillow's words; None for one's own files, of any type that is read.

        Raises BadImage, ImageTooLarge, ImageFormatNotAllowed.
        """
        check_structure(picture)
        return preprocess(picture, image_size=self.image_size, crop=self.crop, formats=formats)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, S, S, 3) uint8 -> (B, D) float32, B >= 1."""
        (features,) = self._runtime.run([OUTPUT], {INPUT: pixels})
        return features


def open_model(where: str) -> Session:
    """The session of a run folder, a name, or a path that ends in .onnx; a missing ONNX file is made if it can be.

    Raises UnknownName, NoWeights, CorruptFile; also when the folder's weights changed after the export, or when the
    embeddings differ from the golden ones beside the weights.
    """
    if where.endswith(".onnx"):
        return Session(Path(where))
    folder = locate_served(where)
    session = Session(make_onnx(folder))
    weights = read_card(folder).weights
    if weights is None or weights.sha256 != session.weights_sha256:
        raise CorruptFile(f"{session.path} was exported from other weights than {folder} holds. {AGAIN} {folder}")
    if (folder / GOLDEN).is_file():
        check_golden(session, folder / GOLDEN)
    return session


def locate_served(where: str) -> Path:
    """The folder of a model with its ONNX file and golden embeddings, as far as they are published and at hand."""
    try:
        return locate(where, extras=(ONNX, GOLDEN))
    except (NoWeights, Unreachable, NotInstalled):  # a server is offline, and makes an ONNX file where it can
        return locate(where)


def check_golden(session: Session, path: Path) -> None:
    """Embed a file's `pixels` (n, S, S, 3) uint8 and compare with its `embeddings` (n, D). Raises CorruptFile."""
    try:
        golden = load_file(path)
        expected = golden["embeddings"].astype(np.float32)
        gap = float(np.abs(session.embed_pixels(golden["pixels"]) - expected).max() / np.abs(expected).max())
    except Exception as error:  # safetensors and onnxruntime have their own words for a file that does not fit
        raise CorruptFile(
            f"{path}: not golden embeddings of {session.name} ({error}). Fetch the model again"
        ) from error
    if not gap <= GOLDEN_GAP:
        raise CorruptFile(
            f"{session.path} differs from the golden embeddings in {path} by {gap:.1e} of the largest value "
            f"(allowed {GOLDEN_GAP:.0e}). {AGAIN}, or fetch the model again"
        )


def models_from_environment() -> list[Session]:
    """The sessions of the models that `$ZOO_MODEL` names, separated by commas; see `open_model`.

    Each also answers to the name that was asked for, where weights of a variant were loaded, and to ALIAS=MODEL.
    """
    words = [word.strip() for word in os.environ.get("ZOO_MODEL", "").split(",") if word.strip()]
    if not words:
        raise ZooError(
            "no model to serve. Set ZOO_MODEL to run folders, kept names or .onnx files, with commas between"
        )
    sessions = []
    for word in words:
        alias, where = split_alias(word)
        session = open_model(where)
        asked = where if os.sep not in where and not where.endswith(".onnx") and not Path(where).exists() else ""
        session.aliases = [name for name in dict.fromkeys((alias, asked)) if name not in ("", session.name)]
        sessions.append(session)
    names = [name for session in sessions for name in (session.name, *session.aliases)]
    for name in names:
        if names.count(name) > 1:
            raise ZooError(f"{name} was asked for {names.count(name)} times; every served model needs its own name")
    return sessions


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
        facts |= {key: written[key] for key in ("name", "weights_sha256")} | {"licence": written.get("licence", "")}
    except (KeyError, ValueError) as error:
        raise CorruptFile(f"{path}: incomplete metadata ({error!r}). {AGAIN}") from error
    size, dim = facts["image_size"], facts["dim"]
    promised = [(INPUT, "tensor(uint8)", [size, size, 3]), (OUTPUT, "tensor(float)", [dim])]
    found = [(node.name, node.type, node.shape[1:]) for node in (*runtime.get_inputs(), *runtime.get_outputs())]
    if found != promised:
        raise CorruptFile(f"{path}: the graph is {found}, its metadata says {promised}. {AGAIN}")
    return facts
