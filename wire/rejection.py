"""The one exception for a peer's bad input, and every reason for which a party refuses bytes."""

from __future__ import annotations

from enum import StrEnum

Reason = StrEnum(
    "Reason",
    """
    LENGTH VERSION FIELD PADDING ORDER ENVELOPE
    TASK_UNKNOWN TASK_SIGNATURE TASK_EXPIRED TASK_SUPERSEDED SCHEME ROSTER_SIGNATURE
    ROSTER_VERSION ROSTER_CHANGE ROSTER_BOUND
    HOST_UNKNOWN COHORT WINDOW_MISALIGNED WINDOW_OUTSIDE_TASK DIMENSION WINDOW_OPEN WINDOW_LATE
    WINDOW_RELEASED RETENTION OVERLOAD QUOTA
    EPOCH_UNKNOWN EPOCH_PARKED_FULL EPOCH_SIGNATURE EPOCH_INTERVAL EPOCH_ROSTER EPOCH_KEY_ID
    EPOCH_RATE EPOCH_COUNTER EPOCH_TWIN EPOCH_SEAL
    BOX DUPLICATE SECOND_REPORT
    BATCH_SIGNATURE BATCH_SIZE ANSWERED_OTHERWISE CLOSED_BEFORE_RESTORE N_MIN OPERATORS
    OUTSIDE_LARGEST_OPERATOR
    HOST_USED TAG CHECK_WORDS
    SHARE_SIGNATURE SHARE_BATCH CHECK_SUM IMPOSSIBLE_SUM RELEASE_SIGNATURE RELEASE_CHAIN
    RELEASE_VECTOR
    KEY_SIGNATURE KEY_PARTY KEY_INTERVAL JOIN_SIGNATURE JOIN_TOKEN JOIN_HARDWARE JOIN_CLEAR
    JOIN_SEAL JOIN_VOUCHER
    WITNESS_SIGNATURE
    LEADER_UNPINNED HELPER_UNPINNED LOCAL_NOT_ALLOWED DEMO_TASK CATALOGUE BUDGET SIGMA_LOW
    COORDINATE_BOUND N_MIN_BOUND CORRUPTED_BOUND MODULUS WEIGHT
    """,
)
"""Why bytes were refused: the label of the counter, a row of SPEC.md section 9, in lower case.

A line or more each: decoding, before a key is touched; tasks and rosters; host, window and vector
length; epochs; a report of the Leader; a batch of the Helper; one host of a batch, whose bit is
cleared; shares and releases; key announcements and joins; a Helper and its witness; an agent that
refuses a task.
"""


class ReportRejected(Exception):
    """A peer's bytes were refused.

    reason    the enum; the counter's label
    expected  what the rule asks for, in words
    got       what came, in words: a length, a number, an id; never a measurement or a secret
    """

    def __init__(self, reason: Reason, expected: object, got: object) -> None:
        super().__init__(f"{reason.value}: expected {expected}, got {got}")
        self.reason = reason
        self.expected = str(expected)
        self.got = str(got)

    def __reduce__(self) -> tuple[type[ReportRejected], tuple[Reason, str, str]]:
        return type(self), (self.reason, self.expected, self.got)
