"""Turn a host's non-negative integer readings into whole steps within its section's bound.

The bound is kept before rounding, by integers alone, and the rounding cannot break it again. So a
host's step vector has L1 norm at most B/q and every coordinate at most a/q, whatever was measured.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .errors import ParameterError

RandomBytes = Callable[[int], bytes]
"""A source of cryptographic randomness: n -> n bytes."""

_LARGEST: Final = 1 << 61
"""Readings, caps and row sums stay below this, so that no 64-bit sum here wraps."""


def clip_rows(rows: NDArray[np.int64], coordinate_cap: int, l1_bound: int) -> NDArray[np.int64]:
    """Clip each coordinate, then scale down each row that exceeds the section's L1 bound.

    rows            int64[hosts, k], base units; below 0 counts as 0
    coordinate_cap  a, base units
    l1_bound        B, base units; a row above it becomes floor(x * B / sum(row)), never above B
    Returns         int64[hosts, k], base units
    Raises          ParameterError when a, B or k is out of range
    """
    width = rows.shape[1]
    if not 0 < coordinate_cap <= l1_bound < _LARGEST:
        raise ParameterError(
            "section bounds", "0 < coordinate cap <= L1 bound < 2^61", (coordinate_cap, l1_bound)
        )
    if width * coordinate_cap >= _LARGEST:
        raise ParameterError("section length", "length * coordinate cap < 2^61", width)
    clipped = np.clip(rows, 0, coordinate_cap).astype(np.int64, copy=False)
    totals = clipped.sum(axis=1)
    above = totals > l1_bound
    if above.any():
        clipped[above] = _scale(clipped[above], l1_bound, totals[above, None])
    return clipped


def round_steps(rows: NDArray[np.int64], q: int, u: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round cumulative sums to whole steps with one uniform per host: systematic rounding.

    rows        int64[hosts, k], base units, >= 0, already clipped
    q           base units per step
    u           int64[hosts], uniform in [0, q), one per host and section
    Returns     int64[hosts, k], steps; x_j = floor((S_j + u)/q) - floor((S_{j-1} + u)/q), with mean
                rows_j / q exactly, x_j <= ceil(rows_j / q) and sum(x) <= ceil(sum(rows) / q)
    Raises      ParameterError when q < 1 or a u lies outside [0, q)
    """
    if not 1 <= q < _LARGEST:
        raise ParameterError("rounding step q", "1 <= q < 2^61", q)
    if u.shape != (rows.shape[0],) or (u.size and (u.min() < 0 or u.max() >= q)):
        raise ParameterError("rounding uniform u", f"{rows.shape[0]} values in [0, {q})", u.shape)
    steps = np.cumsum(rows, axis=1)
    steps += u[:, None]
    steps //= q
    steps[:, 1:] -= steps[:, :-1].copy()
    return steps


def choose_indicators(
    rows: NDArray[np.int64], m: int, uniform: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Keep at most m of the set indicators of each host, and count what is left out.

    A host with c > m set reports "left out" with probability p = (c - m) / (c - 1), and beside it
    m - 1 of its own, else m of them, drawn evenly. So it leaves each of its own out with
    probability 1 - (m - p) / c, which is p again: hosts that report "left out" are on average as
    many as any one cell lacks at most, and that many where every crowded host has it.

    rows        int64[hosts, k]; anything above 0 is set
    m           most cells one host may report, "left out" among them
    uniform     uint64[hosts, k + 1], independent uniform words: of the set ones the smallest stay
                (two equal words, 2^-64 a pair, favour the lower index); the last decides on "left
                out" (its remainder favours small ones by c / 2^64 at most)
    Returns     int64[hosts, k + 1] of 0 and 1, "left out" last; at most m ones a host
    """
    if m < 1:
        raise ParameterError("indicators m", "m >= 1", m)
    hosts, width = rows.shape
    chosen = np.zeros((hosts, width + 1), dtype=np.int64)
    chosen[:, :width] = rows > 0
    count = chosen.sum(axis=1)
    crowded = np.flatnonzero(count > m)
    if crowded.size:
        c = count[crowded].astype(np.uint64)
        left_out = uniform[crowded, width] % (c - np.uint64(1)) < c - np.uint64(m)
        is_set = chosen[crowded, :width] > 0
        # Unset ones come last whatever their word: the first key of lexsort's pair is the last.
        order = np.lexsort((uniform[crowded, :width], ~is_set), axis=1)
        rank = np.argsort(order, axis=1)
        chosen[crowded, :width] = rank < (m - left_out.astype(np.int64))[:, None]
        chosen[crowded, width] = left_out
    return chosen


def left_out_chance(count: NDArray[np.int64], m: int) -> NDArray[np.float64]:
    """Return the chance that hosts with so many set indicators leave a given one of them out.

    count       int64[...], indicators set
    Returns     float64[...], p of `choose_indicators`; 0 for at most m
    """
    return np.maximum(count - m, 0) / np.maximum(count - 1, 1)


def uniform_below(bound: int, count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Draw `count` independent integers, exactly uniform in [0, bound), by rejection.

    bound       1 .. 2^61
    Returns     int64[count]
    """
    if not 1 <= bound <= _LARGEST:
        raise ParameterError("uniform bound", "1 .. 2^61", bound)
    limit = np.uint64((1 << 64) // bound * bound - 1)
    kept: list[NDArray[np.uint64]] = []
    missing = count
    while missing:
        words = np.frombuffer(random_bytes(8 * missing), dtype="<u8")
        kept.append(words[words <= limit] % np.uint64(bound))
        missing -= kept[-1].size
    if not kept:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate(kept).astype(np.int64)


def uniform_words(hosts: int, width: int, random_bytes: RandomBytes) -> NDArray[np.uint64]:
    """Draw uint64[hosts, width] of independent uniform words, for `choose_indicators`."""
    words = np.frombuffer(random_bytes(8 * hosts * width), dtype="<u8")
    return words.reshape(hosts, width).astype(np.uint64)


def _scale(rows: NDArray[np.int64], bound: int, totals: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(rows * bound / totals) exactly, although the product passes 64 bits.

    A floating quotient is off by a few units at most. The remainder of that guess is below 2^63 in
    size, so it is exact modulo 2^64 and its own quotient is the correction.
    """
    guess: NDArray[np.int64] = (rows.astype(np.longdouble) * bound / totals).astype(np.int64)
    remainder: NDArray[np.int64] = rows * np.int64(bound) - guess * totals
    correction: NDArray[np.int64] = np.floor_divide(remainder, totals)
    return guess + correction
