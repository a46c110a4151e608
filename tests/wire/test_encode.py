"""The honest encoder never exceeds its bound, is unbiased, and sets the check words."""

import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.windows.encode import encode_rows
from wire.fields import Scheme
from wire.task import SectionKind, SectionSpec, Task


def seeded_bytes(seed: int) -> Callable[[int], bytes]:
    """Deterministic bytes for tests."""
    counter = itertools.count()

    def draw(n: int) -> bytes:
        return hashlib.shake_128(f"{seed}/{next(counter)}".encode()).digest(n)

    return draw


def section(kind: SectionKind, length: int, cap: int, bound: int, q: int, m: int) -> SectionSpec:
    return SectionSpec(1, "s", kind, length, cap * q, bound * q, m, q, 100_000, 1_000_000, 4_096)


def task_of(*sections: SectionSpec) -> Task:
    return Task(
        series="s", version=1, domain="fleet", scheme=Scheme.MASKED, first_window=0,
        last_window=600, window_s=60, lateness_s=30, retention_s=21_600, sections=sections,
        epsilon_millionths=2_000_000, delta_1e12=1_000, mu_1e9=351_549_815, n_max=100, n_min=80,
        t=10, min_operators=3, leader_pk=bytes(32), helper_pk=bytes(32), catalogue_hash=bytes(32),
        expiry=10**9,
    )  # fmt: skip


def places(task: Task) -> list[slice]:
    """Where each section lies; names repeat in these tasks, so not by name."""
    ends = list(itertools.accumulate((s.length for s in task.sections), initial=2))
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


@st.composite
def sections_and_rows(draw: st.DrawFn) -> tuple[Task, NDArray[np.int64]]:
    kinds = draw(st.lists(st.sampled_from(list(SectionKind)), min_size=1, max_size=4))
    sections = []
    for kind in kinds:
        length, q = draw(st.integers(1, 12)), draw(st.integers(1, 10**6))
        cap = draw(st.integers(1, 80))
        if kind is SectionKind.INDICATORS:
            m = draw(st.integers(1, length))
            sections.append(section(kind, length, cap, m * cap, 1, m))
        else:
            sections.append(section(kind, length, cap, draw(st.integers(cap, 300)), q, 0))
    width = sum(s.length for s in sections)
    values = st.one_of(
        st.integers(0, 3), st.integers(0, 10**9), st.sampled_from([-1, 2**62, 2**63 - 1, -(2**63)])
    )
    hosts = draw(st.integers(1, 4))
    cells = draw(st.lists(values, min_size=hosts * width, max_size=hosts * width))
    return task_of(*sections), np.array(cells, dtype=np.int64).reshape(hosts, width)


@settings(max_examples=150, deadline=None)
@given(case=sections_and_rows(), seed=st.integers(0, 2**32))
def test_encode_never_exceeds_a_bound(case: tuple[Task, NDArray[np.int64]], seed: int) -> None:
    task, rows = case
    steps = encode_rows(task, rows, seeded_bytes(seed))
    assert steps.shape == (rows.shape[0], task.d)
    assert (steps[:, :2] == 1).all()
    assert (steps >= 0).all()
    for spec, place in zip(task.sections, places(task), strict=True):
        part = steps[:, place]
        assert (part <= spec.cap_steps).all()
        assert (part.sum(axis=1) <= spec.bound_steps).all()
        if spec.kind is SectionKind.INDICATORS:
            assert set(np.unique(part)) <= {0, spec.cap_steps}


def test_encode_is_unbiased() -> None:
    task = task_of(section(SectionKind.MIX, 5, 40, 64, 1_000, 0))
    row = np.array([[1, 499, 12_345, 0, 20_001]], dtype=np.int64)
    hosts = 40_000
    steps = encode_rows(task, np.repeat(row, hosts, axis=0), seeded_bytes(7))[:, 2:]
    error = steps.mean(axis=0) - row[0] / 1_000
    assert np.abs(error).max() < 4 * 0.5 / hosts**0.5


def test_encode_large_rows_keep_their_proportions() -> None:
    task = task_of(section(SectionKind.MIX, 3, 64, 64, 1_000, 0))
    rows = np.array([[96_000, 24_000, 8_000]], dtype=np.int64)
    steps = encode_rows(task, np.repeat(rows, 2_000, axis=0), seeded_bytes(3))[:, 2:]
    # The coordinate cap (64,000) comes first, then the row is scaled down to the bound.
    expected = np.array([64, 24, 8]) * 64 / 96
    assert np.abs(steps.mean(axis=0) - expected).max() < 0.05


def test_encode_wrong_length_is_our_bug() -> None:
    task = task_of(section(SectionKind.MIX, 3, 64, 64, 1_000, 0))
    with pytest.raises(ValueError, match=r"expected rows \[hosts, 3\], got \[1, 4\]"):
        encode_rows(task, np.zeros((1, 4), dtype=np.int64), seeded_bytes(0))
