"""From noisy steps to the bytes of reports: mask, tag, box, for a batch of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.masks import mask_into, seal_box, tag_and_nonce
from wire.bounds import Scheme
from wire.ids import NO_TAG, HostId, ReportId, TaskId
from wire.report import Report, ReportHeader

from .epochs import HostEpoch

REPORT_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sealing:
    """One host's part in sealing a window."""

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
