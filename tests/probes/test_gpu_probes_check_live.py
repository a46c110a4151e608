"""The probes' check on a GPU machine counts a real process through the agent's own source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import gpu_probes
from scripts.gpu_probes import Probes, running
from tests.probes_kit import Stubs

LOOP = """
import ctypes, sys
class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]
launch = ctypes.CDLL(sys.argv[1]).cudaLaunchKernel
launch.argtypes = [ctypes.c_void_p, Dim3, Dim3, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p]
print("ready", flush=True)
for line in sys.stdin:
    what, number = line.split()
    for _ in range(int(number)):
        launch(0x10000, Dim3(1, 1, 1), Dim3(1, 1, 1), None, 0, None)
    print('{"square(float*)": [%s, 0]}' % number if what == "profile" else 1.0, flush=True)
"""


@pytest.mark.root
@pytest.mark.kernel
def test_gpu_check_counts_the_steps_of_a_loop_exactly(stubs: Stubs, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, str(tmp_path / "loop.py"), str(stubs.library("libcudart"))]
    probes = Probes(budget=0.99)
    with running("inference", command) as loop:
        probes.on()
        try:
            error, named = gpu_probes.check_counts(loop, probes)
        finally:
            probes.off()
    assert (error, named) == (0.0, 0.0)
