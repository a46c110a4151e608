"""From measured parts to the figures of bench/results/agent.json."""

from __future__ import annotations

from typing import Final

from bench.agent_measure import MIB, TICK
from bench.agent_pairs import Median, median_of
from bench.agent_parts import Numbers
from bench.record import Figure

_HOUR_S: Final = 3600
_EMPTY_NS: Final = 90.0
"""An empty program on sched_switch, measured on this kind of machine."""
_ANCHOR: Final = 1.21
"""The published system with the same job: percent of a core."""


def figures(parts: dict[str, Numbers], both: list[Numbers]) -> list[Figure]:
    """Give every figure; those of parts that this machine could not run are left out."""
    return [
        *_agent(parts["steady"], parts["sampler"]),
        *_bpf(parts["steady"], both),
        *_gpus(parts["gpus"]),
        *_exporter(parts["steady"]),
        *workload_figures(both),
    ]


def _agent(steady: Numbers, sampler: Numbers) -> list[Figure]:
    wire = steady["report_bytes"] * steady["reports"] / steady["seconds"]
    maps_mib, probes_mib = steady["bpf_bytes"] / MIB, steady["probe_bytes"] / MIB
    return [
        Figure("agent_core_percent_100hz", steady["user"], "percent of a core", goal=0.25),
        Figure(
            "agent_core_percent_with_system_calls", steady["user"] + steady["system"],
            "percent of a core",
        ),
        Figure("published_anchor_core_percent", _ANCHOR, "percent of a core"),
        Figure("agent_rss_mib", steady["rss_mib"], "MiB", goal=120.0),
        Figure(
            "bpf_maps_and_sampler_mib", maps_mib + sampler["added_kib"] / 1024, "MiB", goal=4.0
        ),
        Figure("bpf_maps_and_programs_mib", maps_mib, "MiB"),
        Figure("gpu_probes_maps_and_programs_mib", probes_mib, "MiB, loaded with a GPU library"),
        Figure("wakeups_per_second", steady["wakeups"], "voluntary switches/s"),
        Figure("wire_bytes_per_second", wire + steady["epoch_bytes"] / _HOUR_S, "bytes/s"),
        Figure("report_bytes", steady["report_bytes"], "bytes"),
        Figure("history_mib_per_hour", steady["history_mib"] * _HOUR_S / steady["seconds"], "MiB"),
    ]  # fmt: skip


def _bpf(steady: Numbers, both: list[Numbers]) -> list[Figure]:
    extra = _pingpong_ns(both)
    under_load = median_of([one["bpf"] for one in both])
    hit = median_of([one["hit"] for one in both])
    found = [
        Figure("bpf_core_percent_100hz", steady["bpf"], "percent of a core"),
        Figure("host_switches_per_second", steady["switches"], "switches/s"),
        Figure("host_page_faults_per_second", steady["rate_on_page_fault"], "faults/s"),
        Figure("bpf_own_ns_per_page_fault", steady.get("hit_on_page_fault", 0.0), "ns"),
        Figure("bpf_core_percent_at_workload", under_load.value, "percent of a core"),
        Figure("bpf_ns_per_context_switch", extra.value, "ns", goal=200.0, floor=_EMPTY_NS),
        Figure("bpf_ns_per_context_switch_low", extra.low, "ns"),
        Figure("bpf_ns_per_context_switch_high", extra.high, "ns"),
        Figure("bpf_own_ns_per_switch_hit", hit.value, "ns"),
    ]
    if "kernel_ns_per_run" in steady:
        found.append(Figure("bpf_statistics_ns_per_event", steady["kernel_ns_per_run"], "ns"))
    if f"hit_{TICK}" in steady:
        found.append(Figure("bpf_tick_ns", steady[f"hit_{TICK}"], "ns"))
        found.append(Figure("bpf_ticks_per_second", steady[f"rate_{TICK}"], "ticks/s"))
    return found


def _pingpong_ns(both: list[Numbers]) -> Median:
    """Nanoseconds of wall time that a switch of the ping-pong costs more beside the agent."""
    return median_of([
        1e9 * (one["pingpong_on_wall_s"] - one["pingpong_off_wall_s"]) / one["pingpong_on_switches"]
        for one in both
    ])  # fmt: skip


def _gpus(gpus: Numbers) -> list[Figure]:
    if "user" not in gpus:
        return []
    return [
        Figure("agent_core_percent_with_8_gpus", gpus["user"], "percent of a core"),
        Figure(
            "agent_core_percent_with_8_gpus_and_system_calls", gpus["user"] + gpus["system"],
            "percent of a core",
        ),
        Figure("agent_and_reader_mib_with_8_gpus", gpus["family_mib"], "MiB, shared pages once"),
        Figure("wakeups_per_second_with_8_gpus", gpus["wakeups"], "voluntary switches/s"),
    ]  # fmt: skip


def _exporter(steady: Numbers) -> list[Figure]:
    if "exporter_1s" not in steady:
        return []
    return [
        Figure("node_exporter_core_percent_1s", steady["exporter_1s"], "percent of a core"),
        Figure("node_exporter_core_percent_15s", steady["exporter_15s"], "percent of a core"),
        Figure("node_exporter_rss_mib", steady["exporter_1s_rss_mib"], "MiB"),
        Figure(
            "node_exporter_wire_bytes_per_second_15s", steady["exporter_15s_bytes"] / 15, "bytes/s"
        ),
    ]


def workload_figures(both: list[Numbers], goal: float = 0.5) -> list[Figure]:
    """Give what the agent takes from its neighbours.

    goal    for the workload with network traffic, percent
    """
    work = _slowdown(both, "work", "wall_s")
    cpu = _slowdown(both, "work", "cpu_s")
    worst = _slowdown(both, "pingpong", "wall_s")
    rate = median_of([one["work_off_switches"] / one["work_off_wall_s"] for one in both])
    return [
        Figure("workload_slowdown_percent", work.value, "percent, median of pairs", goal=goal),
        Figure("workload_slowdown_percent_low", work.low, "percent, 95 % interval"),
        Figure("workload_slowdown_percent_high", work.high, "percent, 95 % interval"),
        Figure("workload_cpu_slowdown_percent", cpu.value, "percent of its CPU time"),
        Figure("workload_cpu_slowdown_percent_low", cpu.low, "percent, 95 % interval"),
        Figure("workload_cpu_slowdown_percent_high", cpu.high, "percent, 95 % interval"),
        Figure("workload_switches_per_second", rate.value, "switches/s"),
        Figure("workload_pairs", len(both), "pairs"),
        Figure("pingpong_slowdown_percent", worst.value, "percent, median of pairs"),
        Figure("pingpong_slowdown_percent_low", worst.low, "percent, 95 % interval"),
        Figure("pingpong_slowdown_percent_high", worst.high, "percent, 95 % interval"),
    ]


def _slowdown(both: list[Numbers], load: str, clock: str) -> Median:
    return median_of([
        100 * (one[f"{load}_on_{clock}"] / one[f"{load}_off_{clock}"] - 1) for one in both
    ])  # fmt: skip
