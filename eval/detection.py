"""The training of a detector, on MoCo's schedule for VOC, and its average precision."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import FasterRCNN

from eval.linear_sgd import indices
from zoo.errors import BadData
from zoo.images.pixels import read_rgb
from zoo.images.voc import Scene

RATE, DECAY, WARM_UP = 0.02, 1e-4, 100  # the rate is for 16 images; steps, or a tenth of a shorter training
METRICS = ("AP", "AP50", "AP75")


class Diverged(BadData):
    """A training whose loss, or network, became infinite."""


def rate(step: int, steps: int, batch: int, *, peak: float = RATE) -> float:
    """Warm-up, then two falls at 18/24 and 22/24 of the way; in proportion to the batch. peak: for 16 images."""
    fall = 0.1 ** ((step >= steps * 18 / 24) + (step >= steps * 22 / 24))
    return peak * batch / 16 * fall * min(1.0, (step + 1) / min(WARM_UP, max(1, steps // 10)))


def fit(
    model: FasterRCNN,
    scenes: Sequence[Scene],
    names: Sequence[str],
    *,
    steps: int,
    batch: int,
    peak: float = RATE,
    seed: int = 0,
) -> list[float]:
    """Train; returns the loss of each step. Raises Diverged. peak: of `rate`."""
    torch.manual_seed(seed)  # regions are sampled at random
    optimiser = torch.optim.SGD(model.parameters(), peak, momentum=0.9, weight_decay=DECAY)
    losses = []
    for step, (images, targets) in enumerate(_batches(model, scenes, names, steps, batch, seed)):
        for group in optimiser.param_groups:
            group["lr"] = now = rate(step, steps, batch, peak=peak)
        loss = sum(model.train()(images, targets).values())
        if not torch.isfinite(loss):
            raise Diverged(f"diverged in step {step} at a rate of {now:g}")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    if not all(values.isfinite().all() for values in model.state_dict().values()):
        raise Diverged(f"diverged in step {steps - 1}, the last, at a rate of {now:g}")
    return losses


def _batches(
    model: FasterRCNN, scenes: Sequence[Scene], names: Sequence[str], steps: int, batch: int, seed: int
) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
    """Batches of images and boxes, mirrored half of the time."""
    rng, device = np.random.default_rng(seed), next(model.parameters()).device
    for index in indices(len(scenes), steps, batch=batch, seed=seed):
        images, targets = [], []
        for scene in (scenes[i] for i in index):
            image, boxes = _image(scene), torch.from_numpy(scene.boxes)
            if rng.random() < 0.5:
                image, boxes = image.flip(2), mirrored(boxes, image.shape[2])
            labels = torch.tensor([names.index(name) + 1 for name in scene.names], dtype=torch.int64)
            images.append(image.to(device))
            targets.append({"boxes": boxes.to(device), "labels": labels.to(device)})
        yield images, targets


def mirrored(boxes: Tensor, width: int) -> Tensor:
    """Boxes (k, 4) of the mirror image of an image that is `width` pixels wide."""
    return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)


def _image(scene: Scene) -> Tensor:
    return torch.from_numpy(np.array(read_rgb(scene.image))).permute(2, 0, 1) / 255  # (3, H, W)


@torch.inference_mode()
def average_precision(model: FasterRCNN, scenes: Sequence[Scene], names: Sequence[str]) -> dict[str, float]:
    """AP, AP50 and AP75 in [0, 1], as COCO defines them."""
    metric, device = MeanAveragePrecision(backend="pycocotools"), next(model.parameters()).device
    metric.warn_on_many_detections = False
    for scene in scenes:
        (found,) = model.eval()([_image(scene).to(device)])
        labels = torch.tensor([names.index(name) + 1 for name in scene.names], dtype=torch.int64)
        truth = {"boxes": torch.from_numpy(scene.boxes), "labels": labels}
        truth["iscrowd"] = torch.from_numpy(scene.difficult).long()
        metric.update([{key: value.cpu() for key, value in found.items()}], [truth])
    values = metric.compute()
    return {name: float(values[key]) for name, key in zip(METRICS, ("map", "map_50", "map_75"), strict=True)}
