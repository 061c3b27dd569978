"""What a user receives: rows (n, D) float32."""

import numpy as np

LARGEST, SMALLEST = 1e15, 1e-9  # of a row's largest entry, for its squares and their sum to be ordinary float32


def unit_rows(features: np.ndarray) -> np.ndarray:
    """(n, D) rows scaled to unit L2 norm; a zero row stays zero."""
    features = in_range(features)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def in_one_unit(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays (n, D) divided by one power of two, so that distances within and between them are ordinary float32."""
    peak = max(float(np.abs(array).max(initial=0)) for array in arrays)
    if SMALLEST <= peak <= LARGEST or peak == 0:
        return list(arrays)
    return [np.asarray(np.ldexp(array, -np.frexp(peak)[1])) for array in arrays]


def in_range(features: np.ndarray) -> np.ndarray:
    """(n, D) as it is if its squares and their sums are ordinary float32, else each row times a power of two.

    The largest entry of a scaled row is in [0.5, 1), so the direction of each row stays exact where a plain norm would
    overflow (above 1e19) or vanish (below 1e-12). A zero row stays zero.
    """
    if not features.size:
        return features
    peak = np.abs(features).max(1, keepdims=True)
    if not ((peak > LARGEST) | ((peak < SMALLEST) & (peak > 0))).any():
        return features
    return np.asarray(np.ldexp(features, -np.frexp(peak)[1]))
