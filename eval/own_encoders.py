"""Encoders that the zoo does not know: any callable or module, an ONNX file, an endpoint.

    score([MyModule(), my_function], data={"cifar10": path})         # from images to features, see `CallableEncoder`
    python -m eval.score python:package.module:function --data ...   # a function without arguments that returns one
    python -m eval.score onnx:model.onnx https://host/embed --data ...

Each is identified by what it computes, never by its name alone, so that kept features and results of other weights are
not taken for its own.
"""

import base64
import hashlib
import importlib
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from zoo.errors import BadData, CorruptFile, Unreachable, needs, unknown

PROBES = 8  # images that an encoder is identified by
REQUEST_IMAGES = 32  # images of one request to an endpoint
PATIENCE = 120  # seconds that an endpoint may take
URLS = ("http://", "https://")


class CallableEncoder:
    """Any callable from images (B, 3, S, S) float32 in [0, 1] to features (B, D): it normalises them itself.

    A module is put into evaluation mode and moved to `device`; its `image_size`, where it has one, is S.
    """

    def __init__(self, call: Callable[[Tensor], Any], *, image_size: int, device: str | torch.device = "cpu") -> None:
        self.call, self.image_size, self.device = call, int(getattr(call, "image_size", image_size)), device
        if isinstance(call, nn.Module):
            call.to(device).eval()
        self.dim = self.embed_pixels(np.zeros((2, self.image_size, self.image_size, 3), np.uint8)).shape[1]

    @property
    def keeps_weights(self) -> bool:
        """Whether all that decides a feature can be seen: of a function it cannot."""
        return isinstance(self.call, nn.Module)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, S, S, 3) uint8 -> (B, D) float32. Raises BadData if the callable returns anything but (B, D)."""
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device).permute(0, 3, 1, 2) / 255
        with torch.inference_mode():
            features = self.call(images)
        array = features.float().cpu().numpy() if isinstance(features, Tensor) else np.asarray(features, np.float32)
        if array.ndim != 2 or len(array) != len(pixels):
            raise BadData(
                f"{name_of(self.call)} returned {array.shape} for images {tuple(images.shape)}; an encoder returns "
                f"features (B, D). Pool or flatten them, as in `lambda x: model(x).mean((2, 3))`"
            )
        return array

    def identity(self) -> str:
        """sha256 of class, layers, parameters, buffers and of the features of some images."""
        digest = hashlib.sha256(f"{type(self.call).__module__}.{name_of(self.call)} {self.image_size}".encode())
        if isinstance(self.call, nn.Module):
            digest.update(repr(self.call).encode())
            for key, value in sorted(self.call.state_dict().items()):
                digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        digest.update(self.embed_pixels(probe_images(self.image_size)).tobytes())
        return digest.hexdigest()


class OnnxEncoder:
    """An ONNX file with one input and one output (B, D).

    The input is images (B, 3, S, S) float32 in [0, 1], or pixels (B, S, S, 3) uint8, as `serve.export` writes it.
    Raises FileNotFoundError, CorruptFile.
    """

    keeps_weights = True

    def __init__(self, path: Path, *, image_size: int) -> None:
        with needs("export"):
            import onnxruntime
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; onnx:FILE takes an .onnx file")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a dozen unrelated classes for a file it cannot read
            raise CorruptFile(f"{path}: onnxruntime cannot read it ({error}). Export it again") from error
        self.path, (self._input, *more) = path, self._session.get_inputs()
        self._takes_pixels = self._input.type == "tensor(uint8)"
        if more or self._input.type not in ("tensor(uint8)", "tensor(float)") or len(self._input.shape) != 4:
            raise BadData(
                f"{path}: its inputs are {[(one.name, one.type, one.shape) for one in self._session.get_inputs()]}; an "
                "encoder takes images (B, 3, S, S) float32 in [0, 1], or pixels (B, S, S, 3) uint8"
            )
        side = self._input.shape[1 if self._takes_pixels else 2]
        self.image_size = side if isinstance(side, int) else image_size
        self.dim = self.embed_pixels(np.zeros((2, self.image_size, self.image_size, 3), np.uint8)).shape[1]

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, S, S, 3) uint8 -> (B, D) float32."""
        images = pixels if self._takes_pixels else np.moveaxis(pixels, 3, 1).astype(np.float32) / 255
        features = self._session.run(None, {self._input.name: np.ascontiguousarray(images)})[0]
        if features.ndim != 2 or len(features) != len(pixels):
            raise BadData(f"{self.path}: its output is {features.shape} for {len(pixels)} images; it has to be (B, D)")
        return np.asarray(features, np.float32)

    def identity(self) -> str:
        """sha256 of the file and of the features of some images, which weights in a file beside it decide, too."""
        digest = hashlib.sha256(self.path.read_bytes())
        digest.update(self.embed_pixels(probe_images(self.image_size)).tobytes())
        return digest.hexdigest()


class EndpointEncoder:
    """An address that answers {"images": [PNG as base64, ...]} with {"embeddings": [[...], ...]}, as `/embed` does.

    Raises Unreachable, BadData.
    """

    keeps_weights = False  # nobody knows what the other side computes with tomorrow

    def __init__(self, url: str, *, image_size: int) -> None:
        self.url, self.image_size = url, image_size
        self.dim = self.embed_pixels(probe_images(image_size)[:1]).shape[1]

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(B, S, S, 3) uint8 -> (B, D) float32."""
        parts = [self._asked(pixels[at : at + REQUEST_IMAGES]) for at in range(0, len(pixels), REQUEST_IMAGES)]
        return np.concatenate(parts)

    def _asked(self, pixels: np.ndarray) -> np.ndarray:
        body = json.dumps({"images": [_png(image) for image in pixels]}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                rows = np.asarray(json.load(answer)["embeddings"], np.float32)
        except urllib.error.HTTPError as error:
            told = error.read(500).decode(errors="replace")
            raise BadData(f"{self.url} refused {len(pixels)} images: {error.code} {error.reason}: {told}") from error
        except OSError as error:
            raise Unreachable(f"{self.url} does not answer ({error}). Is the service running?") from error
        except (ValueError, TypeError, KeyError) as error:
            raise BadData(
                f'{self.url} answered something else than {{"embeddings": [[...], ...]}} ({error})'
            ) from error
        if rows.ndim != 2 or len(rows) != len(pixels):
            raise BadData(f"{self.url} answered embeddings of shape {rows.shape} for {len(pixels)} images")
        return rows

    def identity(self) -> str:
        """sha256 of the address and of the features of some images."""
        digest = hashlib.sha256(self.url.encode())
        digest.update(self.embed_pixels(probe_images(self.image_size)).tobytes())
        return digest.hexdigest()


OwnEncoder = CallableEncoder | OnnxEncoder | EndpointEncoder


def import_encoder(text: str) -> Any:
    """What the function returns that `text`, package.module:function, names. Raises BadData, UnknownName."""
    module, _, function = text.partition(":")
    if not module or not function:
        raise BadData(f"{text}: an encoder of your own is package.module:function, a function without arguments")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise BadData(f"{text}: {module} cannot be imported ({error}). Is its folder the present one?") from error
    if not callable(make := getattr(found, function, None)):
        raise unknown(f"function of {module}", function, [name for name in vars(found) if not name.startswith("_")])
    encoder = make()
    if not callable(encoder):
        raise BadData(f"{text}() returned {type(encoder).__name__}; it has to return a module or another callable")
    return encoder


def name_of(call: Any) -> str:
    """What a callable is called in tables: its `name`, its own name, or its class."""
    return str(getattr(call, "name", None) or getattr(call, "__name__", None) or type(call).__name__)


def probe_images(size: int) -> np.ndarray:
    """(PROBES, size, size, 3) uint8: smooth random images, always the same."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (PROBES, 5, 5, 3), np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)) for image in coarse]
    )


def _png(image: np.ndarray) -> str:
    content = io.BytesIO()
    Image.fromarray(image).save(content, format="PNG")
    return base64.b64encode(content.getvalue()).decode()
