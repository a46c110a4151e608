"""What `make gpu-kit` packs for a bare GPU machine: cubins, programs, Python packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from scripts import gpu_programs
from scripts.gpu_probes import Loop
from scripts.gpu_programs import PROGRAMS
from scripts.gpu_programs.cubins import CUBIN, PTX, SIGNATURES, CompileError, Compiler
from tests.fake_cuda_kit import FakeCuda
from tests.foreign_kit import Headers, faults
from tests.real_libraries import DRIVER, NVRTC, unpacked

ROOT = Path(__file__).parents[2]
KERNELS = {"pointillist_empty", "pointillist_busy"}
CUDA_MACHINE, H100 = 190, 90
"""EM_CUDA, and the architecture in the low byte of its flags."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, built as the kit builds them."""
    unpacked(NVRTC)
    folder = tmp_path_factory.mktemp("kit")
    build = ROOT / "scripts" / "gpu_programs" / "build.sh"
    subprocess.run([build, folder], check=True, timeout=100)
    return folder


def ran(kit: Path, loop: str, libraries: Path) -> tuple[int, str]:
    """Run a loop's program to its end; give its exit code and output."""
    ended = subprocess.run(
        [kit / PROGRAMS[loop], loop], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env={"LD_LIBRARY_PATH": str(libraries)}, timeout=30, check=False,
    )  # fmt: skip
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_cubin_is_an_h100_s_and_has_both_kernels(kit: Path) -> None:
    code = (kit / CUBIN).read_bytes()
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == CUDA_MACHINE
    assert code[48] == H100
    assert all(name.encode() in code for name in KERNELS)


def test_ptx_is_for_every_gpu_since_volta(kit: Path) -> None:
    text = (kit / PTX).read_text(encoding="ascii")
    assert ".target sm_70" in text
    assert set(re.findall(r"\.visible \.entry (\w+)", text)) == KERNELS


def test_compiler_says_what_it_refuses() -> None:
    compiler = Compiler(unpacked(NVRTC))
    with pytest.raises(CompileError, match=r'kernels.cu\(1\): error: identifier "nonsense"'):
        compiler.cubin(b"__global__ void a() { nonsense; }")


def test_declared_calls_of_the_compiler_are_those_of_its_header() -> None:
    folder = unpacked(NVRTC).parents[1] / "include"
    assert faults(SIGNATURES, Headers(("nvrtc.h",), (folder,))) == {}


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("launches", "expected the driver's library, libcuda.so.1: it is not there"),
        ("runtime", "cudaSetDevice: CUDA driver version is insufficient for CUDA runtime version"),
    ],
)
def test_programs_say_that_there_is_no_driver(
    kit: Path, loop: str, said: str, tmp_path: Path
) -> None:
    code, output = ran(kit, loop, tmp_path)
    assert (code, output.startswith(said)) == (1, True), output


@pytest.mark.root
@pytest.mark.usefixtures("no_node_is_left")
@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("launches", "cuInit: CUDA_ERROR_NO_DEVICE (100)\n"),
        ("cubin", "cuInit: CUDA_ERROR_NO_DEVICE (100)\n"),
        ("runtime", "cudaSetDevice: no CUDA-capable device is detected (100)\n"),
        ("replay", "cudaSetDevice: no CUDA-capable device is detected (100)\n"),
    ],
)
def test_programs_say_that_the_real_driver_finds_no_device(kit: Path, loop: str, said: str) -> None:
    assert ran(kit, loop, unpacked(DRIVER).parent) == (1, said)


def test_programs_refuse_another_word(kit: Path) -> None:
    for program in set(PROGRAMS.values()):
        ended = subprocess.run([kit / program, "x"], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout[:17]) == (2, "expected one word")


def test_a_program_is_steered_by_lines_and_times_by_the_device_s_events(
    kit: Path, tmp_path: Path
) -> None:
    fake = FakeCuda(tmp_path)
    with Loop("cubin", [str(kit / "driver")], fake.environment) as loop:
        before = fake.calls["cuLaunchKernel"]
        assert loop.steps(20) > 0
        assert fake.calls["cuLaunchKernel"] - before == 20
        assert loop.times(7) == {"pointillist_busy": (7, 7_000_000)}
    (kit / CUBIN).rename(kit / "gone")
    try:  # on another GPU, whose driver refuses the cubin
        with Loop("launches", [str(kit / "driver")], fake.environment) as loop:
            assert loop.profile(3) == {"pointillist_empty": 3}
    finally:
        (kit / "gone").rename(kit / CUBIN)


def test_loops_are_those_whose_program_is_built(
    kit: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_programs, "KIT", tmp_path)
    assert gpu_programs.commands() == {}
    monkeypatch.setattr(gpu_programs, "KIT", kit)
    assert set(gpu_programs.commands()) == set(PROGRAMS)


NEEDED = """
import sys
sys.path[:0] = sys.argv[1:]
import scripts.gpu_check, scripts.gpu_pressure, scripts.gpu_probes as probes
import scripts.gpu_time.__main__, scripts.gpu_time.measures, scripts.pressure
import bench.record, kernels.families
import collectors.binaries.probe_offset, collectors.devices.nvml, collectors.devices.bandwidth
probes.Probes(0.5), probes.families_known({"gemm": 1}), probes.missing_symbols("self")
"""


def test_kit_packs_every_package_that_the_check_imports(tmp_path: Path) -> None:
    """Seen are the packages that the kit's script names, and the standard library."""
    script = (ROOT / "scripts" / "gpu_kit.sh").read_text()
    (line,) = re.findall(r"--constraint requirements/dev\.txt \\\n +(.*)\n", script)
    for package in line.split():
        packed = metadata.distribution(package)
        for top in {path.parts[0] for path in packed.files or ()} - {".."}:
            (tmp_path / top).symlink_to(Path(str(packed.locate_file(top))))
    command = [sys.executable, "-I", "-S", "-c", NEEDED, str(ROOT), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60, env={"PATH": os.environ["PATH"]})
