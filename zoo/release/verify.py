"""Golden embeddings: do torch, the ONNX file and a running server still give what was published?"""

import io
import os
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file

from zoo.errors import CorruptFile, NoWeights, Unreachable, needs
from zoo.files import new_file
from zoo.hub.load import load_encoder
from zoo.hub.resolve import locate
from zoo.hub.store import GOLDEN, ONNX, onnx_file, read_card
from zoo.model.encoder import Encoder
from zoo.model.tensors import write_tensors

N = 8
MAX_GAP = 1e-4  # largest difference over largest value; processors and versions of torch differ by about 1e-6


def golden_pictures(size: int) -> np.ndarray:
    """(8, S, S, 3) uint8: smooth random pictures, the same everywhere and free of anybody's rights."""
    coarse = np.random.default_rng(0).integers(0, 256, (N, 5, 5, 3), np.uint8)
    return np.stack([np.asarray(Image.fromarray(c).resize((size, size), Image.Resampling.BICUBIC)) for c in coarse])


def framed(pixels: np.ndarray, crop: float) -> np.ndarray:
    """(n, H, H, 3): pictures whose central crop is `pixels` (n, S, S, 3), grey around them; see `frames_exactly`."""
    side = pixels.shape[1]
    around = round(side * (1 / crop - 1) / 2)
    return np.pad(pixels, ((0, 0), (around, around), (around, around), (0, 0)), constant_values=128)


def frames_exactly(side: int, crop: float) -> bool:
    """Whether the central crop of a framed picture is its pixels unresampled: side / crop is whole, the frame even."""
    whole = round(side / crop)
    return abs(side / crop - whole) < 1e-6 and (whole - side) % 2 == 0


def write_golden(encoder: Encoder, path: Path) -> np.ndarray:
    """Write pictures and their embeddings; return the embeddings (8, D)."""
    pixels = golden_pictures(encoder.image_size)
    embeddings = encoder.embed_pixels(pixels)
    with new_file(path) as aside:
        write_tensors(aside, {"pixels": pixels, "embeddings": embeddings})
    return embeddings


def read_golden(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, S, S, 3) uint8 as the network takes them, embeddings (n, D) float32. Raises NoWeights, CorruptFile."""
    path = folder / GOLDEN
    if not path.is_file():
        raise NoWeights(f"{path} is missing; published models have it; for a run, `zoo publish --dry-run` writes it")
    try:
        golden = load_file(path)
        pixels, embeddings = golden["pixels"], golden["embeddings"]
        size = read_card(folder).image_size
        if pixels.dtype != np.uint8 or pixels.shape != (max(1, len(embeddings)), size, size, 3):
            raise ValueError(f"pixels of {pixels.dtype} {pixels.shape}, embeddings {embeddings.shape}")
        return pixels, embeddings
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path}: no golden embeddings ({error!r}). Fetch the model again") from error


def verify(model: str | Path, *, url: str | None = None) -> dict[str, float]:
    """The largest relative gap to the golden embeddings of torch, of the ONNX file if there is one, of a server at url.

    Raises CorruptFile if a gap is above 1e-4, NoWeights, UnknownName, Unreachable.
    """
    folder = locate(model, extras=(GOLDEN, ONNX))
    pixels, expected = read_golden(folder)
    encoder = load_encoder(folder)
    found = {"torch": encoder.embed_pixels(pixels)}
    if onnx_file(folder).is_file():
        found["onnx"] = _by_onnx(onnx_file(folder), pixels)
    if url is not None:
        name = read_card(folder).name
        found[url] = np.stack([_by_server(url, name, picture) for picture in framed(pixels, encoder.crop)])
    gaps = {by: gap(embeddings, expected) for by, embeddings in found.items()}
    for by, value in gaps.items():
        if not value <= MAX_GAP:  # a NaN fails, too
            raise CorruptFile(
                f"{model} by {by} is not what was published: the golden embeddings differ by {value:.1e} of "
                f"their largest value, allowed {MAX_GAP:.0e}. Is it another model? Fetch or export it again"
            )
    return gaps


def gap(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over largest value; infinite for another shape, and where nothing but zeros is expected."""
    if found.shape != expected.shape or not expected.any():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _by_onnx(path: Path, pixels: np.ndarray) -> np.ndarray:
    with needs("serve"):
        import onnxruntime
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (embeddings,) = session.run(None, {session.get_inputs()[0].name: pixels})
    except Exception as error:  # onnxruntime has a dozen unrelated classes for a file it cannot read, or not run
        reason = str(error).splitlines()[0]
        raise CorruptFile(f"{path}: onnxruntime cannot use it ({reason}). Export or fetch it again") from error
    return embeddings


def _by_server(url: str, name: str, picture: np.ndarray) -> np.ndarray:
    """(D,) of one picture, sent as PNG to the model `name` there; with the key in `$ZOO_API_KEY` if there is one."""
    png = io.BytesIO()
    Image.fromarray(picture).save(png, "PNG")
    headers = {"Content-Type": "image/png", "Accept": "application/x-npy"}
    if key := os.environ.get("ZOO_API_KEY", "").split(",")[0].strip():
        headers["Authorization"] = f"Bearer {key}"
    address = f"{url.rstrip('/')}/v1/embed?model={quote(name)}"
    try:
        request = urllib.request.Request(address, png.getvalue(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            rows = np.load(io.BytesIO(answer.read()), allow_pickle=False)
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind != "f" or len(rows) != 1:
            raise ValueError("its answer is no embedding")
    except (OSError, ValueError, EOFError, HTTPException) as error:
        raise Unreachable(
            f"{url} does not answer as a server of {name} ({str(error).strip() or type(error).__name__}). Is it "
            f"http://HOST:PORT? Start the server: zoo serve {name}; ZOO_API_KEY is its key"
        ) from error
    return rows[0]
