"""NVIDIA's real libraries, as `make gpu-libraries` and `make setup` lay them.

A test whose library is not there is skipped.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

TOOLS: Final = Path(__file__).parents[1] / ".tools"
DRIVER: Final = "gpu-libraries/libcuda.so.535.*"
MANAGEMENT: Final = "gpu-libraries/libnvidia-ml.so.535.*"
NCCL: Final = "cuda/nvidia/nccl/lib/libnccl.so.2"
NVCC: Final = "cuda/nvidia/cu13/bin/nvcc"
CUDA13_HEADERS: Final = "cuda/nvidia/cu13/include"
NVRTC: Final = "cuda/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
CUPTI: Final = {
    "12.2": "cuda/nvidia/cuda_cupti",
    "12.6": "cuda-12-6/nvidia/cuda_cupti",
    "13": "",
}
"""Folders of include/ and lib/ by release; that of 13 comes with the group `dev`."""
RUNTIMES: Final = ("cuda_runtime", "cu13")
"""Folders of the CUDA runtimes 12 and 13 in the package `nvidia`."""


def unpacked(pattern: str) -> Path:
    found = sorted(TOOLS.glob(pattern))
    if not found:
        pytest.skip(f"needs {TOOLS / pattern}: make gpu-libraries")
    return found[0]


def installed(header: str) -> Path:
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in Path(root).iterdir():
            if (folder / "include" / header).exists():
                return folder
    pytest.skip(f"needs the package that has {header}, which is for Linux alone")


def cupti_folder(release: str) -> Path:
    return unpacked(CUPTI[release]) if CUPTI[release] else installed("cupti_activity.h")


def runtime_folder(runtime: str) -> Path:
    return installed("cuda_runtime_api.h").parent / runtime / "lib"


def shared_runtime(runtime: str) -> Path:
    (library,) = runtime_folder(runtime).glob("libcudart.so.*")
    return library


def static_runtime(runtime: str) -> list[str | Path]:
    folder = runtime_folder(runtime)
    more = ("-ldl", "-lrt", "-lpthread")
    return [folder / "libcudart_static.a", *folder.glob("libculibos.a"), *more]
