"""Who is measured: `open_contestant` turns what stands on the command line into something with features.

simco-r18-cifar100, runs/simco-r18-cifar100    a model of the zoo, a run folder
hf://ORG/NAME, timm/NAME    whatever else `zoo.load` takes
timm:resnet50, timm:resnet50=weights.safetensors    any timm network, at random or with weights from a file
random:r18    a row of `zoo.model.backbone`, at random
pixels:    no network at all
onnx:FILE, https://HOST/embed, python:package.module:function    encoders of one's own, see `eval.own_encoders`
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from eval.features import PixelEncoder, RawPixels
from eval.own_encoders import (
    URLS,
    CallableEncoder,
    EndpointEncoder,
    OnnxEncoder,
    OwnEncoder,
    import_encoder,
    name_of,
)
from zoo.errors import BadData, CorruptFile, unknown
from zoo.hub.load import load_encoder
from zoo.hub.resolve import ADDRESSES, locate
from zoo.hub.store import CARD, read_card
from zoo.images.dataset import dataset_row
from zoo.images.opening import LARGEST_CACHED
from zoo.model.encoder import Encoder, build_backbone, untrained_encoder

SEED = 0  # of random weights
RAW_OF_LARGE = 32  # pixels


@dataclass(frozen=True)
class Contestant:
    """One line of a table."""

    label: str
    encoder: PixelEncoder
    sha256: str  # of all that decides its features; "" for raw pixels
    folder: Path | None = None  # where its card lies
    weights_sha256: str = ""  # of the weights file that its card names
    feature: str = "backbone"  # which layer is measured
    cached: bool = True  # whether its features are kept on disk; only where `sha256` sees all that decides them

    def identity(self) -> str:
        """`sha256` computed again; it differs if the encoder has changed."""
        if isinstance(self.encoder, Encoder):
            return fingerprint(self.encoder)
        return self.encoder.identity() if self.cached and isinstance(self.encoder, OwnEncoder) else self.sha256


def open_contestant(
    model: str | Path | Callable[..., Any], dataset: str, *, device: str | torch.device = "cpu"
) -> Contestant:
    """The contestant for images of `dataset`: what `model` names, or a callable as in `eval.own_encoders`.

    Raises UnknownName, NoWeights, CorruptFile, FileNotFoundError, Unreachable, AccessDenied, BadData.
    """
    if callable(model):
        return _callable(model, dataset, device)
    text = str(model)
    if is_of_the_zoo(text):
        return _of_the_zoo(text, device)
    if text.startswith(URLS):
        return _own(text, EndpointEncoder(text, image_size=dataset_row(dataset).image_size))
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise unknown("kind of encoder", f"{kind}:", [f"{name}:" for name in KINDS], "Or a name or folder of the zoo")
    return KINDS[kind](rest, dataset, device)


def is_of_the_zoo(text: str) -> bool:
    """Whether it is for `zoo.load`: a name, a run folder, an address on the Hub."""
    if text.startswith(URLS):
        return False
    return ":" not in text or text.startswith(ADDRESSES) or (Path(text) / CARD).is_file()


def baselines(contestant: Contestant, *, device: str | torch.device = "cpu") -> list[Contestant]:
    """The same network at random initialisation, and the raw pixels, for a model of the zoo; none for others."""
    if contestant.folder is None:
        return []
    card = read_card(contestant.folder)
    if card.is_plain_timm:
        return []
    torch.manual_seed(SEED)
    untrained = untrained_encoder(card).to(device).eval()
    pixels = _raw(contestant.encoder.image_size)
    return [Contestant(f"random {card.backbone}", untrained, fingerprint(untrained)), pixels]


def fingerprint(encoder: Encoder) -> str:
    """sha256 of architecture, preprocessing and every parameter and buffer."""
    digest = hashlib.sha256(f"{encoder!r} {encoder.image_size} {encoder.crop}".encode())
    for key, value in sorted(encoder.state_dict().items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _of_the_zoo(text: str, device: str | torch.device) -> Contestant:
    folder = locate(text)  # once: a branch on the Hub may move
    encoder, card = load_encoder(folder, device=device), read_card(folder)
    return Contestant(card.name, encoder, fingerprint(encoder), folder, card.weights.sha256 if card.weights else "")


def _pixels(rest: str, dataset: str, _: str | torch.device) -> Contestant:
    if rest:
        raise BadData(f"pixels:{rest}: pixels: stands alone, and takes the size of the data set's images")
    return _raw(dataset_row(dataset).image_size)


def _raw(image_size: int) -> Contestant:
    """Raw pixels; of large images, whose 3 H W numbers no probe could take, at RAW_OF_LARGE px."""
    if image_size > LARGEST_CACHED:
        return Contestant(
            f"pixels at {RAW_OF_LARGE} px", RawPixels(RAW_OF_LARGE), "", feature="raw pixels", cached=False
        )
    return Contestant("pixels", RawPixels(image_size), "", feature="raw pixels", cached=False)


def _callable(call: Callable[..., Any], dataset: str, device: str | torch.device) -> Contestant:
    """A module, function or `Encoder` that was given itself."""
    if isinstance(call, Encoder):
        encoder = call.to(device).eval()
        return Contestant(encoder.card.name if encoder.card else name_of(call), encoder, fingerprint(encoder))
    size = dataset_row(dataset).image_size
    return _own(name_of(call), CallableEncoder(call, image_size=size, device=device))


def _own(label: str, encoder: OwnEncoder) -> Contestant:
    return Contestant(label, encoder, encoder.identity(), feature="its output", cached=encoder.keeps_weights)


def _python(text: str, dataset: str, device: str | torch.device) -> Contestant:
    return _callable(import_encoder(text), dataset, device)


def _onnx(file: str, dataset: str, _: str | torch.device) -> Contestant:
    path = Path(file)
    return _own(path.name, OnnxEncoder(path, image_size=dataset_row(dataset).image_size))


def _random(backbone: str, dataset: str, device: str | torch.device) -> Contestant:
    row = dataset_row(dataset)
    torch.manual_seed(SEED)
    network = build_backbone(backbone, image_size=row.image_size)
    encoder = Encoder(network, mean=row.mean, std=row.std, image_size=row.image_size).to(device).eval()
    return Contestant(f"random {backbone}", encoder, fingerprint(encoder))


def _timm(text: str, _: str, device: str | torch.device) -> Contestant:
    """A timm network at its own image size, with its own crop, mean and std."""
    architecture, given, weights = text.partition("=")
    if not timm.is_model(architecture):
        raise unknown("timm model", architecture, timm.list_models(), "timm.list_models() shows all")
    torch.manual_seed(SEED)
    network = timm.create_model(architecture, pretrained=False, num_classes=0)
    settings = timm.data.resolve_model_data_config(network)
    if given:
        _fill(network, Path(weights), _head_of(architecture))
    size, crop = settings["input_size"][-1], settings["crop_pct"]
    encoder = Encoder(network, mean=settings["mean"], std=settings["std"], image_size=size, crop=crop).to(device)
    label = f"timm:{architecture} ({Path(weights).name})" if weights else f"random timm:{architecture}"
    return Contestant(label, encoder.eval(), fingerprint(encoder))


def _head_of(architecture: str) -> tuple[str, ...]:
    """Names of the classifier's layers, whose weights are not part of an encoder."""
    head = timm.models.get_pretrained_cfg(architecture).classifier
    return (head,) if isinstance(head, str) else tuple(head or ())


def _fill(network: nn.Module, path: Path, head: tuple[str, ...]) -> None:
    """Load a safetensors file; every tensor must find its place, the classifier's excepted."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; timm:ARCHITECTURE=FILE takes a .safetensors file")
    try:
        found = network.load_state_dict(load_file(path), strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise CorruptFile(f"{path}: not weights of this network ({error})") from error
    surplus = [key for key in found.unexpected_keys if not key.startswith(tuple(f"{name}." for name in head))]
    if found.missing_keys or surplus:
        raise CorruptFile(
            f"{path}: {len(found.missing_keys)} tensors of the network are missing in it, {len(surplus)} of it are "
            f"unknown to the network, such as {(found.missing_keys + surplus)[:3]}. Is it of the same architecture?"
        )


KINDS = {"pixels": _pixels, "random": _random, "timm": _timm, "onnx": _onnx, "python": _python}
