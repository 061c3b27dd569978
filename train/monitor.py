"""What is monitored while training runs, without the test set: k-NN accuracy, collapse, values that are not finite."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eval.features import Features, extract
from eval.knn import knn_predict
from eval.metrics import accuracy
from train.method import Method
from zoo.errors import ZooError
from zoo.files import new_file
from zoo.images.image_set import ImageSet
from zoo.model.encoder import Encoder

HELD_OUT, K = 2_000, 20
SPECTRUM_OF = 512  # images
COLLAPSED_STD = 0.01  # share of the spread of isotropic features; an untrained ResNet has 0.03 and more
COLLAPSED_RANK = 1.5
SOLVED = 0.95  # pretext accuracy, [0, 1]
FALLEN = 0.04  # of k-NN accuracy below its best, nearly 3 standard deviations where 2,000 images are held out


class NotFinite(ZooError):
    """A loss, a feature or a weight that is infinite or no number: the training has diverged."""


def held_out(n: int) -> np.ndarray:
    """(n,) bool, a sixth of them True: which of the labelled monitored images serve as unseen ones."""
    return np.random.default_rng(0).permutation(n) < n // 6


def labelled_features(encoder: Encoder, train: ImageSet) -> Features | None:
    """Features of the labelled ones of these train images; None if they are fewer than 120.

    The encoder trains on all of them, without labels.
    """
    return extract(encoder, train) if np.count_nonzero(train.labels >= 0) >= 6 * K else None


def held_out_features(features: Features) -> Features:
    """The held-out ones."""
    rows = held_out(len(features))
    return Features(features.rows[rows], features.labels[rows])


def online_knn(features: Features) -> float:
    """k-NN accuracy (k = 20, T = 0.07), [0, 1], of the held-out features against the others."""
    bank, query = ~held_out(len(features)), held_out_features(features)
    predicted = knn_predict(features.rows[bank], features.labels[bank], query.rows, ks=(K,))
    return accuracy(predicted[K, 0.07], query.labels)


class Spectrum(NamedTuple):
    """How the features of some images fill their space."""

    std: float  # of unit features, mean over channels, times sqrt(D): 0 where all images look alike, at most 1
    rank: float  # effective rank, 1 .. min(n - 1, D): Roy and Vetterli 2007, exp of the entropy of the singular values
    values: list[float]  # singular values of the centred unit features, as shares of their sum, largest first


def spectrum(features: np.ndarray) -> Spectrum:
    """The spectrum of features (n, D), n >= 2."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True).clip(np.finfo(np.float32).tiny)
    centred = (rows - rows.mean(0)).astype(np.float64)
    std = float(centred.std(0).mean() * math.sqrt(rows.shape[1]))
    values = np.linalg.svd(centred, compute_uv=False)
    shares = values / max(values.sum(), np.finfo(np.float64).tiny)
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    return Spectrum(std, float(np.exp(entropy)), shares.tolist())


def online_spectrum(encoder: Encoder, train: ImageSet) -> Spectrum:
    """The spectrum of at most 512 train images, always the same ones. Raises NotFinite."""
    features = encoder.embed_pixels(np.asarray(train.sample(SPECTRUM_OF).pixels()))
    if not np.isfinite(features).all():
        raise NotFinite("the encoder's features are no longer finite")
    return spectrum(features)


def collapse_warning(seen: Spectrum) -> str:
    """What to do if the features have collapsed; else nothing."""
    if seen.std > COLLAPSED_STD and seen.rank > COLLAPSED_RANK:
        return ""
    return (
        f"the encoder has collapsed: images hardly differ (std {seen.std:.4f}, effective rank {seen.rank:.1f}). "
        "Lower --learning-rate, lengthen --warmup-epochs, or enlarge --batch-size; check that the two views differ"
    )


def leak_warning(accuracy: float, knn: float, best: float, *, held_out: int) -> str:
    """What to do if batch normalisation seems to tell queries from keys, else nothing.

    accuracy: of the pretext task of late, [0, 1]. knn: k-NN accuracy now, of held_out images; best: the best so far.
    """
    if accuracy < SOLVED or best - knn < FALLEN * math.sqrt(HELD_OUT / held_out):
        return ""
    return (
        f"the pretext task is solved ({100 * accuracy:.1f} %) while k-NN has fallen from {100 * best:.1f} to "
        f"{100 * knn:.1f} %: batch statistics may tell which key belongs to which query (He et al. 2020, section 3.3). "
        "Start again with --batchnorm auto, or sync on several processes; if it is so already, with stronger views"
    )


@final
class StepMetrics:
    """Metrics of each step, kept on the device until they are logged, so that no step waits for them."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Tensor]] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """metrics: () each."""
        for name, value in metrics.items():
            self._kept.setdefault(name, []).append(value.detach())

    def take(self) -> dict[str, float]:
        """The mean of each metric since the last call, and the largest of each gradient norm (`NAME_max`), too."""
        kept, self._kept = {name: torch.stack(values).float() for name, values in self._kept.items()}, {}
        means = {name: values.mean().item() for name, values in kept.items()}
        return means | {f"{name}_max": values.max().item() for name, values in kept.items() if "gradient" in name}


def gradient_norms(method: nn.Module) -> dict[str, Tensor]:
    """Norms () of the gradients of the first and the last layer that learn: 0 or huge values show where training fails.

    A layer is a weight matrix or kernel, so a transformer's class token is not one.
    """
    layers = [p for name, p in method.named_parameters() if name.endswith("weight") and p.ndim > 1]
    gradients = [p.grad for p in layers if p.grad is not None]
    return {"gradient_first": gradients[0].norm(), "gradient_last": gradients[-1].norm()} if gradients else {}


@torch.no_grad()
def first_bad_tensor(method: Method, views: tuple[Tensor, ...]) -> str:
    """The name of the first tensor that is not finite: views, then parameters and buffers, then outputs in order."""
    found = _not_finite([*_named(views).items(), *_state(method)])
    if found:
        return found[0]

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def check(_: nn.Module, __: tuple[Tensor, ...], output: object) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(f"the output of {name}")

        return module.register_forward_hook(check)

    handles = [watch(name, module) for name, module in method.named_modules() if name]
    try:
        method.project(views)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "the loss itself"


def _named(views: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """view1, view2, ..."""
    return {f"view{number}": view for number, view in enumerate(views, 1)}


def save_batch(folder: Path, views: tuple[Tensor, ...], step: int) -> Path:
    """Write the views of a batch into one file, to find out what broke."""
    path = folder / f"bad-batch-{step:08d}.safetensors"
    with new_file(path) as aside:
        save_file({name: view.detach().cpu().contiguous() for name, view in _named(views).items()}, aside)
    return path


def check_finite(loss: Tensor, done: int, method: Method, views: tuple[Tensor, ...], folder: Path | None) -> None:
    """Raises NotFinite if the loss is not finite; names what broke and, given a folder, saves the batch there.

    Every process checks after the same steps and has the same loss, so none is left waiting for another.
    """
    value = loss.item()
    if math.isfinite(value):
        return
    bad = first_bad_tensor(method, views)
    where = f". The batch is in {save_batch(folder, views, done)}" if folder else ""
    raise NotFinite(f"the loss is {value} after {done} steps; the first tensor that is not finite: {bad}{where}")


def check_state(method: Method, done: int) -> None:
    """Raises NotFinite if a parameter or buffer is not finite: nobody could go on from it."""
    if bad := _not_finite(_state(method)):
        raise NotFinite(f"after {done} steps {bad[0]} is not finite")


def _state(method: Method) -> list[tuple[str, Tensor]]:
    return [*method.named_parameters(), *method.named_buffers()]


def _not_finite(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    return [name for name, tensor in named if not tensor.isfinite().all()]
