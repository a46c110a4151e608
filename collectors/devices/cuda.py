"""The few calls of the CUDA driver API that a copy needs, by ctypes: no toolkit on the host."""

from __future__ import annotations

import ctypes
import os
import uuid
from typing import Any, Final

from transport.process.foreign import Signatures, declare

LIBRARY: Final = "libcuda.so.1"
_INT, _U32, _SIZE, _U64 = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_OUT = ctypes.c_void_p
_HANDLE = ctypes.c_void_p

_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (_U32,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetUuid_v2": (_OUT, _INT),
    "cuDeviceGetUuid": (_OUT, _INT),
    "cuDeviceGetPCIBusId": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuMemHostAlloc": (_OUT, _SIZE, _U32),
    "cuMemFreeHost": (_HANDLE,),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_U64,),
    "cuMemcpyHtoD_v2": (_U64, _HANDLE, _SIZE),
    "cuMemcpyHtoDAsync_v2": (_U64, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _U64, _SIZE, _HANDLE),
    "cuStreamCreate": (_OUT, _U32),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuEventCreate": (_OUT, _U32),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (_OUT, _HANDLE, _HANDLE),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuGetErrorName": (_INT, _OUT),
}
"""The `_v2` are the driver's 64-bit forms."""
SIGNATURES: Final[Signatures] = {name: (ctypes.c_int, of) for name, of in _ARGUMENTS.items()}


class CudaMissing(Exception):
    """No CUDA driver library, or one that lacks a call."""


class CudaError(Exception):
    """A call failed; `code` is the driver's number."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class Cuda:
    """The library of this process; it can be opened in a process that will not fork again."""

    def __init__(self) -> None:
        """Load it. Raises CudaMissing."""
        # Every GPU of the host is to be found, by its UUID, whatever the caller's shell hides.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaMissing(str(error)) from None

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function. Raises CudaError, CudaMissing."""
        code = self._function(name)(*arguments)
        if code:
            raise CudaError(name, code, self._error_name(code))

    def has(self, name: str) -> bool:
        """Tell whether this driver has the call."""
        return hasattr(self._library, name)

    def handle(self, name: str, *arguments: object) -> int:
        """Call a function that hands out a pointer or an address."""
        out = ctypes.c_uint64(0)
        self(name, ctypes.byref(out), *arguments)
        return out.value

    def device(self, gpu_uuid: str) -> int | None:
        """Find a device by the name that NVML gives it, `GPU-<uuid>`; None: CUDA does not show it.

        Under MIG CUDA shows instances, each with a name of its own, and not the GPU.
        """
        count = ctypes.c_int(0)
        self("cuDeviceGetCount", ctypes.byref(count))
        named = "cuDeviceGetUuid_v2" if self.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        for ordinal in range(count.value):
            device, raw = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
            self("cuDeviceGet", ctypes.byref(device), ordinal)
            self(named, raw, device)
            if f"GPU-{uuid.UUID(bytes=bytes(raw))}" == gpu_uuid.lower().replace("gpu-", "GPU-", 1):
                return device.value
        return None

    def pci_address(self, device: int) -> str:
        """Give the device's address as sysfs writes it: 0000:1b:00.0."""
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, len(text), device)
        return text.value.decode("ascii", "replace").lower()

    def _function(self, name: str) -> Any:
        try:
            declare(self._library, {name: SIGNATURES[name]})
        except AttributeError:
            raise CudaMissing(f"{LIBRARY} has no {name}") from None
        return getattr(self._library, name)

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._function("cuGetErrorName")(code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode("ascii", "replace")
