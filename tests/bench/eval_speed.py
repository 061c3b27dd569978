"""What evaluation costs beside the usual tools: ratios of CPU seconds, reported and never asserted.

    OMP_NUM_THREADS=1 python tests/bench/eval_speed.py 50000 10000 [--repeats 3] [--out runs/bench]

Features (n, 512) of 10 classes, each of five heaps in 64 latent dimensions behind a random ReLU map. All contenders of
a ratio run in one process on one thread, one after another and back (A B, B A, ...); the figure is the median over the
rounds of the ratio within a round, with the least and the most. Memory is that of a process of its own, which does
nothing else; so is that of the extraction from JPEGs that are decoded as they are asked for. `OUT/eval.json` holds
every single number.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from eval.contestants import open_contestant
from eval.features import Features, RawPixels, extract
from eval.knn import TEMPERATURES, knn_predict
from eval.linear import logistic_probe, ridge_probe, standardised
from eval.linear_sgd import linear_sgd
from eval.task import Task
from zoo.files import write_bytes
from zoo.images.image_set import from_pixels
from zoo.images.opening import open_images
from zoo.model.embedding import unit_rows
from zoo.provenance import command, hardware, today, versions

DIM, CLASSES, LATENT = 512, 10, 64
IMAGES = 512  # of 32 px, for the extraction
GOALS = {
    "k-NN, all k and T / faiss, exact, k = 200": "<= 1.5",
    "9 penalties, choice, refit / scikit-learn, one cold fit": "<= 5",
    "13 SGD rates, choice / 9 penalties, choice, refit": "<= 0.5",
    "extract / bare forward": "<= 1.1",
    "ridge, 45 penalties / scikit-learn, one cold fit": "reported",
}
MEMORY = "peak memory above the features, MB"
STREAMED = "peak memory of 224 px extraction above the features, MB"
JPEGS = 512  # of 300 x 260 px, for the streamed extraction
Work = dict[str, Callable[[], object]]


def main() -> None:
    """Print each ratio as soon as it is measured, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=int, help="features to learn from")
    parser.add_argument("test", type=int, help="features to ask for")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--memory", type=Path, help="a folder of features: tell the peak of the probes on them alone")
    parser.add_argument("--streamed", type=Path, help="a folder of images: tell the peak of their extraction alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    if args.memory:
        print(peak_above(args.memory))
        return
    if args.streamed:
        print(streamed_above(args.streamed))
        return
    train, test = synthetic(args.train, seed=1), synthetic(args.test, seed=2)
    report: dict[str, Any] = {
        "date": today(), "hardware": hardware(), "load": os.getloadavg()[0], "versions": versions(),
        "command": command(), "train": args.train, "test": args.test, "dim": DIM, "classes": CLASSES,
        "goals": GOALS | {MEMORY: "<= 1000", STREAMED: "<= 1000"},
        "repeats": args.repeats, "cpu_seconds": {}, "ratios": {},
    }  # fmt: skip
    print(f"{report['hardware']}, load {report['load']:.1f}, {today()}, n = {args.repeats} rounds", flush=True)
    for what, peak in {MEMORY: memory(args.train, args.test, train, test), STREAMED: streamed()}.items():
        report[what] = peak
        print(f"{what:60} {peak:8.0f}   (goal: <= 1000)", flush=True)
    for contenders in (searches(train, test), probes(train, test), extractions()):
        report["cpu_seconds"] |= rounds(contenders, args.repeats)
        report["ratios"] = ratios(report["cpu_seconds"])
        write_bytes(args.out / "eval.json", (json.dumps(report, indent=1) + "\n").encode())
    for name, seconds in report["cpu_seconds"].items():
        print(f"{name:60} {statistics.median(seconds):8.2f} CPU s")
    for name, values in report["ratios"].items():
        print(f"{name:60} {told(values)}   (goal: {GOALS[name]})")


def searches(train: Features, test: Features) -> Work:
    """All k in one pass, and faiss' exact search for the largest k."""

    def exact_search() -> None:
        index = faiss.IndexFlatIP(DIM)
        index.add(unit_rows(train.rows))
        index.search(unit_rows(test.rows), 200)

    def ours() -> None:
        knn_predict(train.rows, train.labels, test.rows, temperatures=TEMPERATURES)

    return {"k-NN, all k and T": ours, "faiss, exact, k = 200": exact_search}


def probes(train: Features, test: Features) -> Work:
    """Each linear probe from the features to the answers; scikit-learn's is one fit at 1e-3."""
    task = task_of(train, test)

    def cold_fit() -> None:
        x, _ = standardised(train.rows, test.rows)
        LogisticRegression(C=1 / (1e-3 * len(x)), max_iter=1000).fit(x, train.labels)

    return {
        "9 penalties, choice, refit": lambda: logistic_probe(train, test.rows),
        "scikit-learn, one cold fit": cold_fit,
        "13 SGD rates, choice": lambda: linear_sgd(task),
        "ridge, 45 penalties": lambda: ridge_probe(train, test.rows),
    }


def extractions() -> Work:
    """IMAGES of 32 px through a ResNet-18 with the CIFAR stem: `extract` and the bare forward pass."""
    encoder = open_contestant("random:r18", "cifar10").encoder
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), np.uint8)
    split = from_pixels("cifar10", "train", pixels, np.zeros(IMAGES, int), (), "")
    starts = range(0, IMAGES, 256)
    batches = [torch.from_numpy(pixels[i : i + 256]).permute(0, 3, 1, 2).contiguous() / 255 for i in starts]

    def forward() -> None:
        with torch.inference_mode():
            for batch in batches:
                encoder(batch)

    forward()
    return {"extract": lambda: extract(encoder, split), "bare forward": forward}


def rounds(contenders: Work, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every contender in each round."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for nth in range(repeats):
        for name in list(contenders)[:: -1 if nth % 2 else 1]:
            start = time.process_time()
            contenders[name]()
            found[name].append(round(time.process_time() - start, 3))
            print(f"  round {nth + 1}: {name}, {found[name][-1]:.2f} CPU s", flush=True)
    return found


def ratios(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Those of GOALS whose two sides are measured, round by round."""
    sides = {name: name.split(" / ") for name in GOALS}
    return {
        name: [round(a / b, 3) for a, b in zip(seconds[one], seconds[other], strict=True)]
        for name, (one, other) in sides.items()
        if one in seconds and other in seconds
    }


def told(values: list[float]) -> str:
    return f"{statistics.median(values):8.2f}  [{min(values):.2f}, {max(values):.2f}]"


def memory(n: int, m: int, train: Features, test: Features) -> float:
    """`peak_above` of a fresh process that finds the features in files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, part in {"train": train, "test": test}.items():
            np.save(f"{folder}/{name}.npy", part.rows)
            np.save(f"{folder}/{name}-labels.npy", part.labels)
        return told_by_itself(n, m, "--memory", folder)


def told_by_itself(*words: object) -> float:
    """What this program prints in a fresh process that is given these words."""
    line = [sys.executable, __file__, *map(str, words)]
    return float(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


def streamed() -> float:
    """`streamed_above` of a fresh process that finds JPEGS images, half of them train, in files."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(JPEGS):
            path = Path(folder, ("train", "test")[i % 2], f"class{i % 4}", f"{i}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(rng.integers(0, 256, (13, 15, 3), np.uint8))
            coarse.resize((300, 260), Image.Resampling.BICUBIC).save(path, quality=90)
        return told_by_itself(1, 1, "--streamed", folder)


def streamed_above(folder: Path) -> float:
    """MB that a ResNet-18 and the extraction of its features at 224 px take at most, beside libraries and features."""
    encoder = open_contestant("random:r18", "in100").encoder
    parts = [open_images("in100", name, data=folder) for name in ("train", "test")]
    before = psutil.Process().memory_info().rss / 1e6
    features = [extract(encoder, part) for part in parts]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return most - before - sum(part.rows.nbytes for part in features) / 1e6


def peak_above(folder: Path) -> float:
    """MB that k-NN and all linear probes take at most, beside the libraries and both arrays of features."""
    train, test = (
        Features(np.load(folder / f"{name}.npy"), np.load(folder / f"{name}-labels.npy")) for name in ("train", "test")
    )
    before = psutil.Process().memory_info().rss / 1e6
    knn_predict(train.rows, train.labels, test.rows, temperatures=TEMPERATURES)
    logistic_probe(train, test.rows)
    ridge_probe(train, test.rows)
    linear_sgd(task_of(train, test))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 - before


def task_of(train: Features, test: Features) -> Task:
    """A task whose images nobody looks at."""
    none = from_pixels("digits", "train", np.zeros((1, 8, 8, 3), np.uint8), np.zeros(1, int), (), "")
    return Task(RawPixels(8), none, none, train, test, CLASSES)


def synthetic(n: int, *, seed: int) -> Features:
    world = np.random.default_rng(0)
    heaps = world.normal(size=(CLASSES, 5, LATENT))
    map_ = world.normal(size=(LATENT, DIM)) / 8 * np.arange(1, DIM + 1) ** -0.3
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    latent = heaps[labels, rng.integers(0, 5, n)] + 1.3 * rng.normal(size=(n, LATENT))
    return Features(np.maximum(latent @ map_, 0).astype(np.float32), labels)


if __name__ == "__main__":
    main()
