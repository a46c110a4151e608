"""Arguments are found where the calling conventions of x86-64 and arm64 put them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.probes_kit import STUBS, compile_stub

BPF = Path(__file__).parents[3] / "bpf"


@pytest.mark.parametrize("machine", ["ARGUMENTS_X86_64", "ARGUMENTS_ARM64"])
def test_arguments_are_read_from_registers_stack_and_memory(machine: str, tmp_path: Path) -> None:
    program = tmp_path / "places"
    compile_stub(f"-D{machine}", f"-I{BPF}", STUBS / "places.c", "-o", program)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert said[:12] == [str(100 + slot) for slot in range(12)]
    assert said[12:15] == ["30", "24", "24"]
    assert said[15] == str((1 << 40) * 8)
    assert said[16:20] == ["103", "206", "824", "0"]
    assert said[20:] == ["0", "cafe"]
