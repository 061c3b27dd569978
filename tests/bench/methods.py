"""What each method makes of the same 200 steps: loss, k-NN, speed.

    python tests/bench/methods.py --data path/to/cifar100 [--steps 200] [--out runs/bench/methods]

ResNet-20 at 32 px, batches of 64 CIFAR-100 images, each method with the numbers of its first CIFAR-100 recipe: its own
loss, heads, optimiser, peak rate and views. The losses have different units, so each stands between its start and its
floor. k-NN: held-out train images against other train images (k = 20, T = 0.07), beside the untrained network's.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from train.batches import batches
from train.method import Batch, loss_of
from train.monitor import held_out, labelled_features, online_knn
from train.optim import make_optimizer
from train.recipe import Recipe, find_recipe
from train.views import Views
from zoo.files import write_bytes
from zoo.images.image_set import ImageSet
from zoo.images.opening import open_images
from zoo.model.encoder import new_encoder
from zoo.provenance import command, hardware, today, versions

RECIPES = (
    "simclr-r18-cifar100", "mocov1-r18-cifar100", "mocov2-r18-cifar100", "mocov2plus-r18-cifar100",
    "mocov3-r18-cifar100", "simmoco-r18-cifar100", "simmocoplus-r18-cifar100", "simco-r18-cifar100",
    "membank-r18-cifar100",
)  # fmt: skip
BACKBONE, BATCH, LAST = "simco-r20-cifar100", 64, 20  # LAST: steps that the loss at the end is the mean of
HEAD = """| method | loss: start, at the end, floor | k-NN, % | images/s: median (least .. most of tenths) |
|---|---|---|---|"""


def short(name: str) -> Recipe:
    """The recipe with BATCH images a step and a queue of at most 4096 keys."""
    recipe: Any = find_recipe(name)
    queue = {"queue_size": min(recipe.queue_size, 4096)} if hasattr(recipe, "queue_size") else {}
    return replace(recipe, batch_size=BATCH, **queue)


def train(name: str, split: ImageSet, steps: int) -> dict[str, Any]:
    """`steps` updates from the same weights and images for every method."""
    recipe = short(name)
    torch.manual_seed(0)
    method = recipe.method(new_encoder(BACKBONE))
    method.prepare(len(split))
    method.to(memory_format=torch.channels_last)
    rate = recipe.peak_learning_rate
    optimizer = make_optimizer(
        recipe.optimizer, method, lr=rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    views = Views(recipe.view1, recipe.view2, size=32, seed=0)
    untrained = labelled_features(method.encoder, split)
    method.train()
    losses, seconds = [], []
    for step, (indices, pixels) in enumerate(batches(split, views, first=0, last=steps, batch_size=BATCH)):
        began = time.perf_counter()
        for group in optimizer.param_groups:  # for all methods alike: a tenth of warm-up, under a cosine to 0
            group["lr"] = rate * min(1, 10 * (step + 1) / steps) * 0.5 * (1 + np.cos(np.pi * step / steps))
        batch = Batch(views(pixels, step), torch.from_numpy(indices), (step + 1) / steps)
        outcome = loss_of(method, method(batch.views), batch)
        outcome.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(outcome, (step + 1) / steps)
        losses.append(outcome.loss.item())
        seconds.append(time.perf_counter() - began)
    start, floor = method.loss_range(BATCH)
    trained = labelled_features(method.encoder, split)
    assert untrained is not None
    assert trained is not None
    return {
        "recipe": recipe.name, "steps": steps, "start": start, "floor": floor,
        "loss": statistics.mean(losses[-LAST:]), "knn": online_knn(trained), "knn_untrained": online_knn(untrained),
        "held_out": int(held_out(len(trained)).sum()),
        "images_per_second": [BATCH / np.mean(part) for part in np.array_split(seconds, min(10, steps))],
    }  # fmt: skip


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    speed = found["images_per_second"]
    loss = f"{found['start']:.3f}, {found['loss']:.3f}, {found['floor']:.3f}"
    knn = f"{100 * found['knn']:.2f} (untrained {100 * found['knn_untrained']:.2f})"
    return f"| {found['recipe']} | {loss} | {knn} | {np.median(speed):.0f} ({min(speed):.0f} .. {max(speed):.0f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--images", type=int, default=6_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs/bench/methods"))
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    split = open_images("cifar100", "train", data=flags.data).sample(flags.images)
    facts = {"date": today(), "hardware": hardware(), "threads": flags.threads, "command": command(), "batch": BATCH,
             "images": len(split), "versions": versions()}  # fmt: skip
    flags.out.mkdir(parents=True, exist_ok=True)
    print(
        f"{facts['hardware']}, {facts['threads']} threads, {facts['date']}, {flags.steps} steps\n\n{HEAD}", flush=True
    )
    found = []
    for name in RECIPES:
        found.append(train(name, split, flags.steps))
        print(row(found[-1]), flush=True)
        write_bytes(flags.out / "methods.json", json.dumps(facts | {"methods": found}, indent=1).encode())


if __name__ == "__main__":
    main()
