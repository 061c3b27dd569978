"""What a step costs beside the network's own work: ratios, measured side by side, reported and never asserted.

python tests/bench/step.py [--repeats 5] [--batch-size 32] [--out runs/bench]

Every repeat runs all contenders one after another, so a busy machine slows them alike; the figure is the median of the
ratios of a repeat, with the least and the most.
"""

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from train.batches import batches
from train.methods.dual_temperature import SimCo
from train.recipe import find_recipe
from train.views import ViewPolicy, Views
from zoo.encoder import new_encoder
from zoo.provenance import hardware, today, versions
from zoo.shards import open_shards
from zoo.split import Split

NAME, STEPS, IMAGES = "simco-r18-cifar100", 2, 1024
GOALS = {"step with data / bare step": "<= 1.05", "views per second, ours / PIL": ">= 4",
         "steps per second, ours / PIL loop": ">= 1.1", "peak memory / bare step": "<= 1.1",
         "224 px from JPEG, time / bare decode": "reported"}  # fmt: skip


class PilViews(Dataset):
    """The same policy as one writes it with PIL and torchvision: two views an image."""

    def __init__(self, pixels: np.ndarray, policy: ViewPolicy) -> None:
        p = policy
        self.pixels = pixels
        jitter = transforms.ColorJitter(p.brightness, p.contrast, p.saturation, p.hue)
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(
                32, p.crop_area, p.crop_ratio, interpolation=transforms.InterpolationMode.BICUBIC
            ),
            transforms.RandomApply([jitter], p=p.jitter),
            transforms.RandomGrayscale(p.grey),
            transforms.RandomHorizontalFlip(p.flip),
            transforms.ToTensor(),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.pixels[index])
        return self.transform(image), self.transform(image)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def images(n: int = IMAGES) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    return Split("cifar100", "train", pixels, np.zeros(n, np.int64), (), "bench")


class Trainer:
    """One update of r18 at 32 px, as the loop makes it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        recipe = find_recipe(NAME)
        self.method: SimCo = recipe.method(new_encoder(NAME)).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.method.parameters(), 0.01, momentum=0.9)
        self.views = Views(recipe.view1, recipe.view2, size=32, seed=0)
        self.policy = recipe.view1

    def update(self, view1: Tensor, view2: Tensor) -> None:
        self.method(view1, view2).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def pil_loader(trainer: Trainer, split: Split, batch_size: int, workers: int) -> DataLoader:
    data = PilViews(np.asarray(split.pixels), trainer.policy)
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, num_workers=workers)


def steps(repeats: int, batch_size: int) -> dict[str, list[float]]:
    """Ratios of the step: with data against a ready batch, and against the loop with PIL and two workers."""
    trainer, split = Trainer(), images(batch_size * (STEPS + 2))
    ready = trainer.views(next(batches(split, trainer.views, first=0, last=1, batch_size=batch_size)), 0)

    def bare() -> None:
        for _ in range(STEPS):
            trainer.update(*ready)

    def ours() -> None:
        for step, pixels in enumerate(batches(split, trainer.views, first=0, last=STEPS, batch_size=batch_size)):
            trainer.update(*trainer.views(pixels, step))

    bare()
    found: dict[str, list[float]] = {"step with data / bare step": [], "steps per second, ours / PIL loop": []}
    for _ in range(repeats):
        loader = iter(pil_loader(trainer, split, batch_size, 2))
        next(loader)  # the workers' start is not the step's cost

        def theirs(loader: object = loader) -> None:
            for _ in range(STEPS):
                trainer.update(*next(loader))  # type: ignore[call-overload]

        plain, with_data, with_pil = seconds(bare), seconds(ours), seconds(theirs)
        found["step with data / bare step"].append(with_data / plain)
        found["steps per second, ours / PIL loop"].append(with_pil / with_data)
    return found


def augmentation(repeats: int, batch_size: int = 256) -> dict[str, list[float]]:
    """Views per second of ours on this process's threads over PIL and torchvision in two workers."""
    trainer, split = Trainer(), images()
    ratios = []
    n = len(split) // batch_size
    for _ in range(repeats):

        def ours() -> None:
            for step, pixels in enumerate(batches(split, trainer.views, first=0, last=n, batch_size=batch_size)):
                trainer.views(pixels, step)

        loader = iter(pil_loader(trainer, split, batch_size, 2))
        next(loader)
        theirs = seconds(lambda loader=loader: list(loader)) / (n - 1)
        ratios.append(theirs / (seconds(ours) / n))
    return {"views per second, ours / PIL": ratios}


def large(repeats: int, folder: Path, n: int = 64) -> dict[str, list[float]]:
    """Both crops at 224 px of JPEG files, two threads, over decoding the same files with one line of Pillow."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{index}.jpg", quality=90)
    shards = open_shards("cifar100", "train", f"folder:{folder}")
    views = Views(ViewPolicy(), ViewPolicy(), size=224, seed=0)
    contents = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]

    def decode() -> None:
        for content in contents:
            Image.open(io.BytesIO(content)).convert("RGB")

    def ours() -> None:
        for _ in batches(shards, views, first=0, last=n // 16, batch_size=16, workers=2):
            pass

    pairs = [(seconds(decode), seconds(ours)) for _ in range(repeats)]
    return {"224 px from JPEG, time / bare decode": [mine / bare for bare, mine in pairs]}


def peak(kind: str, batch_size: int) -> float:
    """Peak resident memory, bytes, of a fresh process that makes a few steps."""
    words = [sys.executable, __file__, "--peak", kind, "--batch-size", str(batch_size)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def peak_here(kind: str, batch_size: int) -> None:
    trainer, split = Trainer(), images()
    ready = trainer.views(next(batches(split, trainer.views, first=0, last=1, batch_size=batch_size)), 0)
    for step, pixels in enumerate(batches(split, trainer.views, first=0, last=2, batch_size=batch_size)):
        trainer.update(*(ready if kind == "bare" else trainer.views(pixels, step)))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def memory(repeats: int, batch_size: int) -> dict[str, list[float]]:
    """Peak memory with data and views over the bare step's."""
    both = [[peak(kind, batch_size) for kind in ("data", "bare")] for _ in range(repeats)]
    return {"peak memory / bare step": [data / bare for data, bare in both]}


HEAD = "| ratio | goal | median | least .. most | n |\n|---|---|---|---|---|"


def rows(found: dict[str, list[float]]) -> str:
    """The table's rows."""
    return "\n".join(
        f"| {name} | {GOALS[name]} | {statistics.median(x):.2f} | {min(x):.2f} .. {max(x):.2f} | {len(x)} |"
        for name, x in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--peak", choices=("bare", "data"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.peak:
        peak_here(flags.peak, flags.batch_size)
        return
    flags.out.mkdir(parents=True, exist_ok=True)
    measures = (
        lambda: large(flags.repeats, flags.out / "jpeg"),
        lambda: steps(flags.repeats, flags.batch_size),
        lambda: augmentation(flags.repeats),
        lambda: memory(flags.repeats, flags.batch_size),
    )
    facts = {"date": today(), "hardware": hardware(), "threads": torch.get_num_threads(), "versions": versions(),
             "batch_size": flags.batch_size, "goals": GOALS}  # fmt: skip
    print(f"{facts['hardware']}, {facts['threads']} threads, {facts['date']}\n\n{HEAD}", flush=True)
    found: dict[str, list[float]] = {}
    for measure in measures:
        new = measure()
        found |= new
        print(rows(new), flush=True)
        (flags.out / "step.json").write_text(json.dumps(facts | {"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
