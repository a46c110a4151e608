"""BCC, for kernels without BTF: the system's package, found and put right, its calls declared.

Its Python package (0.26) gives bpf_attach_uprobe six arguments where the library reads seven, and
misspells the declaration of those for perf events, whose 64-bit numbers then pass as 32 bits.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from collectors.interface import SourceUnavailable
from transport.process.foreign import Signatures, declare

_MODULE: Final = ctypes.c_void_p

SIGNATURES: Final[Signatures] = {
    "bpf_module_license": (ctypes.c_char_p, (_MODULE,)),
    "bpf_module_kern_version": (ctypes.c_uint, (_MODULE,)),
    # Module, type, name, code, its length, licence, kernel's version, level of the log, log, its
    # length, device, kind of attachment.
    "bcc_func_load": (
        ctypes.c_int,
        (
            _MODULE, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p,
            ctypes.c_uint, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p,
            ctypes.c_int,
        ),
    ),
    # Program, entry or return, event, file, offset, process, offset of a semaphore.
    "bpf_attach_uprobe": (
        ctypes.c_int,
        (
            ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64,
            ctypes.c_int, ctypes.c_uint32,
        ),
    ),
    # Program, type, event, period, frequency, process, CPU, group.
    "bpf_attach_perf_event": (
        ctypes.c_int,
        (
            ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64,
            ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ),
    ),
    "bpf_close_perf_event_fd": (ctypes.c_int, (ctypes.c_int,)),
}  # fmt: skip


_SYSTEM_PACKAGES: Final = "/usr/lib/python3/dist-packages"


_TRACING: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


def unavailable() -> str | None:
    try:
        _bcc()
    except SourceUnavailable as error:
        return str(error)
    if not Path(f"/lib/modules/{platform.release()}/build").exists():
        return "expected kernel headers under /lib/modules/.../build for BCC, found none"
    if tracing() is None:
        return "expected tracefs at /sys/kernel/tracing, readable; it is not mounted or not ours"
    return None


def compile_program(text: str, flags: list[str]) -> Any:
    """Compile one program. Raises SourceUnavailable."""
    try:
        return _bcc().BPF(text=text.encode(), cflags=flags)
    except SourceUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - bcc raises Exception itself
        raise SourceUnavailable(f"BCC cannot compile or attach: {error}") from None


def library() -> Any:
    """Give BCC's C library, as its Python package has it. Raises SourceUnavailable."""
    return _bcc().lib


@cache
def _bcc() -> Any:
    """Import the system's one package `bcc`, and put right what it declares."""
    module = sys.modules.get("bcc") or _imported()
    try:
        declare(module.lib, SIGNATURES)
    except AttributeError as error:
        raise SourceUnavailable(f"expected another version of BCC: {error}") from None
    return module


def _imported() -> Any:
    spec = importlib.machinery.PathFinder.find_spec("bcc", [_SYSTEM_PACKAGES])
    if spec is None or spec.loader is None:
        raise SourceUnavailable("expected BCC (package python3-bpfcc), found none")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        del sys.modules["bcc"]
        raise SourceUnavailable(f"BCC cannot be loaded: {error}") from None
    return module


def tracing() -> Path | None:
    """Give the folder of the kernel's tracefs, where it is mounted and ours to read."""
    for folder in _TRACING:
        if os.access(folder / "events", os.R_OK | os.X_OK):
            return folder
    return None
