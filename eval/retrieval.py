"""Without any training: do images of one class lie beside each other (retrieval), and in one heap (clustering)?"""

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from eval.features import Features
from eval.intervals import spread, wilson
from eval.linear import refuse_one_class
from eval.task import Outcome, Task
from zoo.errors import BadData
from zoo.model.embedding import unit_rows

DEPTHS = (1, 5, 10)
CHUNK = 512  # queries at a time
SEEDS = (0, 1, 2)  # of k-means


def retrieval(task: Task) -> list[Outcome]:
    """Recall@1, 5, 10 and mAP@R of every test image among the other test images; NMI of k-means on them."""
    refuse_one_class(task.queries.labels, split="test")
    found = search(task.queries, device=task.device)
    shares = found.pop("recall")
    extras = {**{f"recall@{depth}": share for depth, share in zip(DEPTHS, shares, strict=True)}, **found}
    asked = len(task.queries) - extras["alone"]
    recall = f"recall@1, cosine, among the other {task.test.split} images"
    precision = f"mAP@R, cosine, among the other {task.test.split} images"
    means, deviation = spread([_nmi(task.queries, seed) for seed in SEEDS])
    clusters = f"k-means on unit rows, as many clusters as classes, 3 seeds, {task.test.split} images"
    nmi_extras = {"std": deviation, "seeds": list(SEEDS)}
    return [
        Outcome("recall@1", recall, "recall@1", shares[0], wilson(shares[0], asked), extras=extras),
        Outcome("map@r", precision, "mAP@R", extras["map_at_r"], extras={"alone": extras["alone"]}),
        Outcome("nmi", clusters, "NMI, arithmetic mean", means, extras=nmi_extras),
    ]


@torch.inference_mode()
def search(features: Features, *, device: str | torch.device = "cpu") -> dict[str, Any]:
    """recall (one share for each of DEPTHS), map_at_r, r_precision in [0, 1]; alone: images without a partner.

    mAP@R: Musgrave et al. 2020, section 3.2: the mean over the R first neighbours of precision@i where neighbour i is
    right, R the number of other images of the query's class. Raises BadData if every image is alone in its class.
    """
    rows = torch.from_numpy(unit_rows(features.rows)).to(device)
    labels = torch.from_numpy(features.labels).to(device)
    others = torch.bincount(labels)[labels] - 1  # R of each query
    if not (others > 0).any():
        raise BadData(f"each of the {len(labels)} images is alone in its class; retrieval needs two of a class")
    deepest = min(max(int(others.max()), DEPTHS[-1]), len(labels) - 1)
    ranks = torch.arange(1, deepest + 1, device=rows.device)
    sums = torch.zeros(len(DEPTHS) + 2, dtype=torch.float64)
    for start in range(0, len(rows), CHUNK):
        similarity = rows[start : start + CHUNK] @ rows.T
        similarity[torch.arange(len(similarity)), torch.arange(start, start + len(similarity))] = -2.0  # not itself
        right = labels[similarity.topk(deepest).indices] == labels[start : start + CHUNK, None]  # (b, deepest)
        asked = others[start : start + CHUNK]
        within = right & (ranks <= asked[:, None])
        r = asked.clamp(min=1)
        average = (within * (right.cumsum(1) / ranks)).sum(1) / r
        scores = [right[:, :depth].any(1) for depth in DEPTHS] + [average, within.sum(1) / r]
        known = asked > 0
        sums += torch.stack([score[known].double().sum().cpu() for score in scores])
    means = (sums / int((others > 0).sum())).tolist()
    alone = int((others == 0).sum())
    return {"recall": means[: len(DEPTHS)], "map_at_r": means[-2], "r_precision": means[-1], "alone": alone}


def _nmi(features: Features, seed: int) -> float:
    clusters = len(np.unique(features.labels))
    with threadpool_limits(1, "openmp"):  # the sum over threads has no fixed order
        found = KMeans(clusters, n_init=1, random_state=seed).fit_predict(unit_rows(features.rows))
    return float(normalized_mutual_info_score(features.labels, found))
