"""The node-health table: each row fails for its own reason, and nothing unread passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from collectors.devices.bandwidth import Bandwidth
from collectors.devices.device_port import DeviceReading, Field, Inventory, Measured
from collectors.devices.node_health import (
    HealthVerdict,
    check_named,
    check_node,
    gpus_on_pci,
    machine_types,
)
from collectors.kernel_files import Tree
from collectors.kernel_log import Sign, gpu_signs, load_rules
from collectors.records.basics import FailureKind, ReadFailure
from tests.fake_cuda_kit import FakeCuda
from tests.fake_nvml_kit import FakeDriver
from tests.golden_kit import noted

pytestmark = pytest.mark.slow

AZURE = ("nd96asr_v4", "nd96isr_h100_v5", "nd96isr_h200_v5")

WAYS = ("bandwidth_host_to_device", "bandwidth_device_to_host")
GB = 1_000_000_000
ACTION = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from"

HEALTHY: dict[Field, Measured] = {
    Field.NVLINKS_UP: 18,
    Field.NVLINKS_DOWN: 0,
    Field.ECC_VOLATILE_CORRECTED: 4,
    Field.ECC_VOLATILE_UNCORRECTED: 0,
    Field.ECC_AGGREGATE_CORRECTED: 9,
    Field.ROWS_UNCORRECTED: 1,
    Field.ROWS_PENDING: 0,
    Field.ROWS_FAILED: 0,
    Field.THROTTLE: 1,
    Field.PCIE_WIDTH: 16,
    Field.PCIE_WIDTH_MAX: 16,
    Field.PCIE_GENERATION_MAX: 5,
    Field.SM_CLOCK_MAX: 1980,
    Field.TEMPERATURE: 40,
    Field.XID_LAST: 0,
}


def _verdicts(
    change: dict[Field, Measured] | None = None,
    machine: str = "nd96isr_h100_v5",
    gpus: int = 8,
    signs: list[Sign] | ReadFailure | None = None,
    bandwidths: list[Bandwidth | ReadFailure] | None = None,
    on_pci: int | None = None,
) -> dict[str, HealthVerdict]:
    fields = [{**HEALTHY, **(change or {})} if index == 3 else HEALTHY for index in range(gpus)]
    readings = [DeviceReading(i, f"GPU-{i}", "H100", 0, 0, one) for i, one in enumerate(fields)]
    said: list[Sign] | ReadFailure = [] if signs is None else signs
    inventory, kind = Inventory(gpus, "550"), machine_types()[machine]
    rows = check_node(inventory, readings, said, kind, bandwidths, on_pci)
    return {row.check: row.verdict for row in rows}


def test_health_ships_azures_three_columns() -> None:
    types = machine_types()
    assert set(types) == {"any", *AZURE}
    assert [types[name].host_gb_per_s for name in AZURE] == [24, 48, 48]
    assert [types[name].peer_gb_per_s for name in AZURE] == [None, 335, 335]
    assert {types[name].ecc_corrected_at_most for name in AZURE} == {20_000_000}


@pytest.mark.parametrize("machine", ["any", "nd96isr_h100_v5", "nd96isr_h200_v5"])
def test_health_of_a_good_machine_passes_all_but_what_is_not_measured(machine: str) -> None:
    verdicts = _verdicts(machine=machine)
    assert [verdicts.pop(way) for way in WAYS] == [HealthVerdict.UNKNOWN] * 2
    assert set(verdicts.values()) == {HealthVerdict.PASS}
    assert len(verdicts) == 10


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("nvlink", {Field.NVLINKS_UP: 17, Field.NVLINKS_DOWN: 1}),
        ("ecc", {Field.ECC_VOLATILE_UNCORRECTED: 1}),
        ("ecc", {Field.ECC_AGGREGATE_CORRECTED: 20_000_001}),
        ("row_remap", {Field.ROWS_PENDING: 1}),
        ("row_remap", {Field.ROWS_FAILED: 1}),
        ("row_remap", {Field.ROWS_UNCORRECTED: 513}),
        ("throttling", {Field.THROTTLE: 0x40}),
        ("pcie_width", {Field.PCIE_WIDTH: 8}),
        ("clocks", {Field.SM_CLOCK_MAX: 1410}),
        ("temperature", {Field.TEMPERATURE: 91}),
        ("xid", {Field.XID_LAST: 79}),
        ("temperature", {Field.TEMPERATURE: ReadFailure(FailureKind.TIMED_OUT, "late")}),
    ],
)
def test_health_one_bad_gpu_fails_its_row_only(row: str, change: dict[Field, Measured]) -> None:
    verdicts = _verdicts(change)
    assert [name for name, one in verdicts.items() if one is HealthVerdict.FAIL] == [row]


@pytest.mark.parametrize(
    "kind", [FailureKind.UNSUPPORTED, FailureKind.FAILED, FailureKind.NO_PERMISSION]
)
def test_health_unread_row_is_unknown_never_good(kind: FailureKind) -> None:
    verdicts = _verdicts({Field.ECC_VOLATILE_UNCORRECTED: ReadFailure(kind, "x")})
    assert verdicts["ecc"] is HealthVerdict.UNKNOWN
    assert _verdicts(signs=ReadFailure(kind, "x"))["xid"] is HealthVerdict.UNKNOWN


def test_health_missing_gpu_fails_the_count_of_its_machine_type() -> None:
    assert _verdicts(gpus=7)["gpu_count"] is HealthVerdict.FAIL
    assert _verdicts(gpus=7, machine="any")["gpu_count"] is HealthVerdict.PASS


def _bandwidth(to_device: float, to_host: float) -> Bandwidth:
    down, up = int(to_device * GB), int(to_host * GB)
    return Bandwidth(down, up, down, up, 0)


@pytest.mark.parametrize(
    ("machine", "slow", "expected"),
    [
        ("nd96isr_h100_v5", _bandwidth(47.9, 48.1), ("fail", "pass")),
        ("nd96isr_h100_v5", _bandwidth(48.1, 47.9), ("pass", "fail")),
        ("nd96asr_v4", _bandwidth(24.0, 23.9), ("pass", "fail")),
        ("any", _bandwidth(47.8, 47.9), ("fail", "pass")),  # 76 % of 63 GB/s
        ("nd96isr_h100_v5", ReadFailure(FailureKind.TIMED_OUT, "late"), ("fail", "fail")),
        ("nd96isr_h100_v5", ReadFailure(FailureKind.DAMAGED, "wrong bytes"), ("fail", "fail")),
        ("nd96isr_h100_v5", ReadFailure(FailureKind.UNSUPPORTED, "none"), ("unknown", "unknown")),
    ],
)
def test_health_bandwidth_is_judged_each_way(
    machine: str, slow: Bandwidth | ReadFailure, expected: tuple[str, str]
) -> None:
    bandwidths: list[Bandwidth | ReadFailure] = [_bandwidth(60, 60)] * 7
    verdicts = _verdicts(machine=machine, bandwidths=[*bandwidths[:3], slow, *bandwidths[3:]])
    assert tuple(str(verdicts[way]) for way in WAYS) == expected


@pytest.mark.parametrize("field", [Field.PCIE_GENERATION_MAX, Field.PCIE_WIDTH_MAX])
def test_health_bandwidth_without_a_limit_is_unknown_never_good(field: Field) -> None:
    change: dict[Field, Measured] = {field: ReadFailure(FailureKind.FAILED, "x")}
    verdicts = _verdicts(change, machine="any", bandwidths=[_bandwidth(60, 60)] * 8)
    assert {verdicts[way] for way in WAYS} == {HealthVerdict.UNKNOWN}


def test_health_machine_types_hold_every_row_that_has_a_limit() -> None:
    """A row without data of its own would be held against nothing."""
    for name in AZURE:
        left_out = {key for key, limit in asdict(machine_types()[name]).items() if limit is None}
        assert left_out == ({"peer_gb_per_s"} if name == "nd96asr_v4" else set())


def _signs(folder: Path, *messages: str) -> list[Sign]:
    log = folder / "kmsg"
    log.write_text(
        "".join(f"4,{seq},{seq},-;{text}\n" for seq, text in enumerate(messages)), encoding="ascii"
    )
    found = gpu_signs(log)
    assert isinstance(found, list)
    return found


def test_health_reads_xids_of_the_kernel_log(tmp_path: Path) -> None:
    found = _signs(
        tmp_path,
        "usb 1-1: new device",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=9, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:5c:00): 13, Graphics Exception",
    )
    assert [(sign.subject, sign.name) for sign in found] == [
        ("0000:1b:00", "xid_79"), ("0000:5c:00", "xid_13"),
    ]  # fmt: skip
    assert _verdicts(signs=found)["xid"] is HealthVerdict.FAIL
    assert _verdicts(signs=found[1:])["xid"] is HealthVerdict.PASS
    assert isinstance(gpu_signs(tmp_path / "none"), ReadFailure)


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("NVRM: Xid (PCI:0018:01:00): 146, TLW_RX Fatal XC0 i0 Link 13 (0x1 0x2)", "fail"),
        ("NVRM: Xid (PCI:0018:01:00): 147, TREX Nonfatal XC1 i0 Link 02 (0x1 0x2)", "pass"),
        (
            f"{ACTION} 0x0 (None) to 0x2 (Node Reboot Required)",
            "fail",
        ),
        (
            f"{ACTION} 0x1 (GPU Reset Required) to 0x0 (None)",
            "pass",
        ),
        ("NVRM: Xid (PCI:0000:18:00): 9, pid=7, name=x, something", "unknown"),
        ("NVRM: Xid (PCI:0000:18:00): 301, Fatal in a year to come", "fail"),
        ("NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "fail"),
        ("NVRM: rm_init_adapter failed, device minor number 3", "fail"),
        ("NVRM: GPU at PCI:0000:5e:00.0 has fallen off the bus.", "fail"),
        ("amdgpu 0000:0c:00.0: device lost from bus!", "fail"),
        ("amdgpu 0000:0c:00.0: probe with driver amdgpu failed with error -110", "fail"),
        ("amdgpu 0000:0c:00.0: amdgpu: GPU Recovery Failed: -125", "fail"),
        ("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 12028, Fatal, Link 31 egress", "fail"),
        ("nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20009, Non-fatal, Link 04 RX", "pass"),
    ],
)
def test_health_judges_the_log_by_what_a_message_says(
    tmp_path: Path, message: str, verdict: str
) -> None:
    """A code that no list has fails, passes or is unknown as its words tell: it never passes."""
    signs = _signs(tmp_path, message)
    verdicts = _verdicts(signs=signs)
    unknown = [name for name in verdicts if name.startswith("xid_")]
    assert [verdicts[name] for name in unknown] == ["unknown"] * (verdict == "unknown")
    assert verdicts["xid"] == (verdict if verdict != "unknown" else "pass")


def test_health_a_code_of_the_driver_that_no_list_has_is_a_row() -> None:
    verdicts = _verdicts({Field.XID_LAST: 163})
    assert verdicts["xid_163"] is HealthVerdict.UNKNOWN
    assert _verdicts({Field.XID_LAST: 95})["xid"] is HealthVerdict.FAIL
    assert load_rules().knows(95)


def test_health_links_that_nobody_has_up_are_unknown() -> None:
    """A board can have links and no bridge; a peer that has some says that they should be up."""
    down: dict[Field, Measured] = {Field.NVLINKS_UP: 0, Field.NVLINKS_DOWN: 12}
    assert _verdicts(down, machine="any")["nvlink"] is HealthVerdict.FAIL
    assert _verdicts(down, machine="nd96asr_v4")["nvlink"] is HealthVerdict.FAIL
    alone = DeviceReading(0, "GPU-0", "A100-PCIE-40GB", 0, 0, HEALTHY | down)
    rows = check_node(Inventory(1, "550"), [alone], [], machine_types()["any"])
    (row,) = (row for row in rows if row.check == "nvlink")
    assert row.verdict is HealthVerdict.UNKNOWN
    assert "all of 12 links are down" in row.reason


def test_health_clocks_that_an_operator_set_are_said() -> None:
    reading = DeviceReading(0, "GPU-0", "H100", 0, 0, HEALTHY | {Field.THROTTLE: 0x13})
    rows = check_node(Inventory(1, "550"), [reading], [], machine_types()["any"])
    (row,) = (row for row in rows if row.check == "throttling")
    assert row.verdict is HealthVerdict.PASS
    assert "GPU 0: application clocks, sync boost, as an operator set them" in row.reason
    assert _verdicts({Field.THROTTLE: 0x12 | 0x8})["throttling"] is HealthVerdict.FAIL


@pytest.mark.parametrize("machine", ["any", "nd96asr_v4"])
def test_health_without_a_device_nothing_passes(machine: str) -> None:
    assert HealthVerdict.PASS not in _verdicts(machine=machine, gpus=0).values()


@pytest.mark.parametrize(("on_pci", "verdict"), [(9, "fail"), (8, "pass"), (0, "pass")])
def test_health_a_gpu_that_pci_lists_and_the_driver_does_not_fails(
    on_pci: int, verdict: str
) -> None:
    assert _verdicts(machine="any", on_pci=on_pci)["gpu_count"] == verdict


def test_health_counts_on_pci_what_the_driver_should_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    devices = tmp_path / "sys/bus/pci/devices"
    for number, (kind, vendor, driver) in enumerate([
        ("0x030200", "0x10de", "nvidia"), ("0x030200", "0x10de", ""),
        ("0x030200", "0x10de", "vfio-pci"), ("0x068000", "0x10de", "nvidia-nvswitch"),
        ("0x030200", "0x1002", "amdgpu"), ("0x020000", "0x15b3", "mlx5_core"),
    ]):  # fmt: skip
        device = devices / f"0000:{number:02x}:00.0"
        device.mkdir(parents=True)
        (device / "class").write_text(kind)
        (device / "vendor").write_text(vendor)
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    assert gpus_on_pci(Tree(tmp_path)) == 2
    (devices / "0000:00:00.0" / "physfn").mkdir()
    assert gpus_on_pci(Tree(tmp_path)) == 1
    (tmp_path / ".dockerenv").touch()
    assert gpus_on_pci(Tree(tmp_path)) is None


def _command(
    driver: FakeDriver, *arguments: str, cuda: FakeCuda | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **driver.environment}
    if cuda is not None:
        paths = (driver.library.parent, cuda.library.parent)
        environment |= {**cuda.environment, "LD_LIBRARY_PATH": ":".join(map(str, paths))}
    return subprocess.run(
        [sys.executable, "-m", "pointillist", "agent", "health", "--json", *arguments],
        env=environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_health_command_judges_what_the_library_on_the_path_says(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.play("5 nvmlDeviceGetRemappedRows value 0 0 1 0", "6 * error 15")
    ran = _command(driver, "--machine", "nd96isr_h100_v5")
    body = json.loads(noted(["agent", "health"], ran.stdout))
    checks = {one["check"]: one for one in body["checks"]}
    assert (ran.returncode, body["healthy"]) == (1, False)
    assert "GPU 5: a row remap is pending" in checks["row_remap"]["reason"]
    assert checks["gpu_count"]["reason"] == "7 of 8 answer, 8 expected"
    assert "GPU 6: unplugged" in checks["temperature"]["reason"]


def test_health_command_measures_when_asked_and_says_who_uses_a_gpu(tmp_path: Path) -> None:
    driver, cuda = FakeDriver(tmp_path), FakeCuda(tmp_path)
    driver.play(
        "gpus 2", f"0 nvmlDeviceGetComputeRunningProcesses_v3 value {os.getpid()} 4096",
        "1 nvmlDeviceGetMigMode value 1 1",
    )  # fmt: skip
    cuda.play("gpus 2", "0 to_host value 3000", "1 to_host value 55000")
    body = json.loads(_command(driver, "--active", cuda=cuda).stdout)
    checks = {one["check"]: one for one in body["checks"]}
    assert checks[WAYS[0]]["verdict"] == "pass"
    assert checks[WAYS[1]]["verdict"] == "fail"
    assert checks[WAYS[1]]["reason"] == "GPU 0: 3.0 GB/s, at least 47.9 expected"
    assert cuda.calls["cuInit"] == 2
    first, second = body["gpus"]
    assert round(first["bandwidth"]["to_host_bytes_per_s"] / GB, 3) == 3.0
    assert [(one["pid"], one["memory_bytes"]) for one in first["processes"]] == [
        (os.getpid(), 4096)
    ]
    assert first["fields"]["pcie_replays"] == 0
    assert first["fields"]["fan_percent"].startswith("unsupported")
    assert [part["sm_percent"] for part in second["mig_instances"]] == [40, 40]
    assert second["not_told"][0].startswith("MIG: NVML gives no SM share by process")


def test_health_command_moves_no_bytes_unless_asked(tmp_path: Path) -> None:
    driver, cuda = FakeDriver(tmp_path), FakeCuda(tmp_path)
    body = json.loads(_command(driver, cuda=cuda).stdout)
    checks = {one["check"]: one for one in body["checks"]}
    assert checks[WAYS[0]]["reason"] == "not measured: --active does"
    assert "bandwidth" not in body["gpus"][0]
    assert not cuda.calls


def test_health_command_of_a_cleared_error_passes_again(tmp_path: Path) -> None:
    driver, verdicts = FakeDriver(tmp_path), []
    for scenario in ("0 nvmlDeviceGetTotalEccErrors.1.0 value 2", ""):
        driver.play("gpus 1", scenario)
        checks = json.loads(_command(driver).stdout)["checks"]
        verdicts += [one["verdict"] for one in checks if one["check"] == "ecc"]
    assert verdicts == ["fail", "pass"]


def test_health_command_tells_a_driver_that_was_updated_to_reboot(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.play("* nvmlInitWithFlags error 18")
    assert "the driver was updated while it was loaded; reboot" in _command(driver).stderr


@pytest.mark.parametrize(("machine", "code"), [("any", 4), ("nd96isr_h200_v5", 1)])
def test_health_command_without_a_driver_fails_a_machine_that_has_gpus(
    tmp_path: Path, machine: str, code: int
) -> None:
    driver = FakeDriver(tmp_path)
    driver.play("* nvmlInitWithFlags error 9")
    ran = _command(driver, "--machine", machine)
    assert ran.returncode == code
    assert "Driver Not Loaded" in ran.stdout + ran.stderr


def _configuration(folder: Path, *uuids: str) -> str:
    path, models = folder / "agent.toml", ["H100"] * len(uuids)
    path.write_text(
        f'[host]\nkey_file = "{folder}/host.key"\nstate_dir = "{folder}"\n'
        f"gpus = {json.dumps(models)}\ngpu_uuids = {json.dumps(uuids)}\n"
        f'[transport]\nfolder = "{folder}/log"\n'
        f'[trust]\nleaders = ["{"ab" * 32}"]\nhelpers = ["{"cd" * 32}"]\n',
        encoding="utf-8",
    )
    return str(path)


def test_health_expects_the_gpus_that_a_configuration_names() -> None:
    readings = [DeviceReading(index, f"GPU-{index}a", "H100", 0, 0, HEALTHY) for index in range(2)]
    there = [each.id.upper() for each in readings]
    assert check_named(there, readings).verdict is HealthVerdict.PASS
    row = check_named([*there, "GPU-gone"], readings)
    assert row.verdict is HealthVerdict.FAIL
    assert row.reason == "1 of the configuration's 3 do not: GPU-gone"
    silent = replace(readings[0], fields={Field.POWER: ReadFailure(FailureKind.FAILED, "gone")})
    assert check_named(there[:1], [silent]).verdict is HealthVerdict.FAIL


@pytest.mark.parametrize(("uuids", "code"), [(("GPU-gone",), 1), ((), 0)])
def test_health_command_without_a_driver_judges_what_the_configuration_names(
    tmp_path: Path, uuids: tuple[str, ...], code: int
) -> None:
    driver = FakeDriver(tmp_path)
    driver.play("* nvmlInitWithFlags error 9")
    ran = _command(driver, "--config", _configuration(tmp_path, *uuids))
    checks = {row["check"]: row for row in json.loads(ran.stdout)["checks"]}
    if code:
        assert ran.returncode == code
        assert "Driver Not Loaded" in checks["driver"]["reason"]
        assert "do not: GPU-gone" in checks["gpus_named"]["reason"]
    else:  # as the parts of this machine are
        assert ran.returncode in {0, 1}, ran.stderr
        assert not {"driver", "gpu_count", "gpus_named"} & checks.keys()
        assert "host_memory" in checks


def test_health_command_refuses_a_machine_it_does_not_know(tmp_path: Path) -> None:
    ran = _command(FakeDriver(tmp_path), "--machine", "cray")
    assert ran.returncode == 2
    assert "expected one of any, nd96asr_v4" in ran.stderr
