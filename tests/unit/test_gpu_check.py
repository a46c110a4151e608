"""`make gpu-check`: a clear skip without a GPU, and a comparison that can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu_check import COMPARED, _differs
from tests.fake_nvml_kit import FakeDriver

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def test_gpu_check_without_a_gpu_is_a_skip_that_says_so(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", str(SCRIPT)],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "skipped, this machine has no NVIDIA GPU" in ran.stdout


@pytest.mark.parametrize(
    ("ours", "theirs", "differs"),
    [
        (700_000, "700.00", False),
        (700_020, "700.00", True),
        (None, "700.00", True),
        (None, "[N/A]", False),
        (5, "[N/A]", True),
    ],
)
def test_gpu_check_finds_a_difference(ours: int | None, theirs: str, differs: bool) -> None:
    (limit,) = (one for one in COMPARED if one[0] == "power_limit_mw")
    assert _differs(0, limit[0], ours, theirs, limit[2], limit[3]) is differs


NVIDIA_SMI = """#!/bin/sh
echo "GPU-00000000-0000-0000-0000-000000000000, 81920, 8192, 300.00, {limit}, 41, 1980, 16, 0, 0"
"""


@pytest.mark.parametrize(("limit", "code"), [("700.00", 0), ("650.00", 1)])
def test_gpu_check_compares_a_driver_with_nvidia_smi(tmp_path: Path, limit: str, code: int) -> None:
    driver = FakeDriver(tmp_path)
    driver.play("gpus 1")
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(limit=limit), encoding="ascii")
    program.chmod(0o755)
    script = (
        "import sys; from pathlib import Path; from scripts import gpu_check as check; "
        "check.DEVICE = Path('/dev/null'); sys.exit(check.main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **driver.environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert ("power_limit_mw" in ran.stdout) is bool(code)


@pytest.mark.gpu
def test_gpu_check_agrees_with_nvidia_smi_on_this_machine() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=110
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
