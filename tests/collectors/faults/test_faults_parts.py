"""Parts of the fault source: what is new, SMART pages, the doctor's lines, the rows of health."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from collectors.devices.node_health import HealthVerdict as Health
from collectors.faults.log_signs import REPEAT_NS, Tracker
from collectors.faults.scan import (
    AdminCommand,
    Count,
    FailedReading,
    Smart,
    State,
    check_host,
    get_smart_page,
    network,
    parse_page,
    probes,
    read_smart,
)
from collectors.kernel_files import Tree
from collectors.records.basics import FailureKind, ReadFailure
from edge_agent.service.doctor_sources import fault_checks
from tests.faults_kit import BRIDGE, FakeHost
from transport.process.doctor_checks import CheckVerdict, examine

HOUR = 3_600_000_000_000


def errors(value: int, per_day: int = 0) -> Count:
    return Count("errors", "mc0", value, "system_memory", per_day)


def supply(bad: bool, from_start: bool = True) -> State:
    return State("supply", "PSU1", "power_supply", bad, "Dead", from_start)


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        ([5, 5, 9], 4),
        ([5, 2], 2),  # set back to zero
        ([2**32 - 3, 4], 7),  # 32 bits went round
        ([2**63, 2**63 + 1], 1),
    ],
)
def test_counter_growth_survives_reset_and_wrap(values: list[int], grown: int) -> None:
    tracker = Tracker()
    news = [tracker.follow([errors(value)], HOUR * at) for at, value in enumerate(values)]
    assert sum(news[-1].deltas.values()) == grown
    assert news[0].deltas == {}


def test_corrected_errors_are_a_fault_above_their_daily_limit_only() -> None:
    tracker = Tracker()
    total, told = 0, []
    for hour in range(48):
        total += 4  # 96 a day leak away
        told.append(bool(tracker.follow([errors(total, 100)], HOUR * hour).faults))
    assert not any(told)
    assert tracker.follow([errors(total + 101, 100)], HOUR * 48).faults


def test_standing_fault_is_told_again_each_hour_until_it_ends() -> None:
    tracker = Tracker()
    told = [bool(tracker.follow([supply(True)], REPEAT_NS // 2 * at).faults) for at in range(5)]
    assert told == [True, False, True, False, True]
    failed = FailedReading("supply", "PSU1", ReadFailure(FailureKind.FAILED, "x"))
    assert tracker.follow([failed], 0).cleared == ()
    assert len(tracker.follow([supply(False)], HOUR).cleared) == 1
    assert tracker.standing == ()


def test_fault_of_a_device_that_is_gone_ends() -> None:
    tracker = Tracker()
    tracker.follow([supply(True)], 0)
    assert len(tracker.follow([], HOUR).cleared) == 1
    assert tracker.standing == ()


def test_state_that_was_never_good_is_no_fault_where_boards_lie() -> None:
    tracker = Tracker()
    assert not tracker.follow([supply(True, from_start=False)], 0).faults
    tracker.follow([supply(False, from_start=False)], HOUR)
    assert tracker.follow([supply(True, from_start=False)], 2 * HOUR).faults


def test_smart_command_is_the_kernels_and_only_reads() -> None:
    command = get_smart_page(0x1000)
    assert ctypes.sizeof(AdminCommand) == 72
    assert AdminCommand.address.offset == 24
    assert AdminCommand.cdw10.offset == 40
    assert (command.opcode, command.namespace, command.cdw10) == (2, 0xFFFFFFFF, 127 << 16 | 2)
    assert (command.address, command.data_bytes, command.timeout_ms) == (0x1000, 512, 0)


def test_smart_page_gives_warnings_that_are_faults_and_media_errors() -> None:
    page = bytearray(512)
    assert parse_page(bytes(page)) == Smart((), 0)
    page[0] = 0x02  # too hot: no fault of its own
    assert parse_page(bytes(page)) == Smart((), 0)
    page[0], page[160:162] = 0x04 | 0x08, b"\x01\x01"
    assert parse_page(bytes(page)) == Smart(("reliability degraded", "read-only"), 257)
    with pytest.raises(ValueError, match="512 bytes"):
        parse_page(b"")


def test_smart_of_what_is_no_drive_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "nvme0").write_bytes(b"")
    found = read_smart(tmp_path / "nvme0")
    assert isinstance(found, ReadFailure)
    assert found.kind is FailureKind.FAILED
    missing = read_smart(tmp_path / "nvme1")
    assert isinstance(missing, ReadFailure)
    assert missing.kind is FailureKind.UNSUPPORTED


def test_tree_bounds_a_file_and_names_what_it_expected(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("7" * 100_000)
    (tmp_path / "word").write_text("seven\n")
    tree = Tree(tmp_path)
    assert len(str(tree.text("long"))) == 4_096
    found = tree.number("word")
    assert isinstance(found, ReadFailure)
    assert found.reason == "word: expected a number, got 'seven'"


def test_network_leaves_out_interfaces_without_hardware(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.write("sys/class/net/veth0/carrier_down_count", 5)
    assert {one.subject for one in network(Tree(tmp_path))} == {"ens1", "mlx5_0/1"}


def test_doctor_says_what_is_read_and_one_thing_to_do_about_the_rest(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    lines = {
        one.name: one
        for one in examine(*fault_checks(tmp_path, host.log, lambda _path: host.smart))
    }
    absent = {name for name, one in lines.items() if one.verdict is CheckVerdict.ABSENT}
    assert absent == {"storage"}
    assert "as root" in (lines["storage"].do or "")
    assert "pcie_fatal" in lines["pcie"].found
    bare = list(examine(*fault_checks(tmp_path / "none", tmp_path / "none/kmsg")))
    assert {one.name for one in bare} == {"kernel_log", *probes()}
    assert all(one.verdict is CheckVerdict.ABSENT and one.do for one in bare)


def test_health_of_the_host_fails_for_its_own_reason_and_never_passes_unread(
    tmp_path: Path,
) -> None:
    host = FakeHost(tmp_path, smart=Smart((), 0))

    def verdicts() -> dict[str, Health]:
        parts = probes(lambda _path: host.smart).items()
        rows = check_host({part: list(probe(Tree(tmp_path))) for part, probe in parts})
        return {row.check: row.verdict for row in rows}

    assert set(verdicts().values()) == {Health.PASS, Health.FAIL}
    assert verdicts()["pcie_errors"] is Health.FAIL  # the fake counted two since boot
    for address in ("0000:1b:00.0", "0000:9c:00.0", BRIDGE):
        host.aer(address, "fatal", 0)
    assert set(verdicts().values()) == {Health.PASS}
    host.smart = Smart(("read-only",), 0)
    assert verdicts()["storage"] is Health.FAIL
    host.smart = ReadFailure(FailureKind.NO_PERMISSION, "root alone")
    assert verdicts()["storage"] is Health.UNKNOWN
    host.write("sys/devices/system/edac/mc/mc0/ue_count", 1)
    assert verdicts()["host_memory"] is Health.FAIL
    assert {row.verdict for row in check_host({})} == {Health.UNKNOWN}
