"""What a step costs beside the network's own work: ratios, measured side by side, reported and never asserted.

python tests/bench/step.py [--repeats 7] [--batch-size 32] [--out runs/bench]

All contenders of a ratio run in one process, one after another and back (A B C, C B A, ...), so a busy machine slows
them alike; the figure is the median over the rounds of the ratio within a round, with the least and the most. Pixels
are random, of CIFAR's shape: no operation's time depends on their values. `OUT/step.json` holds every single number.
"""

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from train.batches import batches
from train.method import Batch, loss_of
from train.recipe import find_recipe
from train.views import ViewPolicy, Views
from zoo.images.image_set import ImageSet, from_pixels
from zoo.images.opening import open_images
from zoo.model.encoder import new_encoder
from zoo.provenance import command, hardware, today, versions

NAME, STEPS, WORKERS = "simco-r18-cifar100", 2, 2
SETTLE = 0.5  # seconds in which the loaders' workers fill their queues, so that they rest while others are measured
GOALS = {
    "224 px: both crops from JPEG / bare decode, time": "reported",
    "views per second, ours / PIL": ">= 4",
    "step with data and views / bare step, time": "<= 1.05",
    "steps per second, ours / solo-learn-style loop": ">= 1.1",
    "steps per second, ours / the same step fed by PIL": "reported",
    "peak memory with data and views / bare step": "<= 1.1",
}
Seconds = dict[str, list[float]]


class PilViews(Dataset):
    """The same policy as one writes it with PIL and torchvision: two views an image, normalised by the worker."""

    def __init__(self, split: ImageSet, policy: ViewPolicy, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        p, self.pixels = policy, np.asarray(split.pixels())
        jitter = transforms.ColorJitter(p.brightness, p.contrast, p.saturation, p.hue)
        bicubic = transforms.InterpolationMode.BICUBIC
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(32, p.crop_area, p.crop_ratio, interpolation=bicubic),
            transforms.RandomApply([jitter], p=p.jitter),
            transforms.RandomGrayscale(p.grey),
            transforms.RandomHorizontalFlip(p.flip),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.pixels[index])
        return self.transform(image), self.transform(image)


class Trainer:
    """One update of SimCo with r18 at 32 px, as the loop makes it or as solo-learn's of 2022 does, which the
    dual-temperature paper's code is: NCHW, and a linear classifier that learns beside on the features."""

    def __init__(self, *, solo: bool = False) -> None:
        torch.manual_seed(0)
        recipe = find_recipe(NAME)
        layout = torch.contiguous_format if solo else torch.channels_last
        self.method = recipe.method(new_encoder(NAME)).to(memory_format=layout)
        self.classifier = torch.nn.Linear(512, 100) if solo else None
        learning = [*self.method.parameters(), *(self.classifier.parameters() if self.classifier else ())]
        self.optimizer = torch.optim.SGD(learning, 0.01, momentum=0.9)
        self.views = Views(recipe.view1, recipe.view2, size=32, seed=0)
        self.policy = recipe.view1
        self.features: list[Tensor] = []
        self.method.encoder.register_forward_hook(lambda *called: self.features.append(called[2].detach()))

    def update(self, view1: Tensor, view2: Tensor) -> None:
        self.features.clear()
        batch = Batch((view1, view2), torch.arange(len(view1)), 0.5)
        loss = loss_of(self.method, self.method(batch.views), batch).loss
        if self.classifier:
            labels = torch.arange(len(view1)).repeat(2) % 100
            loss = loss + torch.nn.functional.cross_entropy(self.classifier(torch.cat(self.features)), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def pil(self, split: ImageSet, batch_size: int) -> DataLoader:
        """A loader of both views; its workers stay from one pass to the next."""
        encoder = self.method.encoder
        data = PilViews(split, self.policy, encoder.mean.flatten().tolist(), encoder.std.flatten().tolist())
        return DataLoader(
            data, batch_size, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True
        )  # fmt: skip


def random_split(n: int) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    return from_pixels("cifar100", "train", pixels, np.zeros(n, np.int64), (), "bench")


def rounds(contenders: dict[str, Callable[[], object]], repeats: int) -> Seconds:
    """Seconds of every contender in each round; one round more, before, is not counted."""
    found: Seconds = {name: [] for name in contenders}
    for nth in range(repeats + 1):
        for name in list(contenders)[:: 1 if nth % 2 else -1]:
            start = time.perf_counter()
            contenders[name]()
            found[name] += [time.perf_counter() - start] if nth else []
    return found


def ratios(found: Seconds, over: str, under: str) -> list[float]:
    return [a / b for a, b in zip(found[over], found[under], strict=True)]


def endless(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def step(repeats: int, batch_size: int) -> tuple[Seconds, Seconds]:
    """A step with data and views against a ready batch, and against loops that PIL feeds."""
    trainer, solo, split = Trainer(), Trainer(solo=True), random_split(16 * batch_size)
    ready = trainer.views(next(batches(split, trainer.views, first=0, last=1, batch_size=batch_size)).pixels, 0)
    pair = {"pil": trainer, "solo": solo}
    fed = {kind: (who, endless(who.pil(split, batch_size))) for kind, who in pair.items()}

    def bare() -> None:
        for _ in range(STEPS):
            trainer.update(*ready)

    def ours() -> None:
        for nth, (_, pixels) in enumerate(batches(split, trainer.views, first=0, last=STEPS, batch_size=batch_size)):
            trainer.update(*trainer.views(pixels, nth))

    def theirs(kind: str) -> None:
        who, loader = fed[kind]
        for _ in range(STEPS):
            who.update(*next(loader))

    def rest() -> None:
        time.sleep(SETTLE)

    contenders = {"bare": bare, "ours": ours, "rest 1": rest, "pil": lambda: theirs("pil"), "rest 2": rest,
                  "solo": lambda: theirs("solo"), "rest 3": rest}  # fmt: skip
    for _, loader in fed.values():
        next(loader)
    found = rounds(contenders, repeats)
    return found, {
        "step with data and views / bare step, time": ratios(found, "ours", "bare"),
        "steps per second, ours / solo-learn-style loop": ratios(found, "solo", "ours"),
        "steps per second, ours / the same step fed by PIL": ratios(found, "pil", "ours"),
    }


def augmentation(repeats: int, batch_size: int = 256) -> tuple[Seconds, Seconds]:
    """All views of 2,048 images: ours on this process's threads, PIL and torchvision in two workers that have started
    before. Both begin with nothing prepared and end with the last batch."""
    trainer, split = Trainer(), random_split(2048)
    loader = trainer.pil(split, batch_size)

    def ours() -> None:
        last = len(split) // batch_size
        for nth, (_, pixels) in enumerate(batches(split, trainer.views, first=0, last=last, batch_size=batch_size)):
            trainer.views(pixels, nth)

    found = rounds({"ours": ours, "pil": lambda: list(loader)}, repeats)
    return found, {"views per second, ours / PIL": ratios(found, "pil", "ours")}


def large(repeats: int, folder: Path, n: int = 64) -> tuple[Seconds, Seconds]:
    """Both crops at 224 px of JPEG files of 500 x 375 and about 100 KB, as ImageNet's, over decoding the same bytes
    with Pillow in as many threads."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        grain = rng.normal(0, 20, (375, 500, 1))
        pixels = np.clip(np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)) + grain, 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.jpg", quality=90)
    shards = open_images("cifar100", "train", f"folder:{folder}", stream=True)
    views = Views(ViewPolicy(), ViewPolicy(), size=224, seed=0)
    contents = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]

    def decode() -> None:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda content: Image.open(io.BytesIO(content)).convert("RGB"), contents))

    def ours() -> None:
        for _ in batches(shards, views, first=0, last=n // 16, batch_size=16, workers=WORKERS):
            pass

    found = rounds({"bare": decode, "ours": ours}, repeats)
    return found, {"224 px: both crops from JPEG / bare decode, time": ratios(found, "ours", "bare")}


def peak_here(kind: str, batch_size: int) -> None:
    """Print the peak resident memory, bytes, of this process after a few steps."""
    trainer, split = Trainer(), random_split(1024)
    ready = torch.rand(2, batch_size, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for nth, (_, pixels) in enumerate(batches(split, trainer.views, first=0, last=3, batch_size=batch_size)):
        trainer.update(*(ready if kind == "bare" else trainer.views(pixels, nth)))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def memory(repeats: int, batch_size: int) -> tuple[Seconds, Seconds]:
    """Peak memory with data and views over the bare step's, each in a fresh process."""

    def peak(kind: str) -> float:
        words = [sys.executable, __file__, "--peak", kind, "--batch-size", str(batch_size)]
        return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    found = {kind: [peak(kind) for _ in range(repeats)] for kind in ("ours", "bare")}
    return found, {"peak memory with data and views / bare step": ratios(found, "ours", "bare")}


def rows(found: dict[str, list[float]]) -> str:
    return "\n".join(
        f"| {name} | {GOALS[name]} | {statistics.median(x):.3f} | {min(x):.3f} .. {max(x):.3f} | {len(x)} |"
        for name, x in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--peak", choices=("bare", "ours"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.peak:
        return peak_here(flags.peak, flags.batch_size)
    flags.out.mkdir(parents=True, exist_ok=True)
    measures: dict[str, Callable[[], tuple[Seconds, Seconds]]] = {
        "large": lambda: large(flags.repeats, flags.out / "jpeg"),
        "augmentation": lambda: augmentation(flags.repeats),
        "step": lambda: step(flags.repeats, flags.batch_size),
        "memory": lambda: memory(flags.repeats, flags.batch_size),
    }
    facts = {"hardware": hardware(), "threads": torch.get_num_threads(), "date": today(), "command": command(),
             "versions": versions(), "batch_size": flags.batch_size, "goals": GOALS}  # fmt: skip
    print(f"{facts['hardware']}, {facts['threads']} threads, {facts['date']}\n")
    print("| ratio | goal | median | least .. most | n |\n|---|---|---|---|---|", flush=True)
    all_ratios: dict[str, list[float]] = {}
    measured: dict[str, Seconds] = {}
    for name, measure in measures.items():
        measured[name], new = measure()
        all_ratios |= new
        print(rows(new), flush=True)
        (flags.out / "step.json").write_text(json.dumps(facts | {"ratios": all_ratios, "measured": measured}, indent=1))
    print(f"\nevery number: {flags.out / 'step.json'}")
    return None


if __name__ == "__main__":
    main()
