"""Raw rows of a window to integer steps: clip, round without bias, keep every section's bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privacy.quantise import choose_indicators, clip_rows, round_steps, uniform_below, uniform_words
from wire.task import CHECK_WORDS, SectionKind, SectionSpec, Task

RandomBytes = Callable[[int], bytes]


def encode_rows(
    task: Task, rows: NDArray[np.int64], random_bytes: RandomBytes
) -> NDArray[np.int64]:
    """Turn each host's raw row into the steps that it reports before noise.

    rows          int64[hosts, d - 2], base units of each section, in the task's order
    random_bytes  n -> n bytes from the operating system; draws are unbiased (rejection)
    Returns       int64[hosts, d], steps; words 0 and 1 are the check words, always 1. For every
                  host and section: the L1 norm is at most bound_steps and a coordinate at most
                  cap_steps, whatever was measured; a set indicator is worth cap_steps, and the
                  last one of a section says that some were left out, whatever the row has there
    Raises        ValueError when the rows do not have the task's length
    """
    hosts = rows.shape[0]
    if rows.ndim != 2 or rows.shape[1] != task.d - CHECK_WORDS:
        raise ValueError(f"expected rows [hosts, {task.d - CHECK_WORDS}], got {list(rows.shape)}")
    steps = np.empty((hosts, task.d), dtype=np.int64)
    steps[:, :CHECK_WORDS] = 1
    at = CHECK_WORDS
    for section in task.sections:
        end = at + section.length
        raw = rows[:, at - CHECK_WORDS : end - CHECK_WORDS]
        steps[:, at:end] = _section_steps(section, raw, random_bytes)
        at = end
    return steps


def _section_steps(
    section: SectionSpec, raw: NDArray[np.int64], random_bytes: RandomBytes
) -> NDArray[np.int64]:
    """Return int64[hosts, length] steps of one section."""
    hosts = raw.shape[0]
    if section.kind is SectionKind.INDICATORS:
        words = uniform_words(hosts, section.length, random_bytes)
        return choose_indicators(raw[:, :-1], section.m, words) * section.cap_steps
    clipped = clip_rows(raw, section.coordinate_cap, section.l1_bound)
    return round_steps(clipped, section.q, uniform_below(section.q, hosts, random_bytes))
