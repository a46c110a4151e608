"""Hardware faults: from each cause to the catalogue's cell, and what is no fault."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.faults.faults_source import SWEEP_NS, FaultsSource
from collectors.faults.scan import Smart
from collectors.interface import SourceUnavailable
from collectors.kernel_log import KMSG, load_rules
from collectors.records.activity import Observation
from collectors.records.basics import FailureKind, ReadFailure
from edge_agent.local.local_rows import EventRow, Flattener, PackedRow
from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
from tests.faults_kit import BRIDGE, GPU, INTERRUPTS, NIC, FakeHost
from tests.window_kit import CATALOGUE, START, cells, task_of

Break = Callable[[FakeHost], None]
WEEKS_S = 4_838_400


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def written(path: str, value: object) -> Break:
    return lambda host: host.write(path, value)


def logged(*messages: str) -> Break:
    return lambda host: host.say(*messages)


def aer(address: str, name: str) -> Break:
    return lambda host: host.aer(address, name, 3)


def xid(code: int) -> Break:
    return logged(f"NVRM: Xid (PCI:0000:1b:00): {code}, pid=9, name=python3")


def smart(warnings: tuple[str, ...]) -> Break:
    def set_page(host: FakeHost) -> None:
        host.smart = Smart(warnings, 0)

    return set_page


UC = 1 << 63 | 1 << 61
HWMON = "sys/class/hwmon/hwmon"
CAUSES: list[tuple[str, Break]] = [
    ("faulty_gpu", xid(79)),
    ("faulty_gpu", xid(74)),
    ("faulty_gpu", aer(GPU, "fatal")),
    ("faulty_gpu", logged(f"pcieport {BRIDGE}: AER: Uncorrectable (Fatal) error message received "
                          f"from {GPU}")),
    ("gpu_hbm3_memory", xid(48)),
    ("gpu_hbm3_memory", logged("NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, pid=7, Contained")),
    ("gpu_sram_memory", xid(172)),
    ("gpu_system_processor", xid(119)),
    ("gpu_thermal_interface_and_sensor", written(f"{HWMON}2/temp2_fault", 1)),
    ("network_switch_or_cable", written("sys/class/net/ens1/carrier_down_count", 2)),
    ("network_switch_or_cable", written("sys/class/net/ens1/carrier", 0)),
    ("network_switch_or_cable",
     written("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", 1)),
    ("network_switch_or_cable", logged(f"mlx5_core {NIC} ens1: Link down")),
    ("network_switch_or_cable", logged(f"igb {NIC} ens1: igb: ens1 NIC Link is Down")),
    ("nic", aer(NIC, "nonfatal")),
    ("nic", logged("NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 3 timed out")),
    ("ssd", written("sys/class/nvme/nvme0/state", "dead")),
    ("ssd", smart(("read-only",))),
    ("ssd", logged("nvme nvme0: I/O 12 QID 3 timeout, reset controller")),
    ("ssd", logged("blk_update_request: I/O error, dev sda, sector 7 op 0x1:(WRITE)")),
    ("ssd", logged("EXT4-fs (nvme0n1p2): Remounting filesystem read-only")),
    ("power_supply", written("sys/class/power_supply/PSU1/online", 0)),
    ("power_supply", written("sys/class/power_supply/PSU1/health", "Dead")),
    ("power_supply", written(f"{HWMON}0/in1_alarm", 1)),
    ("server_chassis", written(f"{HWMON}1/fan1_fault", 1)),
    ("io_expansion_board", aer(BRIDGE, "fatal")),
    ("io_expansion_board", logged(f"pcieport {BRIDGE}: DPC: containment event, status:0x1f01")),
    ("cpu", logged(f"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 1: {UC | 0x150:016x}")),
    ("cpu", written(f"{HWMON}3/temp1_fault", 1)),
    ("cpu", logged(f"[Hardware Error]: CPU:24 (19:1:1) MC0_STATUS[Over|UE|-]: 0x{UC:016x}",
                   "[Hardware Error]: Load Store Unit Ext. Error Code: 1, An error.")),
    ("system_memory", written("sys/devices/system/edac/mc/mc0/ue_count", 1)),
    ("system_memory", written("sys/devices/system/edac/mc/mc0/ce_count", 104)),
    ("system_memory",
     logged(f"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: {UC | 0x90:016x}")),
    ("system_memory",
     logged(f"[Hardware Error]: CPU:24 (19:1:1) MC18_STATUS[-|UE|-]: 0x{UC:016x}",
            "[Hardware Error]: Unified Memory Controller Ext. Error Code: 0, DRAM ECC error.")),
    ("system_memory", written(f"{HWMON}4/temp1_fault", 1)),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "cause"), CAUSES)
def test_fault_reaches_its_cell_from_its_cause(host: FakeHost, cell: str, cause: Break) -> None:
    source = host.source()
    assert host.drain(source).cells == []
    cause(host)
    seen = host.drain(source)
    assert set(seen.cells) == {cell}
    assert seen.events
    task = task_of(["hardware_faults"], window_s=WEEKS_S)
    start_s = START // WEEKS_S * WEEKS_S
    clock = HostClock(start_s * 10**9)
    windows = WindowAccumulator(CATALOGUE, task, [], clock=clock, first_window=start_s)
    for record in seen.records:
        windows.add(record)
    assert cells(task, windows.close(start_s), "hardware_faults") == {cell: 1}


def test_faults_fill_only_classes_that_the_catalogue_has() -> None:
    rules = load_rules()
    named = {rule.cell for rule in rules.rules} | set(rules.xids.values())
    known = {*CATALOGUE.classes("hardware_fault"), "by_pci_class", None}
    assert named <= known


HARMLESS: list[Break] = [
    xid(13), xid(31), xid(43),
    aer(GPU, "correctable"),
    written("sys/devices/system/edac/mc/mc0/ce_count", 50),
    written("proc/interrupts", INTERRUPTS.format(1, 0)),
    logged(f"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: {1 << 63 | 0x90:016x}"),
    logged("I/O error, dev loop0, sector 0", "I/O error, dev sr0, sector 0"),
    logged("python3[7]: NVRM: Xid (PCI:0000:1b:00): 79, as a process name"),
    logged("veth12: Link is Down", "ata1: SATA link down (SStatus 0 SControl 300)"),
    lambda host: host.say("NVRM: Xid (PCI:0000:1b:00): 79, from user space", priority=11),
]  # fmt: skip


@pytest.mark.parametrize("cause", HARMLESS)
def test_what_is_no_hardware_fault_fills_nothing(host: FakeHost, cause: Break) -> None:
    source = host.source()
    cause(host)
    assert host.drain(source).cells == []


def test_corrected_errors_are_counted_here_and_not_released(host: FakeHost) -> None:
    source = host.source()
    host.aer(GPU, "correctable", 12)
    host.write("proc/interrupts", INTERRUPTS.format(1, 2))
    assert host.drain(source).grown("fault_counts") == {
        ("pcie_corrected", GPU): 10,
        ("machine_check_exceptions", "cpu"): 3,
    }


def test_fault_before_the_start_is_the_baseline(host: FakeHost) -> None:
    host.write("sys/devices/system/edac/mc/mc0/ue_count", 9)
    host.write(f"{HWMON}1/fan1_fault", 1)
    host.say("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
    source = host.source()
    assert host.drain(source).records == host.drain(source).records == []


def test_drive_that_is_dead_at_the_start_is_a_fault_and_ends(host: FakeHost) -> None:
    host.write("sys/class/nvme/nvme0/state", "dead")
    source = FaultsSource(host.root, host.log, start=lambda work: work())
    source.start()
    assert host.drain(source).cells == ["ssd"]
    assert source.standing == (("nvme_dead", "nvme0"),)
    assert host.drain(source).cells == []
    host.write("sys/class/nvme/nvme0/state", "live")
    assert host.drain(source).events == [("nvme_dead_cleared", "nvme0")]
    assert len(source.standing) == 0


def test_failing_read_is_a_gap_and_a_count_and_loses_no_error(host: FakeHost) -> None:
    source = host.source()
    counter = "sys/devices/system/edac/mc/mc0/ue_count"
    host.write(counter, "N/A")
    seen = host.drain(source)
    assert seen.cells == []
    assert seen.grown("fault_gaps")["memory_uncorrected/failed", "faults"] == 1
    host.write(counter, 2)
    seen = host.drain(source)
    assert seen.cells == ["system_memory"]
    assert seen.grown("fault_counts") == {("memory_uncorrected", "mc0"): 2}


def test_drive_that_says_anything_stops_nothing(host: FakeHost) -> None:
    host.smart = Smart((), 0)
    source = host.source()
    host.smart = Smart((), 2**128 - 1)
    assert host.drain(source).grown("fault_counts") == {("nvme_media_errors", "nvme0"): 2**63 - 1}


def test_look_that_fails_is_a_source_that_failed_and_goes_on(host: FakeHost) -> None:
    def refuse(_device: Path) -> Smart:
        raise OSError("out of luck")

    source = FaultsSource(host.root, host.log, smart=refuse, start=lambda work: work())
    source.start()
    xid(79)(host)
    with pytest.raises(SourceUnavailable, match="out of luck"):
        host.drain(source)
    host.write("sys/class/nvme/nvme0/state", "dead")
    assert host.drain(source).cells == ["faulty_gpu", "ssd"]  # what was logged meanwhile, too


def test_folder_that_cannot_be_listed_ends_no_fault(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen is not gone: a host without descriptors lists nothing."""
    host.write("sys/class/nvme/nvme0/state", "dead")
    source = FaultsSource(host.root, host.log, start=lambda work: work())
    source.start()
    assert host.drain(source).cells == ["ssd"]

    def refuse(path: Path) -> Iterator[Path]:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        seen = host.drain(source)
    assert seen.events == []
    assert seen.grown("fault_gaps")["folder/failed", "faults"] > 0
    assert source.standing == (("nvme_dead", "nvme0"),)
    shutil.rmtree(host.root / "sys/class/nvme/nvme0")
    assert host.drain(source).events == [("nvme_dead_cleared", "nvme0")]


@pytest.mark.parametrize("error", [ValueError("odd"), OverflowError("large")])
def test_look_that_breaks_does_not_end_the_agent(host: FakeHost, error: Exception) -> None:
    def break_off(_device: Path) -> Smart:
        raise error

    source = FaultsSource(host.root, host.log, smart=break_off, start=lambda work: work())
    source.start()
    with pytest.raises(SourceUnavailable, match=type(error).__name__):
        host.drain(source)


def test_display_of_a_management_controller_is_no_gpu(host: FakeHost) -> None:
    host.write(f"sys/bus/pci/devices/{GPU}/vendor", "0x1a03")
    source = host.source()
    host.aer(GPU, "fatal", 3)
    assert host.drain(source).cells == ["io_expansion_board"]


def test_link_switched_off_by_hand_is_no_fault(host: FakeHost) -> None:
    source = host.source()
    host.write("sys/class/net/ens1/flags", "0x1002")
    host.write("sys/class/net/ens1/carrier", 0)
    host.say(f"mlx5_core {NIC} ens1: Link down")
    assert host.drain(source).cells == []


def test_xid_of_the_sram_places_the_unspecific_one(host: FakeHost) -> None:
    source = host.source()
    xid(48)(host)
    xid(172)(host)
    assert host.drain(source).cells == ["gpu_sram_memory"]


def test_storm_of_one_fault_is_told_once_a_minute_and_counted(host: FakeHost) -> None:
    source = host.source()
    host.say(*["I/O error, dev sda, sector 7 op 0x0:(READ)"] * 500)
    seen = host.drain(source)
    assert seen.cells == ["ssd"]
    assert seen.grown("fault_gaps")["log_faults_suppressed", "faults"] == 499
    host.say("I/O error, dev sda, sector 7 op 0x0:(READ)")
    assert host.drain(source).cells == ["ssd"]


def test_storm_of_many_faults_is_bounded(host: FakeHost) -> None:
    source = host.source()
    host.say(*[f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, gone" for bus in range(200)])
    seen = host.drain(source)
    assert len(seen.cells) == 64
    assert seen.grown("fault_gaps")["log_faults_suppressed", "faults"] == 136


def test_source_without_the_log_still_reads_sysfs_and_says_why(host: FakeHost) -> None:
    host.log.unlink()
    source = host.source()
    assert source.probe() is None
    assert isinstance(source.log_failure, ReadFailure)
    host.aer(NIC, "fatal", 9)
    assert host.drain(source).cells == ["nic"]


def test_source_that_can_see_nothing_is_absent_with_one_line(tmp_path: Path) -> None:
    reason = FaultsSource(tmp_path, tmp_path / "kmsg").probe()
    assert reason is not None
    assert "kmsg" in reason
    assert "\n" not in reason


def test_source_that_was_not_started_or_was_stopped_says_so(host: FakeHost) -> None:
    source = host.source()
    source.stop()
    source.stop()
    with pytest.raises(SourceUnavailable, match="not started"):
        list(source.drain(host.now_ns))


def test_look_that_hangs_is_not_waited_for_and_is_counted(host: FakeHost) -> None:
    held: list[Callable[[], None]] = []
    source = FaultsSource(host.root, host.log, start=held.append)
    source.start()
    for _ in range(3):
        seen = host.drain(source)
    assert len(held) == 1
    assert seen.grown("fault_gaps") == {("looks_late", "faults"): 1}
    host.say("NVRM: Xid (PCI:0000:1b:00): 79, gone")
    assert host.drain(source).cells == ["faulty_gpu"]
    held[0]()
    host.drain(source)
    host.aer(GPU, "fatal", 3)
    host.drain(source)
    held[1]()
    assert len(held) == 2


def test_unreadable_smart_page_is_a_gap(host: FakeHost) -> None:
    source = host.source()
    assert source.gaps[f"nvme_critical_warning/{FailureKind.NO_PERMISSION}"] == 1
    host.smart = Smart((), 4)
    assert host.drain(source).cells == []
    host.smart = Smart((), 6)
    assert host.drain(source).cells == ["ssd"]


@pytest.mark.root
def test_source_on_this_machine_reads_its_log_and_refuses_forged_records() -> None:
    """Live: root may write to the log, but only the kernel writes as the kernel."""
    source = FaultsSource()
    assert source.probe() is None
    source.start()
    try:
        assert source.log_failure is None
        KMSG.write_text("<2>NVRM: Xid (PCI:0000:1b:00): 79, forged by a test\n", encoding="ascii")
        at_ns = 10 * SWEEP_NS
        assert not [one for one in source.drain(at_ns) if isinstance(one, Observation)]
        assert source.log_failure is None
    finally:
        source.stop()


@pytest.mark.root
def test_source_reads_the_log_as_the_agents_user() -> None:
    """With the one capability that the configuration asks for, whatever dmesg_restrict says."""
    program = (
        "from collectors.faults.faults_source import FaultsSource\n"
        "from transport.process.privileges import AGENT_USER, drop_to, ensure_users\n"
        "ensure_users()\n"
        "kept = drop_to(AGENT_USER, ['CAP_SYSLOG']).kept\n"
        "source = FaultsSource()\n"
        "source.start()\n"
        "print(kept, source.log_failure)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout == "('CAP_SYSLOG',) None\n", ran.stderr


def test_events_and_faults_reach_the_local_views(host: FakeHost) -> None:
    source = host.source()
    host.say("I/O error, dev sda, sector 7 op 0x0:(READ)", f"mlx5_core {NIC} ens1: Link is Up")
    host.aer(GPU, "correctable", 5)
    rows = list(Flattener(CATALOGUE).rows("faults", host.drain(source).records))
    events = [(row.name, row.key) for row in rows if isinstance(row, EventRow)]
    assert events == [
        ("hardware_faults", "ssd"), ("disk_error", "sda"), ("link_lost_cleared", "ens1"),
    ]  # fmt: skip
    cells = [cell for row in rows if isinstance(row, PackedRow) for cell in row.cells]
    assert ("fault_counts.pcie_corrected", GPU) in [(cell.name, cell.key) for cell in cells]
