"""The shared object whose functions mark steps, compiled when the bench is set up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench.record import CACHE

SOURCE: Final = Path(__file__).parent / "marks.c"
STEP_SYMBOL: Final = "pointillist_step"
REQUEST_SYMBOL: Final = "pointillist_request"


def build_marks(folder: Path = CACHE / "diagnosis") -> Path:
    """Compile marks.c where it is newer than its object; returns the shared object's path.

    Raises      RuntimeError without a compiler, or what the compiler said
    """
    target = folder / "libpointillist_marks.so"
    if target.exists() and target.stat().st_mtime >= SOURCE.stat().st_mtime:
        return target
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("expected gcc or clang, found neither: make tools")
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-g0", "-shared", "-fPIC", "-fcf-protection=none"]
    made = target.with_suffix(".partial")
    done = subprocess.run(
        [compiler, *flags, "-o", str(made), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"expected {SOURCE.name} to compile: {done.stderr.strip()[-400:]}")
    made.replace(target)
    return target
