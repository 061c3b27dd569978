"""What two CPU cores can train: the numbers that all methods share when they are compared on CIFAR-100 in hours.

A recipe of a method with these numbers differs from another method's in the algorithm, with the temperatures and batch
statistics of its own recipe, and in the learning rate: same network (the 20-layer ResNet), views, head, optimiser,
batch and epochs. Most epochs are at 16 px, where a step costs a fifth of one at 32 px. The rate comes from one float32
trial each of 5 epochs of 20,000 images at 16 px, by k-NN on some held out of train: 0.12 for the three with dual
temperature (of 0.06, 0.12, 0.24), 0.24 for MoCo v2, MoCo v2+ and SimCLR (of 0.12, 0.24, 0.48). The trials tell
differences of about two points; SimCLR's three lay within 0.3, and the middle one was taken.
"""

from typing import Any

from train.views import ViewPolicy

SMALL: dict[str, Any] = {
    "source": "ours: the method's algorithm with the numbers of train/small.py",
    "expects": "none published",
    "epochs": 12,
    "batch_size": 128,
    "optimizer": "sgd",
    "learning_rate": 0.12,
    "schedule": "cosine",
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "warmup_epochs": 1,
    "sizes": (16, 16, 16, 16, 24, 32),
    "view1": ViewPolicy(),
    "view2": ViewPolicy(),
    "hidden": 128,
    "projection": 128,
}
