"""From a verified share to a released vector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.check_words import check_sum
from aggregator.protocol.released import Capacity, ReleasedWindow
from privacy.signing import verify
from wire.batch import Share, SignedShare
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected

from .leader_windows import FrozenWindow


def verified_share(frozen: FrozenWindow, share_bytes: bytes, helper_pk: bytes) -> Share:
    """Decode a share of this very batch.

    Raises      ReportRejected: length, field, padding, share_signature, share_batch, n_min
    """
    signed = SignedShare.decode(share_bytes, frozen.batch.n, frozen.known.d)
    if not verify(helper_pk, share_bytes[:-64], signed.signature):
        raise ReportRejected(Reason.SHARE_SIGNATURE, "the pinned Helper's signature", "another")
    if signed.share.batch_hash != frozen.batch.hash():
        raise ReportRejected(Reason.SHARE_BATCH, "a share of this batch", "another")
    n_min = frozen.known.task.n_min
    if signed.share.n_accepted < n_min:
        raise ReportRejected(Reason.N_MIN, f"at least {n_min} hosts", signed.share.n_accepted)
    return signed.share


def unmask(total: NDArray[np.uint32] | NDArray[np.int64], share: Share) -> NDArray[np.int64]:
    """Subtract the Helper's masks from the accepted hosts' sum, words[d].

    Returns     int64[d], steps, lifted from words modulo 2^32 to signed
    Raises      ReportRejected (check_sum) unless both check words equal the accepted hosts
    """
    words = (total - share.vector).astype(np.uint32)
    vector = words.view(np.int32).astype(np.int64)
    check_sum(vector, share.n_accepted)
    return vector


def released_window(
    frozen: FrozenWindow,
    accepted: NDArray[np.bool_],
    vector: NDArray[np.int64],
    cleared: dict[str, int],
    now_s: float,
) -> ReleasedWindow:
    """Put a release together; nothing in it names a host."""
    hosts = frozen.batch.entries["host_id"][accepted].tolist()
    rejections = dict(frozen.window.rejections)
    for reason, count in cleared.items():
        rejections[reason] = rejections.get(reason, 0) + count
    return ReleasedWindow(
        task_id=frozen.known.task_id,
        task=frozen.known.task,
        cohort=frozen.key.cohort,
        window_start_s=frozen.key.window,
        n=len(hosts),
        vector=vector,
        rejections=rejections,
        closed_s=frozen.closed_s,
        released_s=now_s,
        capacity=Capacity.of(frozen.roster.entries[host].gpu_models for host in hosts),
    )


def is_local(frozen: FrozenWindow) -> bool:
    """Whether this window needs no Helper."""
    return frozen.known.task.scheme is Scheme.LOCAL
