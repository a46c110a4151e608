"""Random streams of the simulator: one per purpose, repeatable when a seed is given."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Give the generator of one purpose of a seed."""
    return np.random.default_rng(int.from_bytes(_digest(seed, *purpose), "big"))


def philox(seed: int, *purpose: str | int) -> np.random.Generator:
    """Give the counter-based generator of one purpose, in any process and order the same."""
    key = int.from_bytes(_digest(seed, *purpose)[:16], "big")
    return np.random.Generator(np.random.Philox(key=key))


def _digest(*parts: str | int) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
