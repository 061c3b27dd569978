"""A look at the encoder while it trains, without the test set."""

import numpy as np

from eval.features import extract
from eval.knn import knn_predict
from eval.metrics import accuracy
from zoo.dataset import Split
from zoo.encoder import Encoder

BANK, HELD_OUT, K = 10_000, 2_000, 20


def online_knn(encoder: Encoder, train: Split) -> float | None:
    """k-NN accuracy (k = 20, T = 0.07), [0, 1], of held-out train images against a bank of other train images.

    At most 2,000 and 10,000 of them, always the same ones. None if the images have no labels.
    """
    known = np.flatnonzero(train.labels >= 0)
    if len(known) < 5 * K:
        return None
    some = train.sample(min(len(train), BANK + HELD_OUT))
    features = extract(encoder, some)
    held_out = np.random.default_rng(0).permutation(len(features)) < len(features) // 6
    rows, labels = features.rows, features.labels
    predicted = knn_predict(rows[~held_out], labels[~held_out], rows[held_out], ks=(K,))
    return accuracy(predicted[K, 0.07], labels[held_out])
