"""The one exception for a peer's bad input, and every reason for which a party refuses bytes."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why bytes were refused: also the label of the counter, and a row of SPEC.md section 9."""

    # Decoding, any party, before a key is touched
    LENGTH = "length"
    VERSION = "version"
    FIELD = "field"
    PADDING = "padding"
    ORDER = "order"
    ENVELOPE = "envelope"
    # Tasks and rosters, as the aggregators see them
    TASK_UNKNOWN = "task_unknown"
    TASK_SIGNATURE = "task_signature"
    TASK_EXPIRED = "task_expired"
    TASK_SUPERSEDED = "task_superseded"
    SCHEME = "scheme"
    ROSTER_SIGNATURE = "roster_signature"
    ROSTER_FLEET = "roster_fleet"
    ROSTER_VERSION = "roster_version"
    ROSTER_CHANGE = "roster_change"
    ROSTER_BOUND = "roster_bound"
    # Host, window and vector length
    HOST_UNKNOWN = "host_unknown"
    COHORT = "cohort"
    WINDOW_MISALIGNED = "window_misaligned"
    WINDOW_OUTSIDE_TASK = "window_outside_task"
    DIMENSION = "dimension"
    WINDOW_OPEN = "window_open"
    WINDOW_LATE = "window_late"
    WINDOW_RELEASED = "window_released"
    RETENTION = "retention"
    OVERLOAD = "overload"
    QUOTA = "quota"
    # Epochs
    EPOCH_UNKNOWN = "epoch_unknown"
    EPOCH_PARKED_FULL = "epoch_parked_full"
    EPOCH_SIGNATURE = "epoch_signature"
    EPOCH_INTERVAL = "epoch_interval"
    EPOCH_ROSTER = "epoch_roster"
    EPOCH_KEY_ID = "epoch_key_id"
    EPOCH_RATE = "epoch_rate"
    EPOCH_COUNTER = "epoch_counter"
    EPOCH_TWIN = "epoch_twin"
    EPOCH_SEAL = "epoch_seal"
    # A report of the Leader
    BOX = "box"
    DUPLICATE = "duplicate"
    SECOND_REPORT = "second_report"
    # A batch of the Helper
    BATCH_SIGNATURE = "batch_signature"
    BATCH_SIZE = "batch_size"
    ANSWERED_OTHERWISE = "answered_otherwise"
    CLOSED_BEFORE_RESTORE = "closed_before_restore"
    N_MIN = "n_min"
    OPERATORS = "operators"
    OUTSIDE_LARGEST_OPERATOR = "outside_largest_operator"
    # One host of a batch: its bit is cleared
    HOST_USED = "host_used"
    TAG = "tag"
    CHECK_WORDS = "check_words"
    # Shares and releases
    SHARE_SIGNATURE = "share_signature"
    SHARE_BATCH = "share_batch"
    CHECK_SUM = "check_sum"
    IMPOSSIBLE_SUM = "impossible_sum"
    RELEASE_SIGNATURE = "release_signature"
    RELEASE_CHAIN = "release_chain"
    RELEASE_VECTOR = "release_vector"
    # Key announcements and joins
    KEY_SIGNATURE = "key_signature"
    KEY_PARTY = "key_party"
    KEY_INTERVAL = "key_interval"
    JOIN_SIGNATURE = "join_signature"
    JOIN_TOKEN = "join_token"  # noqa: S105  (a reason, not a secret)
    JOIN_HARDWARE = "join_hardware"
    JOIN_CLEAR = "join_clear"
    JOIN_SEAL = "join_seal"
    JOIN_VOUCHER = "join_voucher"
    # Between a Helper and its witness
    WITNESS_SIGNATURE = "witness_signature"
    # An agent refuses a task
    LEADER_UNPINNED = "leader_unpinned"
    HELPER_UNPINNED = "helper_unpinned"
    LOCAL_NOT_ALLOWED = "local_not_allowed"
    DEMO_TASK = "demo_task"
    CATALOGUE = "catalogue"
    BUDGET = "budget"
    SIGMA_LOW = "sigma_low"
    COORDINATE_BOUND = "coordinate_bound"
    N_MIN_BOUND = "n_min_bound"
    CORRUPTED_BOUND = "corrupted_bound"
    MODULUS = "modulus"
    WEIGHT = "weight"


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
