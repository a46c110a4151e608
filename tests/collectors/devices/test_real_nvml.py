"""`pynvml` and our calls of libcuda beside NVIDIA's real libraries 535, without a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.devices import bandwidth
from collectors.devices.device_port import Field
from tests.foreign_kit import Headers, layout_faults, wheel_headers
from tests.nvml_calls import recorded
from tests.real_libraries import DRIVER, MANAGEMENT, unpacked

READ = (
    "nvmlEventData_t", "nvmlFieldValue_t", "nvmlGpmMetric_t", "nvmlGpmMetricsGet_t",
    "nvmlGpmSupport_t", "nvmlMemory_v2_t", "nvmlProcessUtilizationSample_t", "nvmlUtilization_t",
)  # fmt: skip
"""Structures that are read here, by their names in the header; pynvml puts `c_` before."""


def exported(library: Path) -> set[str]:
    with library.open("rb") as file:
        return {function.name for function in ElfFile.read(file).functions()}


def test_the_real_library_has_every_function_that_is_called(tmp_path: Path) -> None:
    calls = recorded(tmp_path)
    assert len(calls) > 30
    assert set(calls) - exported(unpacked(MANAGEMENT)) == set()


def test_the_real_driver_has_every_function_that_is_called() -> None:
    assert set(bandwidth.SIGNATURES) - exported(unpacked(DRIVER)) == set()


def test_structures_of_pynvml_lie_as_the_header_lays_them() -> None:
    headers = Headers(("nvml.h",), (wheel_headers("nvml.h"),))
    kinds = {name: getattr(pynvml, f"c_{name}") for name in READ}
    kinds["nvmlProcessInfo_t"] = pynvml.c_nvmlProcessInfo_v3_t
    for name, kind in kinds.items():
        fields = {field: field for field, *_ in kind._fields_}
        assert layout_faults(kind, fields, name, headers) == []


LOOK = """
import json
from collectors.devices.bandwidth import measure
from collectors.devices.device_port import DevicesUnavailable, Field
from collectors.devices.nvml import NvmlReader

reader = NvmlReader()
try:
    reader.open()
    said = "opened"
except DevicesUnavailable as error:
    said = str(error)
looked = reader.read(0, frozenset(Field), processes=True)
reader.close()
gaps = {name.name: [gap.kind, gap.reason] for name, gap in looked.fields.items()}
copies = measure("GPU-00000000-0000-0000-0000-000000000000")
print(json.dumps([said, gaps, [copies.kind, copies.reason]]))
"""


@pytest.mark.root
@pytest.mark.usefixtures("no_node_is_left")
def test_the_real_libraries_answers_without_a_device_are_gaps_with_their_words() -> None:
    """As the agent's child asks them; a field that was asked of a closed session is a gap too."""
    folder = unpacked(MANAGEMENT).parent
    ended = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
    )  # fmt: skip
    said, gaps, copies = json.loads(ended.stdout)
    assert said == "NVML: Driver Not Loaded"
    assert gaps == {field.name: ["failed", "Uninitialized"] for field in Field}
    assert copies == ["failed", "cuInit: CUDA_ERROR_NO_DEVICE"]
    assert not ended.stderr
