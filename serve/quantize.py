"""An exported model in 8-bit integers, a quarter of the size, measured against its float original before it appears.

Convolutional networks: static (calibrated on training images, weights per channel, QDQ). Transformers: dynamic, matrix
products only. The other two combinations are slower or inaccurate, so there are none.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from serve.session import INPUT, Session
from zoo.errors import ZooError
from zoo.files import new_file
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.embedding import unit_rows

CALIBRATION = 256  # training images
BANK, QUERIES = 4000, 1000  # at most so many training and test images are compared
K = 20  # neighbours that vote
MAX_LOSS = 1.0  # points of k-NN accuracy
CHUNK = 32  # images of one run
QUANTIZED = ("Conv", "MatMul", "Gemm")


class Comparison(NamedTuple):
    """An int8 model against its float original, on images of its data set."""

    cosine: float  # of the two embeddings of an image, the mean over queries
    agreement: float  # share of queries with the same nearest image
    knn_float: float  # accuracy, [0, 1]
    knn_int8: float
    n_bank: int
    n_queries: int

    @property
    def loss(self) -> float:
        """Points of k-NN accuracy."""
        return 100 * (self.knn_float - self.knn_int8)

    def __str__(self) -> str:
        return (
            f"cosine {self.cosine:.4f}, same nearest image {100 * self.agreement:.1f} %, {K}-NN float "
            f"{100 * self.knn_float:.2f} %, int8 {100 * self.knn_int8:.2f} % (loss {self.loss:.2f} points; "
            f"{self.n_bank} training and {self.n_queries} test images)"
        )


def quantize(source: Path, out: Path, *, dataset: str, data: Path | None = None, force: bool = False) -> Comparison:
    """Write `out`, the int8 version of the exported model `source`, unless it loses more than 1 point.

    dataset, data: images to calibrate on and to compare with, as for `open_images`. force: write it all the same.
    Raises ZooError when it loses too much; whatever `open_images` raises.
    """
    train = open_images(dataset, "train", data).sample(BANK)
    test = open_images(dataset, "test", data).sample(QUERIES)
    with new_file(out) as aside:
        write_int8(source, aside, train.sample(CALIBRATION).pixels())
        compared = compare(Session(source), Session(aside), train, test)
        if not compared.loss <= MAX_LOSS and not force:  # a NaN is refused, too
            raise ZooError(
                f"nothing written: {compared}; more than {MAX_LOSS:g} point is lost. --force writes it all the same"
            )
    return compared


def write_int8(source: Path, out: Path, pixels: np.ndarray) -> None:
    """The int8 version of an exported model. pixels: (n, S, S, 3) uint8, to find the ranges of activations."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder, "prepared.onnx")
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        operators = [node.op_type for node in onnx.load(prepared, load_external_data=False).graph.node]
        if operators.count("Conv") > operators.count("MatMul"):
            quantize_static(
                prepared,
                out,
                _Reader(pixels),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*QUANTIZED],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        else:
            quantize_dynamic(prepared, out, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
    _name(source, out)


def compare(original: Session, quantized: Session, train: ImageSet, test: ImageSet) -> Comparison:
    """Both models on the same images."""
    bank, bank8 = (unit_rows(_embed(session, train.pixels())) for session in (original, quantized))
    rows, rows8 = (unit_rows(_embed(session, test.pixels())) for session in (original, quantized))
    nearest, nearest8 = (_nearest(one, other) for one, other in ((rows, bank), (rows8, bank8)))
    predicted, predicted8 = (_vote(np.asarray(train.labels), places) for places in (nearest, nearest8))
    return Comparison(
        cosine=float((rows * rows8).sum(1).mean()),
        agreement=float((nearest[:, 0] == nearest8[:, 0]).mean()),
        knn_float=float((predicted == test.labels).mean()),
        knn_int8=float((predicted8 == test.labels).mean()),
        n_bank=len(bank),
        n_queries=len(rows),
    )


def _nearest(queries: np.ndarray, bank: np.ndarray) -> np.ndarray:
    """(m, K) places in the bank, the nearest first."""
    return np.argsort(-(queries @ bank.T), axis=1, kind="stable")[:, :K]


def _vote(labels: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(m,) the most frequent label of each row's neighbours; the lowest of equals."""
    return np.array([np.bincount(labels[row]).argmax() for row in places])


def _embed(session: Session, pixels: np.ndarray) -> np.ndarray:
    return np.concatenate([session.embed_pixels(chunk) for chunk in _chunks(pixels)])


def _chunks(pixels: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(pixels), CHUNK):
        yield np.asarray(pixels[start : start + CHUNK])


@final
class _Reader(CalibrationDataReader):
    """Calibration images as onnxruntime asks for them."""

    def __init__(self, pixels: np.ndarray) -> None:
        self._chunks = _chunks(pixels)

    def get_next(self) -> dict[str, np.ndarray] | None:
        chunk = next(self._chunks, None)
        return None if chunk is None else {INPUT: chunk}


def _name(source: Path, path: Path) -> None:
    """Give the file the metadata of its original, and the variant int8 for a name of its own."""
    facts = {entry.key: entry.value for entry in onnx.load(source).metadata_props}
    model = onnx.load(path)
    model.ClearField("metadata_props")
    onnx.helper.set_model_props(model, facts | {"name": f"{facts['name']}-int8", "precision": "int8"})
    onnx.save(model, path)
