"""Detection: a ResNet's weights in torchvision's Faster R-CNN, fine-tuned on a folder in VOC layout.

    python -m eval.detect runs/simco-r50-in100 random:simco-r50-in100 --data VOC2007 --neck c4

The schedule is MoCo's for VOC (He et al. 2020, section 4.2.1, and its released configuration): 24,000 steps of 16
images, rate 0.02 after 100 steps of warm-up, a tenth of it from 18,000 and again from 22,000, short side 480 to 800,
all layers trained. Batch normalisation is of one process. AP, AP50 and AP75 are COCO's, in [0, 1]. Difficult objects
are learnt from, as in Detectron2; in the test an answer that lies on one counts neither way, as on COCO's crowds.

A small set on one CPU core, such as the blood cells of BCCD (205 train, 72 test images):

    python -m eval.detect runs/simco-r18-cifar100 random:simco-r18-cifar100 --data bccd --train train --steps 100
        --batch-size 4 --sides 64 --regions 32 --rate 0.06
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from eval.command import at_least_one, run
from eval.linear_sgd import indices
from zoo.encoder import Encoder, load_encoder, new_encoder
from zoo.errors import BadData
from zoo.pixels import read_rgb
from zoo.voc import Scene, class_names, read_voc

Neck = Literal["fpn", "c4"]
STAGES = ("layer1", "layer2", "layer3", "layer4")
RATE, DECAY, WARM_UP = 0.02, 1e-4, 100  # the rate is for 16 images; steps, or a tenth of a shorter training
REGIONS = 512  # of an image that the second stage learns from in a step
SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)  # pixels, of the shorter side in training
ANCHORS = (32, 64, 128, 256, 512)  # pixels, sides of the squares where the last of SIDES is 800
SHAPES = (0.5, 1.0, 2.0)  # height to width


def detector(
    encoder: Encoder, *, classes: int, neck: Neck, sides: Sequence[int] = SIDES, regions: int = REGIONS
) -> FasterRCNN:
    """Faster R-CNN on a copy of the encoder's ResNet; it takes images in [0, 1] and normalises as the encoder does.

    sides: allowed lengths of the shorter side in training; the last one is used in tests, and the anchors shrink with
    it. regions: of each image that the second stage learns from in a step; in a test it sees four times as many.
    Raises BadData if the backbone has no four stages.
    """
    network = copy.deepcopy(encoder.backbone)
    if not all(hasattr(network, stage) for stage in STAGES):
        raise BadData(f"{type(network).__name__} has no stages {', '.join(STAGES)}; detection needs such a ResNet")
    body, more = NECKS[neck](network, classes, tuple(round(sides[-1] / SIDES[-1] * side) for side in ANCHORS))
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    num_classes = None if "box_predictor" in more else classes + 1
    more |= {"min_size": tuple(sides), "max_size": 1333, "box_batch_size_per_image": regions}
    more["rpn_post_nms_top_n_test"] = min(1000, 4 * regions)
    return FasterRCNN(body, num_classes, image_mean=mean, image_std=std, **more).requires_grad_()


def _fpn(network: nn.Module, classes: int, anchors: tuple[int, ...]) -> tuple[nn.Module, dict[str, object]]:
    """A feature pyramid on all four stages (Lin et al. 2017)."""
    wanted = {stage: str(index) for index, stage in enumerate(STAGES)}
    body = BackboneWithFPN(network, wanted, [_width(network, stage) for stage in STAGES], 256)
    return body, {"rpn_anchor_generator": AnchorGenerator(tuple((side,) for side in anchors), (SHAPES,) * len(anchors))}


def _c4(network: nn.Module, classes: int, anchors: tuple[int, ...]) -> tuple[nn.Module, dict[str, object]]:
    """The first three stages find regions; the fourth, with a normalisation behind it, is the head of each region."""
    parts = list(network.named_children())
    stop = [name for name, _ in parts].index("layer4")
    body = nn.Sequential(*(module for _, module in parts[:stop]))
    body.out_channels = _width(network, "layer3")  # type: ignore[assignment]  # torchvision asks for it
    width = _width(network, "layer4")
    last = network.get_submodule("layer4")
    head = nn.Sequential(last, nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    more = {
        "rpn_anchor_generator": AnchorGenerator((anchors,), (SHAPES,)),
        "box_roi_pool": MultiScaleRoIAlign(["0"], output_size=14, sampling_ratio=2),
        "box_head": head,
        "box_predictor": FastRCNNPredictor(width, classes + 1),
    }
    return body, more


NECKS = {"fpn": _fpn, "c4": _c4}


def _width(network: nn.Module, stage: str) -> int:
    """Channels that a stage puts out."""
    convolutions = [module for module in getattr(network, stage)[-1].modules() if isinstance(module, nn.Conv2d)]
    return convolutions[-1].out_channels


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
    """Train; returns the loss of each step. Raises BadData if it becomes infinite. peak: of `rate`."""
    torch.manual_seed(seed)  # regions are sampled at random
    optimiser = torch.optim.SGD(model.parameters(), peak, momentum=0.9, weight_decay=DECAY)
    losses = []
    for step, (images, targets) in enumerate(_batches(model, scenes, names, steps, batch, seed)):
        for group in optimiser.param_groups:
            group["lr"] = now = rate(step, steps, batch, peak=peak)
        loss = sum(model.train()(images, targets).values())
        if not torch.isfinite(loss):
            raise BadData(f"the loss became {loss.item()} in step {step}; the rate of {now:g} is too high")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
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
    return {name: float(values[key]) for name, key in {"AP": "map", "AP50": "map_50", "AP75": "map_75"}.items()}


def read_both(folder: Path, train: str, test: str) -> tuple[list[Scene], list[Scene]]:
    """The scenes of two lists. Raises BadData if an image is on both, and as `read_voc`."""
    scenes, tests = read_voc(folder, train), read_voc(folder, test)
    both = {scene.image for scene in scenes} & {scene.image for scene in tests}
    if both:
        raise BadData(f"{folder}: {len(both)} images are on both lists, {train} and {test}; what was learnt is no test")
    return scenes, tests


def _encoder(text: str) -> Encoder:
    """A model of the zoo, or, as random:NAME, the same network before any training; its weights follow torch's seed."""
    kind, colon, name = text.partition(":")
    if not colon:
        return load_encoder(text)
    if kind != "random":
        raise BadData(
            f"{text}: detection takes names of the zoo, run folders, and random:NAME, a model's untrained twin"
        )
    return new_encoder(name)


def main() -> None:
    """Command line: models, then the folder."""

    def command_line(
        models: Annotated[tuple[str, ...], tyro.conf.Positional],
        data: Path,
        neck: Neck = "c4",
        train: str = "trainval",
        test: str = "test",
        steps: int = 24_000,
        batch_size: int = 16,
        rate: float = RATE,
        sides: tuple[int, ...] = SIDES,
        regions: int = REGIONS,
        seeds: int = 1,
    ) -> None:
        """Fine-tune Faster R-CNN on a folder in VOC layout and print AP, AP50, AP75.

        Args:
            models: Names of the zoo, run folders, or random:NAME, the same network as NAME's before any training.
            data: Folder with JPEGImages, Annotations and ImageSets/Main.
            neck: c4 (MoCo's) or fpn.
            train: List in ImageSets/Main to train on.
            test: List to test on.
            steps: Updates; the falls of the rate move with them.
            batch_size: Images in a step.
            rate: Learning rate for 16 images; it moves with the batch.
            sides: Shorter sides in training, pixels; the last one is used in the test.
            regions: Regions of an image that the second stage learns from in a step; a small image needs few.
            seeds: Trainings of each model. 0.3 points between single runs are noise.
        """
        at_least_one(models=len(models), sides=min(sides, default=0), regions=regions)
        at_least_one(steps=steps, batch_size=batch_size, seeds=seeds)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        scenes, tests = read_both(data, train, test)
        names = class_names([*scenes, *tests])
        for name in models:  # before hours go by with the first one
            detector(_encoder(name), classes=len(names), neck=neck)
        print(f"{neck}, {steps} steps of {batch_size}, {len(scenes)} train and {len(tests)} test images\n")
        print("| model | seed | AP | AP50 | AP75 |\n|---|---|--:|--:|--:|")
        for name in models:
            for seed in range(seeds):
                torch.manual_seed(seed)  # the new layers
                model = detector(_encoder(name), classes=len(names), neck=neck, sides=sides, regions=regions).to(device)
                fit(model, scenes, names, steps=steps, batch=batch_size, peak=rate, seed=seed)
                found = average_precision(model, tests, names)
                print(
                    f"| {name} | {seed} | {' | '.join(f'{100 * value:.2f}' for value in found.values())} |", flush=True
                )

    run(command_line, module="eval.detect", stopped="the lines above are whole")


if __name__ == "__main__":
    main()
