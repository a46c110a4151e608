"""`make gpu-check`: its own code without a GPU, and a comparison that can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check import COMPARED, NAMES, agrees
from scripts.gpu_present import OUT
from tests.fake_cuda_kit import FakeCuda
from tests.fake_nvml_kit import FakeDriver

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
BY_NAME = {one.field: one for one in COMPARED}

SMI = {
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "550.54.15",
    "memory.total": "81920",
    "memory.used": "8192",
    "power.draw": "300.00",
    "enforced.power.limit": "700.00",
    "temperature.gpu": "41",
    "fan.speed": "[N/A]",
    "clocks.sm": "1980",
    "clocks.mem": "2619",
    "clocks.max.sm": "1980",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "clocks_throttle_reasons.active": "0x0000000000000000",
    "mig.mode.current": "Disabled",
}

FAKE_SMI = """#!{python} -IS
import json, sys
from pathlib import Path

told = json.loads(Path({told!r}).read_text())
asked = next((one for one in sys.argv if one.startswith("--query-gpu=")), "")
if not asked:
    print("GPU 0: NVIDIA H100")
    print("\\n".join(f"\\t Link {{n}}: {{speed}}" for n, speed in enumerate(told["links"])))
    sys.exit(0)
names = asked.partition("=")[2].split(",")
for name in names:
    if name in told["unknown"]:
        print(f'Field "{{name}}" is not a valid field to query.')
        sys.exit(2)
values = told["values"]
said = [values.get(name, "0") for name in names]
print(", ".join(one.pop(0) if isinstance(one, list) and len(one) > 1 else
                one[0] if isinstance(one, list) else one for one in said))
Path({told!r}).write_text(json.dumps(told))
"""

CHECK = (
    "import sys; from pathlib import Path; from scripts import gpu_check as check, gpu_present; "
    "gpu_present.nvidia_gpus = lambda: [Path('/dev/nvidia0')]; "
    "check.TRIES = 3; sys.exit(check.main())"
)


class Machine:
    """A machine with one fake GPU, a fake nvidia-smi and a fake CUDA driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver, self.cuda = FakeDriver(folder), FakeCuda(folder)
        self.driver.play("gpus 1")
        self.cuda.play("gpus 1")
        self.told: dict[str, Any] = {"values": dict(SMI), "links": ["26.562 GB/s"] * 18}
        self.told["unknown"] = []
        program = folder / "nvidia-smi"
        told = str(folder / "told.json")
        program.write_text(FAKE_SMI.format(python=sys.executable, told=told), encoding="ascii")
        program.chmod(0o755)

    def check(self) -> subprocess.CompletedProcess[str]:
        (self.folder / "told.json").write_text(json.dumps(self.told))
        libraries = f"{self.driver.library.parent}:{self.cuda.library.parent}"
        return subprocess.run(
            [sys.executable, "-c", CHECK],
            env={
                **os.environ, **self.driver.environment, **self.cuda.environment,
                "LD_LIBRARY_PATH": libraries, OUT: str(self.folder / "out"),
                "PATH": f"{self.folder}:{os.environ['PATH']}",
            },
            cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    @property
    def written(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.folder / "out" / "gpu_check.json").read_text())
        return body


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_gpu_check_without_a_gpu_says_so_with_its_own_code(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "scripts.gpu_check"], env={"PATH": str(tmp_path)},
        cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 77
    assert "this machine has no NVIDIA GPU" in ran.stdout


def test_gpu_check_needs_nothing_but_the_standard_library_and_the_kit() -> None:
    """No site-packages: what it imports must be there on a bare machine, but for pynvml."""
    modules = ("bandwidth", "bounded", "device_port", "node_health")
    imports = "; ".join(f"import collectors.devices.{name}" for name in modules)
    imports += "; import collectors.kernel_log, collectors.records.basics"
    script = f"import sys; sys.path.insert(0, {str(SCRIPT.parents[1])!r}); {imports}"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("field", "looks", "theirs", "same"),
    [
        ("power_limit_mw", [700_000, 700_000], "700.00", True),
        ("power_limit_mw", [700_020, 700_020], "700.00", False),
        ("power_limit_mw", [None, None], "700.00", False),
        ("power_limit_mw", [None, None], "[N/A]", True),
        ("power_limit_mw", [5, 5], "[N/A]", False),
        ("power_mw", [300_000, 350_000], "321.50", True),  # it moved between two looks
        ("power_mw", [300_000, 350_000], "350.02", False),
        ("memory_used_bytes", [(8 << 30) + 1000, (8 << 30) + 1000], "8192", True),
        ("memory_used_bytes", [8 << 30, 8 << 30], "8194", False),
        ("throttle_reasons", [0x40, 0x40], "0x0000000000000040", True),
        ("throttle_reasons", [0x40, 0x40], "0x0000000000000000", False),
        ("mig_enabled", [1, 1], "Enabled", True),
        ("mig_enabled", [0, 0], "Enabled", False),
    ],
)
def test_gpu_check_agrees_within_nvidia_smis_resolution(
    field: str, looks: list[int | None], theirs: str, same: bool
) -> None:
    assert agrees(BY_NAME[field], looks, theirs) is same


def test_gpu_check_of_a_machine_that_agrees_writes_what_it_read(machine: Machine) -> None:
    machine.told["unknown"] = ["pcie.link.gen.current"]  # as an old nvidia-smi
    ran = machine.check()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    body = machine.written
    figures = {one["name"]: one["value"] for one in body["figures"]}
    assert round(figures["slowest_device_to_host_gb_per_s"]) == 55
    assert figures["differences"] == 0
    assert body["as_nvidia_smi_has_it"]
    (gpu,) = body["gpus"]
    assert set(gpu["compared"]) == {one.field for one in COMPARED} - {"pcie_generation"} | {
        "nvlinks_up"
    }
    assert gpu["not_asked"] == ["pcie.link.gen.current"]
    assert gpu["fields"]["power_mw"] == 300_000
    assert set(gpu["gaps"]) == {"fan_percent"}
    assert round(gpu["bandwidth"]["to_device_bytes_per_s"] / 1e9) == 55
    assert {row["check"]: row["verdict"] for row in body["health"]}[
        "bandwidth_device_to_host"
    ] == "pass"
    assert "GB/s to it and back" in ran.stdout


@pytest.mark.parametrize("name", [NAMES[0], "power.draw"])
def test_gpu_check_names_what_differs(machine: Machine, name: str) -> None:
    machine.told["values"][name] = "77"
    ran = machine.check()
    assert ran.returncode == 1
    (difference,) = machine.written["differences"]
    assert "nvidia-smi has 77" in difference


def test_gpu_check_looks_again_at_what_moved(machine: Machine) -> None:
    machine.told["values"]["power.draw"] = ["310.00", "305.00", "300.00"]
    ran = machine.check()
    assert ran.returncode == 0, ran.stdout


def test_gpu_check_counts_nvlinks_and_moves_bytes(machine: Machine) -> None:
    machine.told["links"][3] = "<inactive>"
    machine.cuda.play("gpus 1", "0 corrupt value 1")
    ran = machine.check()
    assert ran.returncode == 1
    links, bandwidth = machine.written["differences"]
    assert links == "GPU 0: 18 NVLinks up, nvidia-smi has 17"
    assert "not those that were sent" in bandwidth


def test_gpu_check_that_cannot_be_done_is_neither_good_nor_a_difference(machine: Machine) -> None:
    machine.driver.play("* nvmlInitWithFlags error 9")
    ran = machine.check()
    assert ran.returncode == 2
    assert "not checked: NVML: Driver Not Loaded" in ran.stdout


@pytest.mark.gpu
def test_gpu_check_agrees_with_nvidia_smi_on_this_machine() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.gpu_check"],
        cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
