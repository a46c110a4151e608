"""Tests of the GPU probes inside a kernel of arm64 with pages of 16 KiB, emulated."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from bench.kernels_arm64 import FOLDER, KERNELS, PACKAGES, ready, run_inside

AARCH64 = 183
TESTS = tuple(
    f"tests/collectors/gpu_calls/test_{name}.py" for name in ("real_runtimes", "calibration_target")
)
PLUGINS = ("pytest_timeout", "xdist.plugin", "pytest_rerunfailures")
OPTIONS = ("addopts=--strict-markers --import-mode=importlib", "timeout=200")


pytestmark = [pytest.mark.release, pytest.mark.root, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def machine() -> None:
    try:
        ready()
    except subprocess.CalledProcessError as error:
        if error.returncode != 77:
            raise
        pytest.skip("needs a Debian of arm64, as scripts/arm64_root.sh lays it")


def test_the_debian_package_of_arm64_has_no_code_of_another_machine() -> None:
    agent = FOLDER / "root" / PACKAGES.relative_to("/") / "agent"
    of_both = set(agent.rglob("cupti/objects/*.so"))
    machines = Counter[int]()
    for path in set(agent.rglob("*.so*")) - of_both:
        with path.open("rb") as file:
            head = file.read(20)
        if head.startswith(b"\x7fELF"):
            machines[int.from_bytes(head[18:20], "little")] += 1
    assert set(machines) == {AARCH64}
    assert machines[AARCH64] > 100
    assert {path.name.split(".")[1] for path in of_both} == {"x86_64", "aarch64"}


def test_probes_count_the_real_runtimes_on_arm64_in_pages_of_16_kib() -> None:
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    options = [word for name in OPTIONS for word in ("-o", name)]
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *options, *TESTS)
    said = run_inside(KERNELS[-1], *words, most_s=600)
    assert "12 passed in " in said, said
