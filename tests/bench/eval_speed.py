"""What evaluation costs, in CPU seconds side by side in one process. Nothing is asserted: read the ratios.

    OMP_NUM_THREADS=1 python tests/bench/eval_speed.py 50000 10000

Features (n, 512) of 10 classes, each of five heaps in 64 latent dimensions behind a random ReLU map.
"""

import resource
import sys
import time
from collections.abc import Callable

import faiss
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from eval.contestants import open_contestant
from eval.features import Features, extract
from eval.knn import TEMPERATURES, knn_predict
from eval.linear import logistic_probe, ridge_probe, standardised
from eval.linear_sgd import linear_sgd
from eval.task import Task
from zoo.embedding import unit_rows
from zoo.split import Split

DIM, CLASSES, LATENT = 512, 10, 64


def main(n: int, m: int) -> None:
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    train, test = synthetic(n, seed=1), synthetic(m, seed=2)
    before = peak_mb()
    index = faiss.IndexFlatIP(DIM)
    one_search = cpu("faiss, exact search, k = 200", lambda: exact_search(index, train, test))
    every = {"temperatures": TEMPERATURES}
    ours = cpu("k-NN, all k and T in one pass", lambda: knn_predict(train.rows, train.labels, test.rows, **every))
    print(f"{'k-NN / faiss':44} {ours / one_search:8.2f}   (goal: 1.5)")
    x, _ = standardised(train.rows, test.rows)
    cold = LogisticRegression(C=1 / (1e-3 * n), max_iter=1000)
    one_fit = cpu("scikit-learn, one cold fit at 1e-3", lambda: cold.fit(x, train.labels))
    path = cpu("9 penalties, choice and refit", lambda: logistic_probe(train, test.rows))
    print(f"{'path / one fit':44} {path / one_fit:8.2f}   (goal: 5)")
    dummy = Split("digits", "train", np.zeros((1, 1, 1, 3), np.uint8), np.zeros(1, int), (), "")
    task = Task(open_contestant("pixels:", "digits").encoder, dummy, dummy, train, test, CLASSES)
    sweep = cpu("13 SGD rates", lambda: linear_sgd(task))
    print(f"{'sweep / path':44} {sweep / path:8.2f}   (goal: 0.5)")
    cpu("ridge, 45 penalties", lambda: ridge_probe(train, test.rows))
    print(f"{'peak memory above both feature arrays, MB':44} {peak_mb() - before:8.0f}   (goal: 1,000)")
    extraction()


def extraction() -> None:
    """512 images of 32 px through a ResNet-18 with the CIFAR stem: `extract` against the bare forward pass."""
    encoder = open_contestant("random:r18", "cifar10").encoder
    pixels = np.random.default_rng(0).integers(0, 256, (512, 32, 32, 3), np.uint8)
    split = Split("cifar10", "train", pixels, np.zeros(512, int), (), "")
    batches = [torch.from_numpy(pixels[i : i + 256]).permute(0, 3, 1, 2).float() / 255 for i in (0, 256)]

    def forward() -> None:
        with torch.inference_mode():
            for batch in batches:
                encoder(batch.contiguous())

    forward()
    bare = cpu("bare forward pass, 512 images", forward)
    whole = cpu("extract, 512 images", lambda: extract(encoder, split))
    print(f"{'extract / forward':44} {whole / bare:8.2f}   (goal: 1.1)")


def synthetic(n: int, *, seed: int) -> Features:
    world = np.random.default_rng(0)
    heaps = world.normal(size=(CLASSES, 5, LATENT))
    map_ = world.normal(size=(LATENT, DIM)) / 8 * np.arange(1, DIM + 1) ** -0.3
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    latent = heaps[labels, rng.integers(0, 5, n)] + 1.3 * rng.normal(size=(n, LATENT))
    return Features(np.maximum(latent @ map_, 0).astype(np.float32), labels)


def exact_search(index: faiss.IndexFlatIP, train: Features, test: Features) -> None:
    index.add(unit_rows(train.rows))
    index.search(unit_rows(test.rows), 200)


def cpu(what: str, work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    seconds = time.process_time() - start
    print(f"{what:44} {seconds:8.2f} CPU s", flush=True)
    return seconds


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (50_000, 10_000)))
