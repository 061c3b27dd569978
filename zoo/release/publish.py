"""From a run folder to a repository on the Hub that plain timm and transformers open, checked before it leaves.

zoo publish runs/simco-r18-cifar100 --repo ORG/NAME >> zoo/catalog.jsonl
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from zoo.errors import CorruptFile, UnknownName, ZooError
from zoo.files import new_folder, write_bytes, zoo_home
from zoo.hub import store
from zoo.hub.load import load_encoder
from zoo.hub.published import card_files, fingerprints, read_release, read_release_card
from zoo.hub.store import CARD, GOLDEN, HEAD, WEIGHTS, checked_weights, onnx_file, read_zoo_card
from zoo.hub.upload import Upload, check_model_card, upload
from zoo.model.card import REPO, Card, Published, Weights
from zoo.model.tensors import write_tensors
from zoo.model.timm_form import Tensors, published_input, stem_border, to_timm
from zoo.release.model_card import model_card
from zoo.release.verify import MAX_GAP, framed, frames_exactly, gap, verify, write_golden

README = "README.md"
RELEASE = "hub"  # folder in the run


def build_release(run: Path, repo: str) -> Path:
    """Every file of the repository, opened again by us and by plain timm before the folder appears.

    Args:
        run: A model folder. Nothing is written into one that came with the package.
        repo: ORG/NAME.

    Returns:
        `RUN/hub`; for a bundled model `$ZOO_HOME/hub-releases/NAME`.

    Raises:
        NoWeights, CorruptFile, UnknownName: The model or the repository's name is not fit.
        ZooError: A check failed.
    """
    if not re.fullmatch(REPO, repo):
        raise UnknownName(f"{repo!r} is no repository; allowed: ORG/NAME, such as someone/simco-r18-cifar100")
    card = read_zoo_card(run)
    if "converted_from" in card.training and not card.licence:
        raise ZooError(
            f"{run} was converted from somebody else's checkpoint, under a licence that its card does not know"
        )
    weights = checked_weights(run, card)
    encoder = load_encoder(run)
    bundled = run.parent == store.BUNDLED
    if not bundled:  # those of a bundled model came with it
        write_golden(encoder, run / GOLDEN)
    verify(run)  # the ONNX file too: it may be older than the weights
    card = replace(card, parameters=sum(p.numel() for p in encoder.parameters()))
    target = zoo_home() / "hub-releases" / run.name if bundled else run / RELEASE
    with new_folder(target) as aside:
        write_tensors(aside / WEIGHTS, to_timm(card, in_float32(load_file(weights))))
        for name, content in card_files(card).items():
            write_bytes(aside / name, content)
        for path in (run / GOLDEN, onnx_file(run), run / HEAD):
            if path.is_file():
                shutil.copyfile(path, aside / path.name)
        _check_head(aside / HEAD, card)
        text = _model_card(card, repo, fingerprints(aside))
        check_model_card(text)
        write_bytes(aside / README, text.encode())
        _check(aside, run, card)
    return target


def in_float32(tensors: Tensors) -> Tensors:
    """Tensors with every floating-point one in float32: bundled ones are stored in float16."""
    return {k: v.astype(np.float32) if np.issubdtype(v.dtype, np.floating) else v for k, v in tensors.items()}


def publish(run: Path, *, repo: str, private: bool = False) -> tuple[Card, Upload]:
    """Build, check and upload a run; return the entry for the catalog, and the commit and tag on the Hub.

    Raises what `build_release` raises; AccessDenied, Unreachable.
    """
    folder = build_release(run, repo)
    commit = upload(folder, repo, private=private)
    published = Published(repo=repo, revision=commit.revision, files=fingerprints(folder))
    return replace(read_release_card(folder), published=published), commit


def _model_card(card: Card, repo: str, files: tuple[Weights, ...]) -> str:
    """Raises CorruptFile if the card's results or training record lack what the text tells."""
    try:
        return model_card(card, repo, files)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{CARD}: its results or training record are not as they were written ({error!r}). Measure again with "
            "`zoo score`, or restore the file"
        ) from error


def _check_head(path: Path, card: Card) -> None:
    """Raises CorruptFile if the head was not trained together with these weights."""
    if not path.is_file():
        return
    with safe_open(path, "np") as file:
        belongs_to = (file.metadata() or {}).get("weights_sha256")
    if card.weights is None or belongs_to != card.weights.sha256:
        raise CorruptFile(f"{HEAD} belongs to other weights than {WEIGHTS}. Run the training command again")


def _check(release: Path, run: Path, card: Card) -> None:
    """The folder gives back the run bit for bit, and plain timm the run's embeddings. Raises ZooError."""
    found, tensors = read_release(release)
    if found != card:
        raise ZooError(f"nothing published: the card read back from {release} is not the run's")
    native = in_float32(load_file(run / WEIGHTS))
    if tensors.keys() != native.keys() or any(tensors[key].tobytes() != native[key].tobytes() for key in native):
        raise ZooError("nothing published: the weights do not come back bit for bit")
    golden = load_file(release / GOLDEN)
    difference = gap(_by_plain_timm(release, card, golden["pixels"]), golden["embeddings"])
    if not difference <= MAX_GAP:
        raise ZooError(f"nothing published: plain timm's embeddings differ by {difference:.1e}, allowed {MAX_GAP:.0e}")


@torch.inference_mode()
def _by_plain_timm(release: Path, card: Card, pixels: np.ndarray) -> np.ndarray:
    """(n, D) embeddings as somebody without this package gets them, by timm's own transform where it can be exact."""
    model = timm.create_model(f"local-dir:{release}", pretrained=True).eval()
    if stem_border(card) or not frames_exactly(card.image_size, card.crop):
        return model(torch.from_numpy(published_input(card, pixels))).numpy()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    pictures = framed(pixels, card.crop)
    return model(torch.stack([transform(Image.fromarray(picture)) for picture in pictures])).numpy()
