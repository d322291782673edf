"""Gram matrices of FedBN's analysis."""

from __future__ import annotations

import numpy as np


def gram(x: np.ndarray) -> np.ndarray:
    """Return E_v[relu(v.x_p) relu(v.x_q)], v ~ N(0, I), of samples x (n, features): (n, n).

    This is |x_p| |x_q| (sin t + (pi - t) cos t) / (2 pi), where t is the angle between the two.
    """
    length = np.linalg.norm(x, axis=1)
    outer = np.outer(length, length)
    # Rounding may give a cosine beyond 1, whose angle is NaN; that of a sample with itself is exactly 1.
    cos = np.clip(x @ x.T / outer, -1.0, 1.0)
    np.fill_diagonal(cos, 1.0)
    t = np.arccos(cos)
    return outer * (np.sin(t) + (np.pi - t) * cos) / (2 * np.pi)


def within_clients(matrix: np.ndarray, client: np.ndarray) -> np.ndarray:
    """Return a matrix (n, n) with zeros where two samples belong to different clients (n,)."""
    return np.where(client[:, None] == client, matrix, 0.0)
