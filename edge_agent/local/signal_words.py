"""Every signal as a sentence: what a person reads in place of its name.

`{whose}` stands for whose signal it is, `{value}` for the value with its unit. The sentence goes on
with what is usual: "its threads waited 4.2 s/s for a CPU, usually 80 ms/s".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_WHOSE: Final = {
    "own": "its", "host": "the host's", "other": "other groups'", "gpu": "its GPU's",
}  # fmt: skip

_SCHEDULER: Final = {
    "run_delay_ms_per_s": "{whose} threads waited {value} for a CPU",
    "cpu_ms_per_s": "{whose} threads ran {value} on CPUs",
    "switches_per_s": "{whose} threads took turns on the CPUs {value}",
    "switches_involuntary_per_s": "{whose} threads were pushed off a CPU {value}",
    "busiest_cpu_ms_per_s": "the busiest CPU ran tasks {value}",
    "worst_cpu_run_delay_ms_per_s": "threads waited {value} for the CPU with the longest queue",
    "steal_percent": "the hypervisor gave {value} of the CPU time to others",
    "iowait_percent": "CPUs idled {value} of the time while a disk worked",
    "wakeups_per_s": "threads were woken {value}",
    "sleep_ms_per_s": "{whose} threads slept {value} by their own choice",
    "preempted_ms_per_s": "{whose} threads were kept off the CPU {value} though they could run",
    "throttled_delay_ms_per_s": "{whose} threads were held back {value} by a CPU quota",
    "throttled_ms_per_s": "{whose} CPU quota was used up {value}",
    "throttled_periods_percent": "{whose} CPU quota ran out in {value} of its periods",
    "numa_migrations_per_s": "threads moved to another NUMA node {value}",
}
_SOFTIRQS: Final = {
    "net_rx": "received packets", "net_tx": "sent packets", "block": "finished disk requests",
    "timer": "timers", "sched": "balancing the CPUs", "rcu": "RCU", "tasklet": "tasklets",
    "hrtimer": "precise timers", "hi": "urgent tasklets", "irq_poll": "polled disks",
}  # fmt: skip
_INTERRUPTS: Final = {
    **{f"softirq_{key}_ms_per_s": f"the kernel worked {{value}} for {what}"
       for key, what in _SOFTIRQS.items()},
    **{f"softirqs_{key}_per_s": f"the kernel was called {{value}} for {_SOFTIRQS[key]}"
       for key in ("net_rx", "net_tx", "block", "timer", "sched")},
    "busiest_cpu_softirq_ms_per_s": "the kernel took {value} of one CPU for softirqs",
    "irqs_per_s": "hardware interrupts came {value}",
    "irq_ms_per_s": "hardware interrupts took {value}",
    "busiest_cpu_irqs_per_s": "hardware interrupts came {value} to one CPU",
    "busiest_cpu_irq_ms_per_s": "hardware interrupts took {value} of one CPU",
}  # fmt: skip
_NETWORK: Final = {
    "net_send_bytes_per_s": "{whose} processes sent {value}",
    "net_receive_bytes_per_s": "{whose} processes received {value}",
    "net_sends_per_s": "{whose} processes called send {value}",
    "net_receives_per_s": "{whose} processes called receive {value}",
    "net_send_wait_ms_per_s": "{whose} threads waited {value} to send",
    "net_receive_wait_ms_per_s": "{whose} threads waited {value} for bytes from the network",
    "srtt_us": "a round trip took {value}",
    "round_trip_us": "{whose} packets took {value} to a peer and back",
    "round_trip_least_us": "the fastest of {whose} packets took {value} to a peer and back",
    "queue_drops_per_s": "the network dropped packets {value}",
    "send_queue_bytes": "{value} waited in a socket to be sent",
    "retransmits_per_s": "packets were sent again {value}",
    "worst_peer_retransmits_per_s": "packets were sent again {value} to one peer",
    "link_bytes_per_s": "the slowest network link was set to {value}",
}
_BLOCK: Final = {
    "block_reads_per_s": "disks were asked to read {value}",
    "block_writes_per_s": "disks were asked to write {value}",
    "block_ios_per_s": "{whose} processes asked disks {value}",
    "block_read_bytes_per_s": "{whose} processes read {value} from disks",
    "block_write_bytes_per_s": "{whose} processes wrote {value} to disks",
    "block_ms_per_s": "disk requests took {value} in all",
    "block_queue_ms_per_s": "disk requests queued {value} in all",
    "block_wait_ms_per_s": "{whose} threads waited {value} for a disk",
    "block_waits_per_s": "{whose} threads slept {value} until a disk answered",
    "worst_disk_ms_per_s": "requests to the busiest disk took {value} in all",
    "worst_disk_latency_ms": "a request to the busiest disk took {value}",
    "worst_disk_latency_p99_ms": "the slowest in a hundred requests to that disk took {value}",
}
_MEMORY: Final = {
    "page_faults_per_s": "{whose} processes faulted on pages {value}",
    "reclaim_direct_per_s": "threads had to free memory themselves {value}",
    "reclaim_direct_ms_per_s": "threads spent {value} freeing memory themselves",
    "reclaim_cgroup_per_s": "threads had to free memory at their group's limit {value}",
    "reclaim_cgroup_ms_per_s": "threads spent {value} freeing memory at their group's limit",
    "reclaim_ms_per_s": "{whose} threads spent {value} freeing memory",
    "memory_used_percent": "memory was {value} full",
    "memory_cached_percent": "{value} of memory cached files",
}
_PRESSURE: Final = {
    "pressure_cpu_some_ms_per_s": "some of {whose} tasks stood {value} for want of a CPU",
    "pressure_cpu_full_ms_per_s": "all of {whose} tasks stood {value} for want of a CPU",
    "pressure_memory_some_ms_per_s": "some of {whose} tasks stood {value} for want of memory",
    "pressure_memory_full_ms_per_s": "all of {whose} tasks stood {value} for want of memory",
    "pressure_io_some_ms_per_s": "some of {whose} tasks stood {value} for a disk",
    "pressure_io_full_ms_per_s": "all of {whose} tasks stood {value} for a disk",
    "pressure_irq_full_ms_per_s": "all tasks stood {value} for interrupts",
}
_FAULTS: Final = {
    f"faults_{what}_per_s": f"new faults of {said} came {{value}}"
    for what, said in {
        "memory": "memory", "processor": "CPUs", "disk": "drives", "network": "network cards",
        "power": "power supplies", "gpu": "GPUs", "other": "other hardware",
    }.items()
}  # fmt: skip
_GPU: Final = {
    "sm_clock_mhz": "its GPU ran at {value}",
    "sm_clock_percent": "its GPU ran at {value} of its highest clock",
    "memory_clock_mhz": "its GPU's memory ran at {value}",
    "throttled_thermal_percent": "heat held its GPU back {value} of the time",
    "throttled_power_percent": "a power limit held its GPU back {value} of the time",
    "throttled_hardware_percent": "the board braked its GPU {value} of the time",
    "power_watts": "its GPU drew {value}",
    "power_limit_percent": "its GPU drew {value} of its power limit",
    "temperature_celsius": "its GPU was at {value}",
    "fan_percent": "its GPU's fan ran at {value}",
    "pcie_tx_bytes_per_s": "its GPU sent {value} over PCIe",
    "pcie_rx_bytes_per_s": "its GPU received {value} over PCIe",
    "pcie_replays_per_s": "PCIe sent packets again {value}",
    "pcie_width_percent": "its GPU used {value} of its PCIe lanes",
    "pcie_generation_percent": "its PCIe link ran at {value} of its highest generation",
    "nvlink_tx_bytes_per_s": "its GPU sent {value} over NVLink",
    "nvlink_rx_bytes_per_s": "its GPU received {value} over NVLink",
    "nvlink_errors_per_s": "NVLink had errors {value}",
    "nvlinks_down_count": "NVLinks that are down: {value}",
    "copy_to_device_bytes_per_s": "{whose} copies to the GPU were {value}",
    "copy_to_host_bytes_per_s": "{whose} copies from the GPU were {value}",
    "ecc_corrected_per_s": "its GPU corrected memory errors {value}",
    "ecc_uncorrected_per_s": "its GPU met memory errors it could not correct {value}",
    "rows_remapped_per_s": "its GPU replaced rows of memory {value}",
    "row_remap_pending_count": "replaced rows that wait for a reset of the GPU: {value}",
    "row_remap_failed_count": "rows that could not be replaced: {value}",
    "gpu_lost_count": "GPUs that are gone, off the bus or in need of a reset: {value}",
    "gpu_silent_count": "GPUs of which the driver did not answer in time: {value}",
    "xids_memory_per_s": "the driver reported memory faults (XID) {value}",
    "xids_processor_per_s": "the driver reported faults of the GPU's own processor (XID) {value}",
    "xids_faulty_per_s": "the driver reported faults of the chip, bus or links (XID) {value}",
    "xids_power_per_s": "the driver reported faults of power (XID) {value}",
    "xids_other_per_s": "the driver reported other faults (XID) {value}",
    "gpu_failed_calls_per_s": "its calls of the GPU's libraries failed {value}",
    "gpu_busy_percent": "its GPU was busy {value} of the time",
    "gpu_memory_busy_percent": "its GPU's memory was busy {value} of the time",
    "gpu_memory_used_percent": "its GPU's memory was {value} full",
    "gpu_processes_count": "processes on its GPU: {value}",
    "gpu_own_percent": "it had {value} of its GPU",
    "gpu_others_percent": "others had {value} of its GPU",
    "gpu_others_launches_per_s": "others launched kernels on its GPU {value}",
    "gpu_launches_per_s": "it launched kernels {value}",
    "gpu_wait_ms_per_s": "its threads waited {value} for the GPU",
    "gpu_memory_live_bytes": "it held {value} of GPU memory",
    "collectives_per_s": "it called collectives {value}",
    "collective_bytes_per_s": "its collectives moved {value}",
    "collective_ms_per_s": "it spent {value} inside collectives",
}

SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    _SCHEDULER | _INTERRUPTS | _NETWORK | _BLOCK | _MEMORY | _PRESSURE | _FAULTS | _GPU
)
"""Signal to sentence; a test asks that every signal has one."""


def sentence(scope: str, signal: str, value: str) -> str:
    """Say one signal; one of a later version that has no sentence is said by its name."""
    whose = _WHOSE.get(scope, "the")
    words = SENTENCES.get(signal)
    if words is None:
        return f"{whose} {signal} was {value}"
    return words.format(whose=whose, value=value)


def title(scope: str, signal: str) -> str:
    """Say a signal without a value, as above a plot: "its threads waited ... for a CPU"."""
    return sentence(scope, signal, "…")
