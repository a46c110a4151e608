"""Copies over the link of a GPU, which press it: python3 -m scripts.gpu_copies GPU INJECTOR DUTY"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from collectors.devices.bandwidth import Cuda

PRESS_BYTES: Final = 64 << 20
DUTIES: Final = {"low": 0.25, "middle": 0.5, "high": 1.0}
INJECTORS: Final = ("pinned_to_device", "pageable_to_device", "pinned_to_host")
_PIECE_S: Final = 0.1


def press(gpu: str, injector: str, duty: float) -> None:
    """Copy for this share of every tenth of a second until stdin ends; print bytes a second."""
    with ExitStack() as held:
        cuda = Cuda()
        device = context_of(cuda, gpu, held)
        on_gpu = made(cuda, held, "cuMemAlloc_v2", "cuMemFree_v2", PRESS_BYTES)
        stream = made(cuda, held, "cuStreamCreate", "cuStreamDestroy_v2", 1)
        pageable = ctypes.create_string_buffer(b"\1" * PRESS_BYTES, PRESS_BYTES)
        pinned = made(cuda, held, "cuMemHostAlloc", "cuMemFreeHost", PRESS_BYTES, 0)
        ctypes.memset(pinned, 1, PRESS_BYTES)

        def copy() -> None:
            if injector == "pageable_to_device":
                cuda("cuMemcpyHtoD_v2", on_gpu, ctypes.addressof(pageable), PRESS_BYTES)
            elif injector == "pinned_to_host":
                cuda("cuMemcpyDtoHAsync_v2", pinned, on_gpu, PRESS_BYTES, stream)
            elif injector == "pinned_to_device":
                cuda("cuMemcpyHtoDAsync_v2", on_gpu, pinned, PRESS_BYTES, stream)
            else:
                raise ValueError(f"expected one of {INJECTORS}, got {injector!r} on {device}")
            cuda("cuStreamSynchronize", stream)

        copy()
        over = threading.Event()
        threading.Thread(target=_until_eof, args=(over,), daemon=True).start()
        print("pressing", flush=True)
        copies, begun_s = _turns(copy, duty, over)
        print(copies * PRESS_BYTES / max(time.monotonic() - begun_s, 1e-9), flush=True)


def _until_eof(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _turns(copy: Callable[[], None], duty: float, over: threading.Event) -> tuple[int, float]:
    copies, begun_s = 0, time.monotonic()
    while not over.is_set():
        piece_s = time.monotonic()
        while time.monotonic() - piece_s < duty * _PIECE_S and not over.is_set():
            copy()
            copies += 1
        over.wait(max(0.0, piece_s + _PIECE_S - time.monotonic()))
    return copies, begun_s


def context_of(cuda: Cuda, gpu: str, held: ExitStack) -> int:
    """Open a GPU for this thread, as long as it is held; give the device."""
    cuda("cuInit", 0)
    device = cuda.device(gpu)
    if device is None:
        raise OSError(f"CUDA does not show {gpu} (MIG, or it is kept from us)")
    context = cuda.handle("cuDevicePrimaryCtxRetain", device)
    held.callback(cuda, "cuDevicePrimaryCtxRelease_v2", device)
    cuda("cuCtxSetCurrent", context)
    return device


def made(cuda: Cuda, held: ExitStack, make: str, release: str, *arguments: int) -> int:
    """Make what is released when it is no longer held."""
    handle = cuda.handle(make, *arguments)
    held.callback(cuda, release, handle)
    return handle


if __name__ == "__main__":
    press(sys.argv[1], sys.argv[2], float(sys.argv[3]))
