"""Hand rules: how strongly the signals of each cause speak, 0..1, from a vector of features.

A cause has telling signals, others that must not be silent (`needs`), and causes that explain it
away: memory pressure also makes disks busy, a quota also makes tasks wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .baseline import Floats
from .features import FEATURE_INDEX
from .findings import Cause


@dataclass(frozen=True, slots=True)
class FeatureTest:
    """One feature that tells of a cause.

    low, high   where it begins to speak, and where it is as loud as it gets
    weight      strength at its loudest, 0..1
    sign        -1: what tells is a fall
    """

    feature: str
    low: float
    high: float
    weight: float = 1.0
    sign: float = 1.0

    @property
    def channel(self) -> str:
        """The channel it is of; `lag`, `share` or `step` features give their own name."""
        return self.feature.removesuffix(".z").removesuffix(".r")


@dataclass(frozen=True, slots=True)
class CauseRule:
    """Signals of one cause, and the causes that explain it away.

    tells       the loudest counts, each further adds a share of what is left
    needs       of each group the loudest caps the strength; a group of which nothing is measured
                caps nothing
    excused_by  causes that take so much of this one's strength away when at their loudest
    """

    cause: Cause
    tells: tuple[FeatureTest, ...]
    needs: tuple[tuple[FeatureTest, ...], ...] = ()
    excused_by: tuple[tuple[Cause, float], ...] = ()


def _up(channel: str, weight: float = 1.0, low: float = 2.3, high: float = 5.0) -> FeatureTest:
    """A rise in spreads, in octaves: 2.3 are 4 spreads, 5 are 31."""
    return FeatureTest(f"{channel}.z", low, high, weight)


def _down(channel: str, weight: float = 1.0, low: float = 2.3, high: float = 5.0) -> FeatureTest:
    return FeatureTest(f"{channel}.z", low, high, weight, -1.0)


def _times(channel: str, low: float, high: float, weight: float = 1.0) -> FeatureTest:
    return FeatureTest(f"{channel}.r", low, high, weight)


def _shrunk(channel: str, low: float, high: float, weight: float = 1.0) -> FeatureTest:
    return FeatureTest(f"{channel}.r", low, high, weight, -1.0)


_OTHERS_SEND: Final = (
    _up("other.net_send_bytes_per_s"),
    _up("other.net_receive_bytes_per_s"),
)

_RATHER: Final = (
    (Cause.COMMUNICATION_WAIT, 0.7),
    (Cause.NIC_LIMIT_OR_LOSS, 0.8),
    (Cause.NIC_CROSS_TRAFFIC, 0.8),
    (Cause.CGROUP_THROTTLING, 0.9),
    (Cause.CPU_CONTENTION, 0.8),
    (Cause.MEMORY_PRESSURE, 0.9),
    (Cause.DISK_IO, 0.7),
    (Cause.GPU_HARDWARE_FAULT, 0.9),
    (Cause.GPU_THERMAL_OR_POWER_LIMIT, 0.9),
    (Cause.GPU_SHARED, 0.9),
    (Cause.PCIE_PRESSURE, 0.8),
)
"""What explains a starving subject better than its input."""

_SAME_WORK: Final = tuple(
    (FeatureTest(feature, -0.35, -0.1, sign=sign),)
    for feature in ("step.send", "step.read")
    for sign in (1.0, -1.0)
)
"""A step sends and reads what it did before."""

_NO_MORE_WORK: Final = (
    (FeatureTest("step.send", -0.5, -0.25, sign=-1),),
    (FeatureTest("step.read", -0.5, -0.25, sign=-1),),
)
"""A step sends and reads no more than before: its batch has not grown."""

_NO_DETOUR: Final = (_shrunk("own.round_trip_least_us", -2.6, -2.0),)
"""The shortest round trip is less than four times as long as usual."""

RULES: Final = (
    CauseRule(
        Cause.CGROUP_THROTTLING,
        (
            _up("own.throttled_ms_per_s"),
            _up("own.throttled_delay_ms_per_s"),
            _up("own.throttled_periods_percent", 0.8),
        ),
    ),
    CauseRule(
        Cause.CPU_CONTENTION,
        (
            _up("own.run_delay_ms_per_s"),
            _up("own.preempted_ms_per_s", 0.8),
            _up("own.switches_involuntary_per_s", 0.5),
            _up("host.pressure_cpu_some_ms_per_s", 0.5),
        ),
        needs=(
            (
                _up("own.run_delay_ms_per_s", low=2.0, high=3.5),
                _up("own.preempted_ms_per_s", low=2.0, high=3.5),
            ),
            (
                _up("other.cpu_ms_per_s", low=1.5, high=3.0),
                _up("host.steal_percent", low=1.5, high=3.0),
                _up("host.run_delay_ms_per_s", 0.7, low=2.0, high=4.0),
            ),
        ),
        excused_by=(
            (Cause.CGROUP_THROTTLING, 0.7),
            (Cause.MEMORY_PRESSURE, 0.5),
            (Cause.NIC_CROSS_TRAFFIC, 0.4),
            (Cause.DISK_IO, 0.3),
        ),
    ),
    # What the hypervisor takes looks like running to the guest: no thread of it waits in a queue.
    CauseRule(
        Cause.CPU_CONTENTION,
        (_up("host.steal_percent", 0.55, low=1.8, high=3.2),),
        excused_by=(
            (Cause.CGROUP_THROTTLING, 0.9),
            (Cause.MEMORY_PRESSURE, 0.9),
            (Cause.NIC_CROSS_TRAFFIC, 0.9),
            (Cause.NIC_LIMIT_OR_LOSS, 0.9),
            (Cause.COMMUNICATION_WAIT, 0.9),
            (Cause.DISK_IO, 0.9),
        ),
    ),
    CauseRule(
        Cause.MEMORY_PRESSURE,
        (
            _up("own.reclaim_ms_per_s", low=1.6, high=3.5),
            _up("host.reclaim_direct_ms_per_s"),
            _up("host.reclaim_cgroup_per_s", 0.8),
            _up("host.reclaim_cgroup_ms_per_s", 0.8),
            _up("host.pressure_memory_some_ms_per_s", 0.8),
        ),
        needs=(
            (
                _up("own.reclaim_ms_per_s", low=1.0, high=2.5),
                _up("host.reclaim_direct_ms_per_s", low=1.6, high=3.5),
                _up("host.pressure_memory_some_ms_per_s", low=1.6, high=3.5),
            ),
        ),
    ),
    CauseRule(
        Cause.DISK_IO,
        (
            _up("own.block_wait_ms_per_s"),
            _up("host.worst_disk_ms_per_s", 0.9),
            _up("host.worst_disk_latency_ms", 0.8),
            _up("host.worst_disk_latency_p99_ms", 0.5),
            _up("host.pressure_io_some_ms_per_s", 0.8),
            _up("host.block_ms_per_s", 0.8),
        ),
        excused_by=((Cause.MEMORY_PRESSURE, 0.7),),
    ),
    CauseRule(
        Cause.NIC_CROSS_TRAFFIC,
        (
            _up("host.softirq_net_rx_ms_per_s"),
            _up("host.softirqs_net_rx_per_s", 0.7),
            _up("host.busiest_cpu_softirq_ms_per_s", 0.6),
        ),
        needs=(_OTHERS_SEND,),
    ),
    CauseRule(
        Cause.NIC_LIMIT_OR_LOSS,
        (
            _up("host.retransmits_per_s"),
            _up("host.worst_peer_retransmits_per_s", 0.9),
            _up("host.queue_drops_per_s", 0.9),
            _down("host.link_bytes_per_s", 0.9),
            _up("host.faults_network_per_s", 0.6),
        ),
        excused_by=((Cause.NIC_CROSS_TRAFFIC, 0.6),),
    ),
    CauseRule(  # a sender waits for acknowledgements, on a detour as behind a slow link
        Cause.NIC_LIMIT_OR_LOSS,
        (_up("own.net_send_wait_ms_per_s"), _up("host.send_queue_bytes", 0.8)),
        needs=(_NO_DETOUR,),
        excused_by=((Cause.NIC_CROSS_TRAFFIC, 0.6),),
    ),
    CauseRule(  # each packet takes longer to be put on the wire; a detour takes longer still
        Cause.NIC_LIMIT_OR_LOSS,
        (_up("own.round_trip_least_us", 0.9, low=1.3, high=2.5),),
        needs=(
            _NO_DETOUR,
            (
                _up("own.net_receive_wait_ms_per_s", low=1.5, high=3.0),
                _up("own.net_send_wait_ms_per_s", low=1.5, high=3.0),
            ),
        ),
        excused_by=((Cause.NIC_CROSS_TRAFFIC, 0.8),),
    ),
    CauseRule(
        Cause.PCIE_PRESSURE,
        (
            _up("gpu.pcie_rx_bytes_per_s", 0.8),
            _up("gpu.pcie_tx_bytes_per_s", 0.8),
            _up("gpu.copy_to_device_bytes_per_s", 0.6),
            _up("gpu.copy_to_host_bytes_per_s", 0.6),
            # Only of a GPU at work (`channels.py`): idle, it lowers both by itself.
            _down("gpu.pcie_width_percent", 0.9),
            _down("gpu.pcie_generation_percent", 0.9),
        ),
        excused_by=((Cause.GPU_HARDWARE_FAULT, 0.6), (Cause.GPU_THERMAL_OR_POWER_LIMIT, 0.5)),
    ),
    CauseRule(
        Cause.GPU_THERMAL_OR_POWER_LIMIT,
        (
            _up("gpu.throttled_thermal_percent", low=1.0, high=3.0),
            _up("gpu.throttled_power_percent", 0.9, low=1.0, high=3.0),
            _up("gpu.throttled_hardware_percent", low=1.0, high=3.0),
            _down("gpu.sm_clock_percent", 0.6, low=1.5, high=3.5),
            _down("gpu.sm_clock_mhz", 0.5, low=1.5, high=3.5),
        ),
        excused_by=((Cause.GPU_HARDWARE_FAULT, 0.5),),
    ),
    CauseRule(
        Cause.GPU_HARDWARE_FAULT,
        (
            _up("gpu.xids_memory_per_s", low=1.0, high=2.0),
            _up("gpu.xids_processor_per_s", low=1.0, high=2.0),
            _up("gpu.xids_faulty_per_s", low=1.0, high=2.0),
            _up("gpu.xids_power_per_s", low=1.0, high=2.0),
            _up("gpu.ecc_uncorrected_per_s", low=1.0, high=2.0),
            _up("gpu.ecc_corrected_per_s", 0.7, low=1.5, high=4.0),
            _up("gpu.rows_remapped_per_s", low=1.0, high=2.0),
            _up("gpu.row_remap_pending_count", 0.9, low=1.0, high=2.0),
            _up("gpu.row_remap_failed_count", low=1.0, high=2.0),
            _up("gpu.nvlink_errors_per_s", 0.9, low=1.0, high=2.5),
            _up("gpu.nvlinks_down_count", low=1.0, high=2.0),
            _up("gpu.pcie_replays_per_s", 0.7, low=1.5, high=4.0),
            _up("gpu.gpu_lost_count", low=1.0, high=2.0),
            _up("host.faults_gpu_per_s", 0.9, low=1.0, high=2.0),
            _up("own.gpu_failed_calls_per_s", 0.4, low=1.0, high=3.0),
        ),
    ),
    CauseRule(  # a driver that does not answer; so it seems, too, where its reader gets no time
        Cause.GPU_HARDWARE_FAULT,
        (_up("gpu.gpu_silent_count", 0.7, low=1.0, high=2.0),),
        excused_by=(
            (Cause.CPU_CONTENTION, 0.9),
            (Cause.CGROUP_THROTTLING, 0.7),
            (Cause.MEMORY_PRESSURE, 0.9),
            (Cause.DISK_IO, 0.8),
        ),
    ),
    CauseRule(
        Cause.GPU_SHARED,
        (
            _up("own.gpu_others_percent", low=1.5, high=3.5),
            _up("own.gpu_others_launches_per_s", 0.9),
            _up("gpu.gpu_processes_count", 0.6, low=1.0, high=2.0),
        ),
        excused_by=((Cause.GPU_HARDWARE_FAULT, 0.6), (Cause.GPU_THERMAL_OR_POWER_LIMIT, 0.4)),
    ),
    CauseRule(
        Cause.COMMUNICATION_WAIT,
        (
            _up("own.net_receive_wait_ms_per_s", 0.9, low=2.0, high=3.6),
            _up("own.collective_ms_per_s", 0.8),
            _times("own.round_trip_least_us", 2.0, 2.6, 0.8),  # a detour
            _shrunk("own.net_receive_bytes_per_s", 0.3, 1.5, 0.6),
        ),
        needs=(
            (_shrunk("own.cpu_ms_per_s", 0.1, 0.5), _up("own.net_receive_wait_ms_per_s")),
            (
                _up("own.net_receive_wait_ms_per_s", low=1.5, high=3.0),
                _up("own.collective_ms_per_s"),
            ),
        ),
        excused_by=(
            (Cause.NIC_LIMIT_OR_LOSS, 0.8),
            (Cause.NIC_CROSS_TRAFFIC, 0.8),
            (Cause.CGROUP_THROTTLING, 0.9),
            (Cause.CPU_CONTENTION, 0.7),
            (Cause.MEMORY_PRESSURE, 0.9),
            (Cause.DISK_IO, 0.7),
        ),
    ),
    CauseRule(
        Cause.INPUT_STARVATION,
        (
            _shrunk("own.cpu_ms_per_s", 0.12, 0.6, 0.7),
            _up("own.sleep_ms_per_s", 0.5),
        ),
        needs=(
            (_shrunk("own.cpu_ms_per_s", 0.1, 0.4),),
            (FeatureTest("step.p50", 0.1, 0.35),),
            *_NO_MORE_WORK,
        ),
        excused_by=_RATHER,
    ),
    CauseRule(  # whoever makes the input works harder in the subject's own cgroup
        Cause.INPUT_STARVATION,
        (FeatureTest("step.cpu", 0.3, 0.9, 0.7),),
        needs=((FeatureTest("step.p50", 0.1, 0.35),), *_SAME_WORK),
        excused_by=_RATHER,
    ),
)


RULES_TITLE: Final = "hand rules 1"
"""What diagnoses name as their model."""
CAUSES: Final = tuple(Cause)
UNKNOWN: Final = CAUSES.index(Cause.UNKNOWN)
_FURTHER: Final = 0.3
"""Share of what is left that each further telling signal adds."""
_SHARPNESS: Final = 6.0
_UNKNOWN_AT: Final = 0.3
"""Strength of the strongest cause at which `unknown` is believed as much."""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """Strengths and beliefs, both float64[CAUSES]; beliefs sum to 1."""

    strengths: Floats
    beliefs: Floats

    @property
    def strongest(self) -> float:
        return float(self.strengths.max())


def judge(vector: Floats) -> RuleVerdict:
    """Weigh all causes by the hand rules; `vector` is float64[FEATURE_NAMES]."""
    own = [(rule, _alone(rule.tells, rule.needs, vector)) for rule in RULES]
    alone = dict.fromkeys(Cause, 0.0)
    for rule, strength in own:
        alone[rule.cause] = max(alone[rule.cause], strength)
    strengths = np.zeros(len(CAUSES))
    for rule, strength in own:
        left = strength
        for cause, share in rule.excused_by:
            left *= 1 - share * alone[cause]
        place = CAUSES.index(rule.cause)
        strengths[place] = max(strengths[place], left)
    loudness = strengths.copy()
    loudness[UNKNOWN] = _UNKNOWN_AT
    believed = np.exp(_SHARPNESS * loudness)
    believed[strengths == 0] *= np.exp(
        -_SHARPNESS * 0.5
    )  # what nothing tells of is hardly possible
    believed[UNKNOWN] = np.exp(_SHARPNESS * _UNKNOWN_AT)
    return RuleVerdict(strengths, believed / believed.sum())


def _alone(
    tells: tuple[FeatureTest, ...], needs: tuple[tuple[FeatureTest, ...], ...], vector: Floats
) -> float:
    heard = sorted((strength_of(tell, vector) for tell in tells), reverse=True)
    strength = heard[0]
    for further in heard[1:]:
        strength += _FURTHER * further * (1 - strength)
    for group in needs:
        measured = [tell for tell in group if not np.isnan(vector[FEATURE_INDEX[tell.feature]])]
        if measured:
            strength = min(strength, max(strength_of(tell, vector) for tell in measured))
    return strength


def strength_of(tell: FeatureTest, vector: Floats) -> float:
    """Give how loud one signal is, 0..weight; 0 where it is missing."""
    value = tell.sign * vector[FEATURE_INDEX[tell.feature]]
    if not value > tell.low:
        return 0.0
    return float(tell.weight * min(1.0, (value - tell.low) / (tell.high - tell.low)))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a spike is put down to.

    ranked   every cause with its share of belief, largest first; they sum to 1
    unlike   how far the spike is from everything that the rules know, 0..1
    """

    ranked: tuple[tuple[Cause, float], ...]
    unlike: float

    @property
    def cause(self) -> Cause:
        return self.ranked[0][0]


def rank(verdict: RuleVerdict) -> Ranking:
    """Rank all causes by the beliefs of the rules; `unknown` leads clearly or not at all."""
    unlike = float(1 - min(1.0, verdict.strongest))
    beliefs = verdict.beliefs.copy()
    if int(beliefs.argmax()) == UNKNOWN:
        # What is left of the known causes shrinks until `unknown` leads.
        lead = max(unlike, float(beliefs[UNKNOWN]), 0.5)
        beliefs[UNKNOWN] = 0.0
        rest = beliefs.sum()
        beliefs *= (1 - lead) / rest if rest > 0 else 0.0
        beliefs[UNKNOWN] = 1 - beliefs.sum()
    order = np.argsort(-beliefs, kind="stable")
    return Ranking(tuple((CAUSES[place], float(beliefs[place])) for place in order), unlike)
