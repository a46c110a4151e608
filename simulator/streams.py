"""Random streams of the simulator: one per purpose, repeatable when a seed is given."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int | None, *purpose: str | int) -> np.random.Generator:
    """Give the generator of one purpose of a seed; seed None draws fresh entropy."""
    if seed is None:
        return np.random.default_rng()
    name = "/".join(str(part) for part in (seed, *purpose))
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def philox(seed: int, *purpose: str | int) -> np.random.Generator:
    """Give the counter-based generator of one purpose, in any process and order the same."""
    name = "/".join(str(part) for part in (seed, *purpose))
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
