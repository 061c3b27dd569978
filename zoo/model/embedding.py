"""What a user receives: rows (n, D) float32."""

import numpy as np


def unit_rows(features: np.ndarray) -> np.ndarray:
    """(n, D) rows scaled to unit L2 norm; a zero row stays zero."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
