"""The shape of the cloud of features, without labels: diagnostics of one encoder, not a ranking of methods."""

import numpy as np
import torch

from eval.augment import crop_and_mirror
from eval.features import BATCH, PixelEncoder, batch_of, labelled
from eval.task import Outcome, Task
from zoo.errors import BadData
from zoo.images.image_set import ImageSet
from zoo.model.embedding import in_one_unit, unit_rows

PAIRS_OF = 2048  # images for the two measures of Wang and Isola


def geometry(task: Task) -> list[Outcome]:
    """Each measure of the test features; see the functions of the same names. Raises BadData for a single image."""
    rows = task.queries.rows
    if len(rows) < 2:
        raise BadData("one test image has no geometry; two are needed")
    raw, centred = spectrum(rows), spectrum(rows, centred=True)
    few = task.test.sample(PAIRS_OF)
    measures = {
        "rankme": ("RankMe, singular values, un-centred", rank_me(raw)),
        "effective-rank": ("effective rank, singular values, centred", rank_me(centred)),
        "participation-ratio": ("participation ratio, covariance eigenvalues", participation_ratio(centred)),
        "channel-std": ("mean std of a channel of unit rows x sqrt(D)", channel_std(rows)),
        "uniformity": (f"uniformity, t = 2, {PAIRS_OF} images at most", uniformity(some_rows(rows))),
        "alignment": (
            f"alignment, alpha = 2, crops and flips, {PAIRS_OF} images at most",
            alignment(task.encoder, few),
        ),
    }
    protocol = f"geometry of the {task.test.split} features"
    return [Outcome(name, protocol, metric, value, unit="") for name, (metric, value) in measures.items()]


def some_rows(rows: np.ndarray, *, most: int = PAIRS_OF, seed: int = 0) -> np.ndarray:
    """`most` of rows (n, D) drawn without replacement, as by `ImageSet.sample`: the first may be of one class."""
    return rows[np.random.default_rng(seed).permutation(len(rows))[:most]]


def spectrum(rows: np.ndarray, *, centred: bool = False) -> np.ndarray:
    """Singular values, falling, of rows (n, D), less their mean if `centred`.

    From the Gram matrix: half the cost of an SVD.

    In units of a power of two, so that no square overflows or vanishes: everything made of them is a ratio.
    """
    (scaled,) = in_one_unit(rows)
    rows = scaled - scaled.mean(0) if centred else scaled
    gram = (rows.T @ rows if rows.shape[1] <= len(rows) else rows @ rows.T).astype(np.float64)
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0))


def rank_me(singular: np.ndarray) -> float:
    """exp of the entropy of the normalised singular values: Garrido et al. 2023, equation 1 (1e-7 added).

    Of centred features it is the effective rank of Roy and Vetterli 2007. The variants differ by a factor of ten on
    the same features, so each bears its name.
    """
    shares = singular / singular.sum() + 1e-7 if singular.any() else np.ones(1)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio(singular: np.ndarray) -> float:
    """(sum of eigenvalues)^2 / sum of their squares, of the covariance: between 1 and D; 0 for constant features."""
    eigenvalues = singular**2
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum()) if eigenvalues.any() else 0.0


def channel_std(rows: np.ndarray) -> float:
    """sqrt(D) times the mean over channels of the standard deviation of unit rows: about 1 if spread, 0 if collapsed.

    Chen and He 2021 (SimSiam), section 4.1.
    """
    return float(unit_rows(rows).std(0).mean() * np.sqrt(rows.shape[1]))


def uniformity(rows: np.ndarray) -> float:
    """log mean exp(-2 |x - y|^2) over pairs of different unit rows: Wang and Isola 2020, section 4.1.2, t = 2."""
    unit = unit_rows(rows).astype(np.float64)
    squared = np.maximum(2 - 2 * unit @ unit.T, 0)[np.triu_indices(len(unit), 1)]
    return float(np.log(np.exp(-2 * squared).mean()))


def alignment(encoder: PixelEncoder, images: ImageSet, *, seed: int = 0) -> float:
    """Mean squared distance of the unit features of two random crops of an image: Wang and Isola 2020, alpha = 2."""
    generator = torch.Generator().manual_seed(seed)
    index, total = labelled(images), 0.0
    for start in range(0, len(index), BATCH):  # decides the draws
        pixels = torch.from_numpy(images.pixels(encoder.image_size)[index[start : start + BATCH]])
        views = [_view(pixels, encoder.image_size, generator) for _ in range(2)]
        one, two = (unit_rows(_embedded(encoder, view)).astype(np.float64) for view in views)
        total += float(((one - two) ** 2).sum())
    return total / len(index)


def _embedded(encoder: PixelEncoder, pixels: np.ndarray) -> np.ndarray:
    """(B, D) of pixels (B, H, W, 3), few at a time if they are large."""
    batch = batch_of(encoder.image_size)
    return np.concatenate([encoder.embed_pixels(pixels[i : i + batch]) for i in range(0, len(pixels), batch)])


def _view(pixels: torch.Tensor, size: int, generator: torch.Generator) -> np.ndarray:
    view = crop_and_mirror(pixels.permute(0, 3, 1, 2) / 255, size=size, generator=generator)
    return (255 * view).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
