"""From noisy steps to the bytes of reports, for a batch of hosts: noise check, mask, tag, box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.masks import mask_into, seal_box, tag_and_nonce
from wire.fields import NO_TAG, HostId, ReportId, Scheme, TaskId
from wire.report import Report, ReportHeader
from wire.task import CHECK_WORDS, Task

from .epochs import HostEpoch

# A sampler that saturates gives the ends of its type: the value under such a draw shows.
_ENDS: Final = np.array([-(1 << 63), -(1 << 31), (1 << 31) - 1, (1 << 63) - 1], dtype=np.int64)
_NEVER_BITS: Final = 64
"""An event of probability below 2^-64 is a fault, not chance."""


def noise_fault(task: Task, noise: NDArray[np.int64], hosts: int, *, seeded: bool) -> str | None:
    """Say why int64[hosts, d] of noise must not be used, or None; a seeded one may be zero."""
    # Float noise has a lattice that betrays the value under it: integers or nothing.
    if noise.dtype != np.int64 or noise.shape != (hosts, task.d):
        return "noise of another shape or type"
    if noise[:, :CHECK_WORDS].any():
        return "noise on the check words"
    if np.isin(noise, _ENDS).any():
        return "noise at the end of its type"
    if not seeded and zero_bits(task) >= _NEVER_BITS and not noise.any(axis=1).all():
        return "a host without any noise"
    return None


def zero_bits(task: Task) -> int:
    """A row of zeros has probability <= 2^-bits: P(0) <= 1 / (2 sigma) for sigma >= 2 steps."""
    return sum(
        section.length * (section.sigma_1024 // 1024).bit_length() for section in task.sections
    )


REPORT_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sealing:
    host_id: HostId
    cohort: int
    epoch: HostEpoch = field(repr=False)


def seal_reports(
    task_id: TaskId,
    scheme: Scheme,
    window_s: int,
    hosts: Sequence[Sealing],
    noisy: NDArray[np.int64],
    random_bytes: Callable[[int], bytes],
) -> list[bytes]:
    """Seal one report per host; each gets a fresh report_id, once.

    window_s    the window's start, seconds since 1970
    noisy       int64[hosts, d], steps with noise, check words in columns 0 and 1
    Returns     the bytes of each report, all of one length
    """
    ids = random_bytes(REPORT_ID_BYTES * len(hosts))
    seal_one = _seal_masked if scheme is Scheme.MASKED else _seal_local
    # Two's complement: the low 32 bits of a signed step count are its value mod 2^32.
    words = noisy.astype("<u4") if scheme is Scheme.MASKED else noisy.astype("<i8", copy=False)
    mask = np.empty(noisy.shape[1], dtype=np.uint32)
    reports = []
    for i, host in enumerate(hosts):
        report_id = ReportId(ids[REPORT_ID_BYTES * i : REPORT_ID_BYTES * (i + 1)])
        header = ReportHeader(host.cohort, noisy.shape[1], window_s, report_id)
        tag_h, box = seal_one(host.epoch, task_id, header, words[i], mask)
        report = Report(host.host_id, host.epoch.header.epoch_id, task_id, header, tag_h, box)
        reports.append(report.encode())
    return reports


def _seal_masked(
    epoch: HostEpoch,
    task_id: TaskId,
    header: ReportHeader,
    words: NDArray[np.uint32],
    mask: NDArray[np.uint32],
) -> tuple[bytes, bytes]:
    keys = epoch.keys(task_id)
    header_bytes = header.encode()
    tag_h, nonce = tag_and_nonce(keys.k_id, header_bytes)
    mask_into(keys.k_mask, nonce, mask)
    words += mask
    return tag_h, seal_box(keys.k_box, header.report_id, header_bytes + tag_h, words.tobytes())


def _seal_local(
    epoch: HostEpoch,
    task_id: TaskId,
    header: ReportHeader,
    words: NDArray[np.int64],
    _mask: NDArray[np.uint32],
) -> tuple[bytes, bytes]:
    aad = header.encode() + NO_TAG
    box = seal_box(epoch.keys(task_id).k_box, header.report_id, aad, words.tobytes())
    return NO_TAG, box
