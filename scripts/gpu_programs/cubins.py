"""Compile kernels.cu for an H100, and to PTX for other GPUs, by NVIDIA's compiler library.

    python -m scripts.gpu_programs.cubins FOLDER

NVRTC is that of CUDA 12.2 in .tools/cuda: what it makes is loaded by drivers of 12.2 and later.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from transport.process.foreign import Signatures, declare

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARY: Final = ROOT / ".tools" / "cuda" / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
SOURCE: Final = Path(__file__).parent / "kernels.cu"
CUBIN, PTX = "kernels.sm_90.cubin", "kernels.ptx"
_INT, _OUT, _TEXT = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
_PROGRAM: Final = ctypes.c_void_p
SIGNATURES: Final[Signatures] = {
    "nvrtcCreateProgram": (_INT, (_OUT, _TEXT, _TEXT, _INT, _OUT, _OUT)),
    "nvrtcCompileProgram": (_INT, (_PROGRAM, _INT, _OUT)),
    "nvrtcDestroyProgram": (_INT, (_OUT,)),
    "nvrtcGetProgramLogSize": (_INT, (_PROGRAM, _OUT)),
    "nvrtcGetProgramLog": (_INT, (_PROGRAM, _OUT)),
    "nvrtcGetCUBINSize": (_INT, (_PROGRAM, _OUT)),
    "nvrtcGetCUBIN": (_INT, (_PROGRAM, _OUT)),
    "nvrtcGetPTXSize": (_INT, (_PROGRAM, _OUT)),
    "nvrtcGetPTX": (_INT, (_PROGRAM, _OUT)),
}


class CompileError(Exception):
    """The compiler refused the source; its words follow."""


class Compiler:
    def __init__(self, library: Path = LIBRARY) -> None:
        """Load it. Raises OSError."""
        self._library = ctypes.CDLL(str(library))
        declare(self._library, SIGNATURES)

    def cubin(self, source: bytes) -> bytes:
        """Compile for an H100. Raises CompileError."""
        with self._compiled(source, "--gpu-architecture=sm_90") as program:
            return self._told(program, "nvrtcGetCUBIN")

    def ptx(self, source: bytes) -> bytes:
        """Compile to what drivers compile for any GPU since Volta. Raises CompileError."""
        with self._compiled(source, "--gpu-architecture=compute_70") as program:
            return self._told(program, "nvrtcGetPTX").rstrip(b"\0")

    @contextmanager
    def _compiled(self, source: bytes, *options: str) -> Iterator[ctypes.c_void_p]:
        program = ctypes.c_void_p()
        name = SOURCE.name.encode()
        self._must("nvrtcCreateProgram", ctypes.byref(program), source, name, 0, None, None)
        try:
            words = (_TEXT * len(options))(*(option.encode() for option in options))
            if self._library.nvrtcCompileProgram(program, len(words), words):
                log = self._told(program, "nvrtcGetProgramLog")
                raise CompileError(log.rstrip(b"\0").decode(errors="replace"))
            yield program
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _told(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._must(f"{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._must(what, program, text)
        return text.raw

    def _must(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CompileError(f"{name}: expected 0, got {code}")


def main() -> None:
    folder, source, compiler = Path(sys.argv[1]), SOURCE.read_bytes(), Compiler()
    (folder / CUBIN).write_bytes(compiler.cubin(source))
    (folder / PTX).write_bytes(compiler.ptx(source))


if __name__ == "__main__":
    main()
