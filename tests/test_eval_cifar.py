"""The probes that see images, to the letter, on photographs: an untrained ResNet-20 on four classes of CIFAR-100.

They beat chance by far, and on train labels that are shuffled they do not.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.contestants import fingerprint
from eval.features import extract
from eval.finetune import finetune
from eval.intervals import wilson
from eval.linear_sgd import linear_augmented, linear_moco
from eval.task import Task
from zoo.images.dataset import DATASETS
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.encoder import Encoder, build_backbone

CLASSES = (53, 60, 71, 82)  # orange, plain, sea, sunflower
SIDE = 16  # pixels: a quarter of the work


def of_four(split: ImageSet, n: int) -> ImageSet:
    """The first n images of each of CLASSES, which are 0 to 3 then."""
    rows = np.sort(np.concatenate([np.flatnonzero(split.labels == c)[:n] for c in CLASSES]))
    labels = np.searchsorted(CLASSES, split.labels[rows])
    return replace(
        split.part(rows, digest=split.digest), labels=labels, classes=tuple(split.classes[c] for c in CLASSES)
    )


@pytest.fixture
def task(cifar100) -> Task:
    """40 train and 50 test images of each class."""
    row = DATASETS["cifar100"]
    torch.manual_seed(0)
    network = build_backbone("r20", image_size=SIDE)
    encoder = Encoder(network, mean=row.mean, std=row.std, image_size=SIDE).eval()
    train, test = (of_four(open_images("cifar100", s, data=cifar100), n) for s, n in (("train", 40), ("test", 50)))
    return Task(encoder, train, test, extract(encoder, train), extract(encoder, test), 4, finetune_steps=20)


def blind(task: Task) -> Task:
    """The same with train labels that are shuffled."""
    labels = np.random.default_rng(0).permutation(task.train.labels)
    return replace(task, train=replace(task.train, labels=labels), bank=replace(task.bank, labels=labels))


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("protocol", [linear_augmented, linear_moco, finetune])
def test_a_probe_of_photographs_beats_chance_by_far_and_shuffled_labels_teach_it_nothing(task, protocol):
    before = fingerprint(task.encoder)
    (honest,), (shuffled,) = protocol(task), protocol(blind(task))
    low, high = wilson(1 / 4, 200, z=3)
    assert honest.value > 0.5 > high
    assert low <= shuffled.value <= high
    assert honest.interval[0] <= honest.value <= honest.interval[1]
    assert fingerprint(task.encoder) == before
