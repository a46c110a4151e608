"""The probes' check on a GPU machine counts a real process through the agent's own source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import gpu_probes
from scripts.gpu_probes import Loop, Probes, attached
from tests.fake_cuda_kit import FakeCuda
from tests.probes_kit import Stubs, compile_stub

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[3]
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
    with Loop("inference", command) as loop:
        probes.on()
        try:
            error, named = gpu_probes.check_counts(loop, probes)
        finally:
            probes.off()
    assert (error, named) == (0.0, 0.0)


@pytest.mark.root
@pytest.mark.kernel
def test_gpu_check_counts_the_kit_s_own_program_by_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a fake driver; what it loads is probed by the time that it runs a second time."""
    program = tmp_path / "driver"
    compile_stub(ROOT / "scripts" / "gpu_programs" / "driver.c", "-ldl", "-o", program)
    (tmp_path / "kernels.ptx").touch()
    for name, value in FakeCuda(tmp_path).environment.items():
        monkeypatch.setenv(name, value)
    probes, command = Probes(budget=0.99), [str(program)]
    with attached(probes, "cubin", command), Loop("cubin", command) as loop:
        assert gpu_probes.check_counts(loop, probes) == (0.0, 1.0)
