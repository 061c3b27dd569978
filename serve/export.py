"""`python -m serve.export NAME_OR_RUN`: an encoder as one ONNX file, checked against torch before it appears.

The graph takes uint8 pixels and normalises them itself, so mean and std cannot be forgotten by who runs it.
"""

from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from PIL import Image

from zoo.command_line import parse_and_call, run_command
from zoo.errors import ZooError

if __name__ == "__main__":
    run_command("serve.export", extra="export")

import onnx
import onnxruntime  # noqa: F401  (serve.session's)
import torch
from torch import Tensor, nn

from serve.onnx_file import INPUT, OUTPUT, metadata
from serve.quantize import quantize as to_int8
from serve.session import Session
from zoo.files import new_file
from zoo.hub.load import load_encoder
from zoo.hub.resolve import locate
from zoo.hub.store import onnx_file
from zoo.images.dataset import DATASETS, DIGITS
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder

OPSET = 20
BATCHES = (1, 2, 7, 16)  # several sizes, because an exporter may bake one into the graph
MAX_GAP = 1e-5  # largest difference over largest value: embeddings have no fixed scale
MAX_ANGLE = 1e-6  # 1 - cosine


class Parity(NamedTuple):
    """How far the ONNX file is from torch, the worst over all batches."""

    gap: float  # max |difference| / max |value|
    angle: float  # 1 - cosine


def export(
    model: tyro.conf.Positional[str],
    *,
    out: Path | None = None,
    quantize: bool = False,
    data: Path | None = None,
    force: bool = False,
) -> Path:
    """Export a model to ONNX; the file appears only if its embeddings equal torch's.

    Args:
        model: a name of the zoo, or a run folder.
        out: the file to write; by default model.onnx beside the weights, for those inside the package in $ZOO_HOME.
        quantize: write an int8 version beside it, too (model.int8.onnx), and print what it loses.
        data: where the model's data set lies: its images are compared on, and --quantize calibrates on them. By default
            smooth random images are compared on, and --quantize takes the Hub's copy.
        force: write the int8 version even if it loses more than 1 point of k-NN accuracy.
    """
    path = out or onnx_file(locate(model))
    encoder = load_encoder(model)
    assert encoder.card is not None
    if encoder.card.is_plain_timm and (quantize or data):
        raise ZooError(f"{encoder.card.name} has no data set of the zoo to compare on: leave out --data and --quantize")
    graph = _graph(encoder)
    with new_file(path) as aside:
        onnx.save(graph, aside)
        parity = check(aside, encoder, data)
    print(f"{path}: {path.stat().st_size:,} bytes; largest relative gap to torch {parity.gap:.1e}, ", end="")
    print(f"1 - cosine {parity.angle:.1e} over batches {BATCHES}")
    if quantize:
        small = path.with_suffix(".int8.onnx")
        compared = to_int8(path, small, dataset=encoder.card.dataset, data=data, force=force)
        print(f"{small}: {small.stat().st_size:,} bytes; {compared}")
    return path


def check(path: Path, encoder: Encoder, data: Path | None = None) -> Parity:
    """Embed the same pictures with the ONNX file and with torch. Raises ZooError if they differ by too much."""
    session = Session(path)
    pictures = _pictures(encoder, sum(BATCHES), data)
    parity = Parity(0.0, 0.0)
    for batch in np.split(pictures, np.cumsum(BATCHES)[:-1]):
        found = parity_of(session.embed_pixels(batch), encoder.embed_pixels(batch))
        if not (found.gap <= MAX_GAP and found.angle <= MAX_ANGLE):  # a NaN fails, too
            raise ZooError(
                f"nothing written: in a batch of {len(batch)} the ONNX graph and torch differ by {found.gap:.1e} "
                f"(allowed {MAX_GAP:.0e}), 1 - cosine {found.angle:.1e} (allowed {MAX_ANGLE:.0e}). "
                "Try the versions of torch and onnxscript that the package is tested with"
            )
        parity = Parity(max(parity.gap, found.gap), max(parity.angle, found.angle))
    return parity


def parity_of(found: np.ndarray, expected: np.ndarray) -> Parity:
    """Worst differences of two (B, D) arrays. Raises ZooError for different shapes."""
    if found.shape != expected.shape:
        raise ZooError(f"nothing written: ONNX gives {found.shape}, torch {expected.shape}")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    tiny = np.finfo(np.float64).tiny
    gap = np.abs(a - b).max() / max(np.abs(b).max(), tiny)
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), tiny) for x in (a, b))
    angle = (np.square(a - b).sum(axis=1) / 2).max()  # of unit vectors; exact where 1 - a.b would cancel
    return Parity(float(gap), float(angle))


class _FromPixels(nn.Module):
    """The encoder behind uint8 pixels (B, S, S, 3)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> Tensor:
        return self.encoder(pixels.permute(0, 3, 1, 2) / 255)


def _graph(encoder: Encoder) -> onnx.ModelProto:
    """The ONNX model of a loaded encoder, with our metadata and nobody's paths."""
    assert encoder.card is not None
    size = encoder.image_size
    program = torch.onnx.export(
        _FromPixels(encoder).eval(),
        (torch.zeros(2, size, size, 3, dtype=torch.uint8),),
        dynamo=True,
        opset_version=OPSET,
        external_data=False,  # one file, not two
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: "batch"},),
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    shape = [axis.dim_param or axis.dim_value for axis in model.graph.output[0].type.tensor_type.shape.dim]
    if shape != ["batch", encoder.dim]:
        raise ZooError(f"nothing written: the graph gives {shape}, not the {encoder.dim} features of the backbone")
    _strip(model)
    versions = {name: version(name) for name in ("torch", "onnx", "onnxscript")}
    onnx.helper.set_model_props(model, metadata(encoder.card, **versions))
    onnx.checker.check_model(model, full_check=True)
    return model


def _strip(model: onnx.ModelProto) -> None:
    """Remove what the exporter notes in every node: stack traces with this machine's paths."""
    model.doc_string = ""
    graph = model.graph
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.doc_string = ""
        part.ClearField("metadata_props")


def _pictures(encoder: Encoder, n: int, data: Path | None) -> np.ndarray:
    """(n, S, S, 3) uint8: images of the model's data set if it is at hand, else smooth random ones."""
    assert encoder.card is not None
    size = encoder.image_size
    row = None if encoder.card.is_plain_timm else DATASETS.get(encoder.card.dataset)
    if not encoder.card.is_plain_timm and (data is not None or (row is not None and row.hub == DIGITS)):
        return open_images(encoder.card.dataset, "test", data).sample(n).pixels(size)[:]
    coarse = np.random.default_rng(0).integers(0, 256, (n, 5, 5, 3), np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)) for image in coarse]
    )


def main() -> None:
    """Command line of `zoo export`."""
    parse_and_call(export, prog="zoo export", stopped="an earlier file, if there was one, is as it was")
