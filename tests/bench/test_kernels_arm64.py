"""Tests of the GPU probes inside a kernel of arm64 with pages of 16 KiB, emulated."""

from __future__ import annotations

import subprocess

import pytest

from bench.kernels_arm64 import KERNELS, ready, run_inside

TESTS = tuple(
    f"tests/collectors/gpu_calls/test_{name}.py" for name in ("real_runtimes", "calibration_target")
)
PLUGINS = ("pytest_timeout", "xdist.plugin", "pytest_rerunfailures")
OPTIONS = ("addopts=--strict-markers --import-mode=importlib", "timeout=200")


@pytest.mark.release
@pytest.mark.root
@pytest.mark.timeout(900)
def test_probes_count_the_real_runtimes_on_arm64_in_pages_of_16_kib() -> None:
    try:
        ready()
    except subprocess.CalledProcessError as error:
        if error.returncode != 77:
            raise
        pytest.skip("needs a Debian of arm64, as scripts/arm64_root.sh lays it")
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    options = [word for name in OPTIONS for word in ("-o", name)]
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *options, *TESTS)
    said = run_inside(KERNELS[-1], *words, most_s=600)
    assert "12 passed in " in said, said
