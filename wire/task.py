"""A task: what a cohort's hosts report, how often, and under which privacy parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from . import fields
from .fields import MAX_D, MAX_HOSTS, MAX_TASK_BODY, MIN_D, Scheme, as_date, need_range, need_time
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected

CHECK_WORDS: Final = 2
MAX_SECTIONS: Final = 256
MAX_UNITS: Final = (1 << 53) - 1
MAX_WINDOW_S: Final = 1 << 26
DEMO_DOMAIN: Final = "demo"


class SectionKind(StrEnum):
    MIX = "mix"
    HISTOGRAM = "histogram"
    MEAN = "mean"
    INDICATORS = "indicators"


_KINDS = dict(enumerate(SectionKind, start=1))
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_SCHEMES = {1: Scheme.MASKED, 2: Scheme.LOCAL}
_SCHEME_NUMBERS = {scheme: number for number, scheme in _SCHEMES.items()}


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """One section of a task.

    coordinate_cap, l1_bound  base units, both multiples of q
    m                         at most m indicators of a host are set; 0 for other kinds
    q                         base units per step
    weight_millionths         of the host's budget
    rate_millionths           measurement sampling: how often a host measures
    sigma_1024                steps / 1024, standard deviation of each host's noise
    """

    section_id: int
    name: str
    kind: SectionKind
    length: int
    coordinate_cap: int
    l1_bound: int
    m: int
    q: int
    weight_millionths: int
    rate_millionths: int
    sigma_1024: int

    @property
    def cap_steps(self) -> int:
        return self.coordinate_cap // self.q

    @property
    def bound_steps(self) -> int:
        return self.l1_bound // self.q

    @property
    def unmeasured(self) -> int:
        """What a host that did not measure has in the cell that says so, before it is encoded."""
        return 1 if self.kind is SectionKind.INDICATORS else self.coordinate_cap


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """What stands in a task as a person decided it.

    domain         "fleet", "operator" or "demo": agents that run for real refuse "demo"
    first_window   start in seconds of the series' first window, over all its versions
    last_window    start in seconds of its last window, inclusive
    n_max, n_min   hosts of the roster; fewest accepted hosts of a release
    min_operators  0: no operator rule
    helper_pk      empty in scheme `local`
    expiry         seconds; from then on nobody reports, admits or answers a window of it
    """

    series: str
    version: int
    domain: str
    scheme: Scheme
    first_window: int
    last_window: int
    window_s: int
    epsilon_millionths: int
    delta_1e12: int
    n_max: int
    n_min: int
    min_operators: int
    leader_pk: bytes
    helper_pk: bytes
    expiry: int


def series_key(name: str, leader_pk: bytes) -> str:
    """Tell a Leader's series from another Leader's of the same name."""
    return f"{name}@{leader_pk.hex()[:32]}"


def series_name(key: str) -> str:
    """Give the name in a series' key, or in what was kept without a Leader."""
    return key.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Task(TaskTerms):
    """The body of a signed task.

    lateness_s     how long after its end a window takes reports; retention_s, the Helper batches
    t              hosts whose data and noise someone may know
    """

    lateness_s: int
    retention_s: int
    sections: tuple[SectionSpec, ...]
    mu_1e9: int
    t: int
    catalogue_hash: bytes

    @property
    def d(self) -> int:
        """Words of a report: two check words, then the sections in order."""
        return CHECK_WORDS + sum(section.length for section in self.sections)

    @property
    def series_key(self) -> str:
        return series_key(self.series, self.leader_pk)

    @property
    def windows(self) -> int:
        return (self.last_window - self.first_window) // self.window_s + 1

    @property
    def h(self) -> int:
        """Hosts whose noise counts: n_min - t; 1 in scheme `local`."""
        return 1 if self.scheme is Scheme.LOCAL else self.n_min - self.t

    def ends_in_time(self, window: int) -> bool:
        """Say whether a window's lateness ends before the task expires: no other is reported."""
        return window + self.window_s + self.lateness_s < self.expiry

    def need_timely(self, now_s: float) -> None:
        """Refuse to build, sign or take a task that is over, or begins or ends too far from now.

        A week after its last window's retention it is over, whatever its expiry: it holds no
        weight by then. One that was taken before stays readable.
        Raises      ReportRejected: task_expired, field
        """
        last_s = self.last_window + self.window_s + self.retention_s
        over_s = min(self.expiry, last_s + 7 * fields.DAY_S)
        if over_s <= now_s:
            expected = f"a task that is not over at {as_date(int(now_s))}"
            raise ReportRejected(Reason.TASK_EXPIRED, expected, as_date(over_s))
        begins, ends = fields.TASK_BEGINS_DAYS, fields.TASK_ENDS_DAYS
        fields.need_within(self.first_window, now_s, begins, "first_window")
        fields.need_within(max(last_s, self.expiry), now_s, ends, "last window and expiry")

    def slices(self) -> dict[str, slice]:
        places: dict[str, slice] = {}
        at = CHECK_WORDS
        for section in self.sections:
            places[section.name] = slice(at, at + section.length)
            at += section.length
        return places

    def sigma_vector_1024(self) -> NDArray[np.int64]:
        """Return int64[d]: the noise of each word in steps / 1024; 0 at the check words."""
        sigmas = [0, *(section.sigma_1024 for section in self.sections)]
        lengths = [CHECK_WORDS, *(section.length for section in self.sections)]
        return np.repeat(np.array(sigmas, dtype=np.int64), lengths)

    def encode_body(self) -> bytes:
        """Return the body's bytes; ValueError-free only for a task that decodes again."""
        message = pb.TaskBody(
            scheme=_SCHEME_NUMBERS[self.scheme],  # type: ignore[arg-type]  # enum by number
            sections=[_encode_section(section) for section in self.sections],
            **{name: getattr(self, name) for name in _PLAIN},
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode_body(cls, data: bytes) -> Self:
        """Decode a body whose signatures were verified; ReportRejected when out of range."""
        message = fields.parse(pb.TaskBody(), data, MAX_TASK_BODY, "a task body")
        scheme = _SCHEMES.get(message.scheme)
        fields.need(scheme is not None, "a known scheme", message.scheme)
        need_range(len(message.sections), 1, MAX_SECTIONS, "sections")
        task = cls(
            scheme=scheme or Scheme.MASKED,
            sections=tuple(_decode_section(section) for section in message.sections),
            **{name: getattr(message, name) for name in _PLAIN},
        )
        _check(task)
        return task


_PLAIN = [name for name in Task.__dataclass_fields__ if name not in {"scheme", "sections"}]


def _encode_section(section: SectionSpec) -> pb.SectionSpec:
    numbers = {name: getattr(section, name) for name in _SECTION_PLAIN}
    return pb.SectionSpec(kind=_KIND_NUMBERS[section.kind], **numbers)  # type: ignore[arg-type]


_SECTION_PLAIN = [name for name in SectionSpec.__dataclass_fields__ if name != "kind"]


def _decode_section(message: pb.SectionSpec) -> SectionSpec:
    kind = _KINDS.get(message.kind)
    fields.need(kind is not None, "a known section kind", message.kind)
    section = SectionSpec(
        kind=kind or SectionKind.MIX, **{name: getattr(message, name) for name in _SECTION_PLAIN}
    )
    _check_section(section)
    return section


def _check_section(section: SectionSpec) -> None:
    need_range(section.section_id, 1, (1 << 31) - 1, "section_id")
    fields.need_name(section.name, "a section name")
    need_range(section.length, 1, MAX_D - CHECK_WORDS, "length")
    need_range(section.q, 1, MAX_UNITS, "q")
    need_range(section.l1_bound, section.q, MAX_UNITS, "l1_bound")
    need_range(section.coordinate_cap, section.q, section.l1_bound, "coordinate_cap")
    for value in (section.l1_bound, section.coordinate_cap):
        fields.need(value % section.q == 0, f"a multiple of q = {section.q}", value)
    if section.kind is SectionKind.INDICATORS:
        need_range(section.m, 1, section.length, "m")
        whole = section.l1_bound == section.m * section.coordinate_cap
        fields.need(whole, "l1_bound = m caps of an indicator set", section.l1_bound)
    else:
        need_range(section.m, 0, 0, "m of a section without indicators")
    need_range(section.weight_millionths, 1, fields.MILLION, "weight_millionths")
    need_range(section.rate_millionths, 1, fields.MILLION, "rate_millionths")
    need_range(section.sigma_1024, 1, MAX_UNITS, "sigma_1024")


def _check(task: Task) -> None:
    fields.need_name(task.series, "a series")
    fields.need_name(task.domain, "a domain")
    need_range(task.version, 1, (1 << 31) - 1, "version")
    need_range(task.window_s, 1, MAX_WINDOW_S, "window_s")
    need_time(task.last_window, "last_window")
    need_range(task.first_window, 0, task.last_window, "first_window")
    for window in (task.first_window, task.last_window):
        fields.need(window % task.window_s == 0, f"a multiple of {task.window_s} s", window)
    need_range(task.retention_s, 0, MAX_WINDOW_S, "retention_s")
    need_range(task.lateness_s, 0, task.retention_s, "lateness_s")
    need_range(need_time(task.expiry, "expiry"), 1, fields.MAX_TIME, "expiry")
    need_range(task.d, MIN_D, MAX_D, "d")
    for what in ("section_id", "name"):
        names = {getattr(section, what) for section in task.sections}
        fields.need(len(names) == len(task.sections), f"each {what} once", "one twice")
    weights = sum(section.weight_millionths for section in task.sections)
    need_range(weights, 1, fields.MILLION, "the sum of weight_millionths")
    need_range(task.epsilon_millionths, 1, 100 * fields.MILLION, "epsilon_millionths")
    need_range(task.delta_1e12, 1, fields.MILLION, "delta_1e12")
    need_range(task.mu_1e9, 1, 1 << 40, "mu_1e9")
    need_range(task.n_max, 1, MAX_HOSTS, "n_max")
    need_range(task.n_min, 1, task.n_max, "n_min")
    need_range(task.t, 0, task.n_min - 1, "t")
    need_range(task.min_operators, 0, task.n_max, "min_operators")
    fields.need_bytes(task.leader_pk, 32, "leader_pk")
    fields.need_bytes(task.helper_pk, 32 if task.scheme is Scheme.MASKED else 0, "helper_pk")
    fields.need_bytes(task.catalogue_hash, 32, "catalogue_hash")
