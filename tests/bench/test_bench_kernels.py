"""Other kernels: Debian's, booted; and those before, by what our objects ask of a kernel."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from pathlib import Path

import pytest

from bench import kernels
from bench.kernels import KERNELS, NEWER, asked_of_kernels, least_kernel

OBJECTS = Path(__file__).parents[2] / "bpf" / "objects"
PATIENCE_S = 600


@pytest.mark.release
@pytest.mark.root
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("version", KERNELS)
def test_a_kernel_of_debians_takes_all_programs_and_counts_up_to_a_report(version: str) -> None:
    """One boot: programs, launches by the agent's user, the host, the doctor, an agent's report."""
    if platform.machine() != "x86_64" or shutil.which("qemu-system-x86_64") is None:
        pytest.skip("needs x86_64 and qemu-system-x86, as make test-all installs it")
    seen = kernels.under(version)
    if not seen:
        pytest.skip(f"apt's sources have no Linux {version}")
    assert seen["release"].startswith(f"{version}.")
    assert list(kernels.objections(seen)) == []


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("host.bpf.o", "5.11"),
        ("steps.bpf.o", "5.15"),
        ("gpu.x86_64.bpf.o", "5.15"),
        ("gpu.aarch64.bpf.o", "5.15"),
    ],
)
def test_objects_ask_nothing_of_kernels_that_linux_5_15_lacks(name: str, least: str) -> None:
    """By helpers and instructions, not run: no registry serves that kernel."""
    assert least_kernel(OBJECTS / name) == least


def test_what_only_newer_kernels_have_is_in_the_timer_alone() -> None:
    asked = asked_of_kernels(OBJECTS / "host.bpf.o")
    newer = {name for name, of in asked.items() if {"5.17", "5.19"} & {*of.values()}}
    assert newer
    assert newer <= {*NEWER}
    counted = Counter(what for of in asked.values() for what in of)
    assert counted["helper 1"] > 15
