"""The committed library, and its layouts in C and in Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from collectors.binaries.elf_file import ElfFile
from collectors.gpu_time import listener, segment
from tests.gpu_time_kit import CUPTI
from tests.probes_kit import compile_stub
from tests.real_libraries import CUPTI as CUPTI_RELEASES
from tests.real_libraries import cupti_folder, installed

LINKERS = {"x86_64": "ld", "aarch64": "aarch64-linux-gnu-ld"}
HEADERS = {name: (CUPTI / "include" / name).read_text() for name in ("layout.h", "message.h")}
STRUCTS = {"header": segment.HEADER, "row": segment.ROW, "device_time": segment.DEVICE}
MESSAGES = {"hello": listener.HELLO, "lease": listener.LEASE}
FIELDS = {
    "hello": ("magic", "version", "pid", "reserved"),
    "lease": ("magic", "version", "lease_ms", "on_ms", "period_ms", "most_records"),
}


def committed(machine: str) -> bytes:
    return (CUPTI / "objects" / f"libpointillist-gpu-time.{machine}.so").read_bytes()


@pytest.mark.parametrize("machine", ["x86_64", pytest.param("aarch64", marks=pytest.mark.release)])
def test_committed_library_is_what_the_sources_build(machine: str, tmp_path: Path) -> None:
    if not (shutil.which("clang") and shutil.which(LINKERS[machine])):
        pytest.skip(f"needs clang and {LINKERS[machine]}, as make tools installs them")
    made = tmp_path / f"libpointillist-gpu-time.{machine}.so"
    subprocess.run(["make", "-sC", str(CUPTI), f"OUT={tmp_path}", made], check=True, timeout=60)
    version = subprocess.run(["clang", "--version"], check=True, capture_output=True, text=True)
    if "clang version 14." in version.stdout:  # which built the committed one
        assert made.read_bytes() == committed(machine)


@pytest.mark.parametrize("machine", LINKERS)
def test_library_loads_beside_every_glibc_from_2_28_on_and_in_pages_of_64_kib(machine: str) -> None:
    needed = re.findall(rb"GLIBC_2\.(\d+)", committed(machine))
    assert needed
    assert max(map(int, needed)) <= 28
    parts = ELFFile(BytesIO(committed(machine))).iter_segments("PT_LOAD")
    page = 0x10000 if machine == "aarch64" else 0x1000
    assert {part["p_align"] for part in parts} == {page}


def printed(tmp_path: Path, includes: str, lines: list[str], *options: str) -> list[int]:
    """Give the numbers that a C program prints."""
    source, program = tmp_path / "printed.c", tmp_path / "printed"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{includes}\n"
        '#define AT(s, f) printf("%zu\\n", offsetof(s, f));\n'
        '#define SAY(n) printf("%lld\\n", (long long)(n));\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    compile_stub(*options, source, "-o", program)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return list(map(int, said.split()))


def test_layout_lies_as_the_compiler_lays_it(tmp_path: Path) -> None:
    lines, expected = [], []
    for struct, mirror in STRUCTS.items():
        assert mirror.fields is not None
        for field, place in mirror.fields.items():
            lines.append(f"AT(struct {struct}, {field})")
            expected.append(place[1])
        lines.append(f"SAY(sizeof(struct {struct}))")
        expected.append(mirror.itemsize)
    for struct, message in MESSAGES.items():
        for place_of, field in enumerate(FIELDS[struct]):
            lines.append(f"AT(struct {struct}, {field})")
            expected.append(4 * place_of)
        lines.append(f"SAY(sizeof(struct {struct}))")
        expected.append(message.size)
    includes = '#include "include/layout.h"\n#include "include/message.h"'
    assert printed(tmp_path, includes, lines, f"-I{CUPTI}") == expected


def test_layout_has_no_field_that_python_does_not_know() -> None:
    for struct, mirror in STRUCTS.items():
        body = re.search(rf"struct {struct} {{(.*?)\n}};", HEADERS["layout.h"], re.DOTALL)
        assert body
        plain = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
        fields = re.findall(r"(\w+)(?:\[\w+\])*\s*[,;]", re.sub(r"struct \w+ ", "", plain))
        assert fields == list(mirror.names or ()), struct


def test_layout_constants_are_the_header_s(tmp_path: Path) -> None:
    same = {
        "LAYOUT_MAGIC": segment.MAGIC, "LAYOUT_VERSION": segment.VERSION,
        "HEADER_BYTES": segment.HEADER_BYTES, "ROWS": segment.ROWS, "BINS": segment.BINS,
        "DEVICES": segment.DEVICES, "NAME_BYTES": segment.NAME_BYTES,
        "NAMES_BYTES": segment.NAMES_BYTES, "NO_NAME": segment.NO_NAME,
        "NAMES_AT": segment.NAMES_AT, "SEGMENT_BYTES": segment.SEGMENT_BYTES,
        "MESSAGE_MAGIC": listener.MAGIC, "MESSAGE_VERSION": listener.VERSION,
        **{f"{kind.name}_ROW": kind for kind in segment.RowKind},
        **{f"STATE_{state.name}": state for state in segment.RecordingState},
    }  # fmt: skip
    includes = '#include "include/layout.h"\n#include "include/message.h"'
    lines = [f"SAY({name})" for name in same]
    assert printed(tmp_path, includes, lines, f"-I{CUPTI}") == list(same.values())


ABI: dict[str, dict[str, tuple[int, ...]]] = {
    "abi_kernel": {"Kernel": (9, 10, 11, 12, 13)},
    "abi_copy": {"Memcpy": (5, 6, 7), "MemcpyPtoP": (4,)},
    "abi_memset": {"Memset": (4, 5)},
    "abi_graph": {"GraphTrace": (1, 2)},
    "abi_overhead": {"Overhead": (1, 2, 3)},
}
"""Our structures, and the versions of CUPTI's since CUDA 12.2."""
NAMES = {
    "device": "deviceId", "context": "contextId", "stream": "streamId", "grid": "gridId",
    "correlation": "correlationId", "graph": "graphId", "graph_node": "graphNodeId",
    "copy_kind": "copyKind", "overhead_kind": "overheadKind",
}  # fmt: skip
CONSTANTS = {
    "ABI_SUCCESS": "CUPTI_SUCCESS",
    "ABI_MULTIPLE_SUBSCRIBERS": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "ABI_DRIVER_DOMAIN": "CUPTI_CB_DOMAIN_DRIVER_API",
    "ABI_DRIVER_GET_VERSION": "CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion",
    "ABI_EXIT": "CUPTI_API_EXIT",
    "ABI_FORCED": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "ABI_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "ABI_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "ABI_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "ABI_OVERHEAD": "CUPTI_ACTIVITY_KIND_OVERHEAD",
    "ABI_MEMCPY_PEER": "CUPTI_ACTIVITY_KIND_MEMCPY2",
    "ABI_GRAPH": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "ABI_DEVICE_BUFFER_SIZE": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE",
    "ABI_DEVICE_BUFFER_POOL_LIMIT": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT",
    "ABI_ZEROED_OUT_BUFFER": "CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER",
    "ABI_DEVICE_BUFFER_PRE_ALLOCATE": "CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE",
}
REAL = "\n".join(
    f"#include <{name}.h>"
    for name in ("cuda", "cupti_result", "cupti_activity", "cupti_callbacks", "cupti_driver_cbid")
)
NOT_INSTALLED = tuple(
    f"-D__{name}_TYPES_H__" for name in ("DEVICE", "DRIVER", "SURFACE", "TEXTURE", "VECTOR")
)
"""Headers of the runtime that CUPTI's include and do not use; they need further packages."""


def included(folder: Path) -> tuple[str, ...]:
    """Give options that find a CUPTI's headers, and the driver's: not every CUPTI brings them."""
    headers = installed("cuda.h") / "include"
    return (*NOT_INSTALLED, f"-I{folder / 'include'}", f"-idirafter{headers}")


def declared(header: str, kind: str, versions: tuple[int, ...]) -> list[str]:
    """Name those versions of a record that a header has; its newest, which CUPTI fills, is one."""
    told = re.findall(rf"^}} CUpti_Activity{kind}(\d*);", header, re.MULTILINE)
    present = {int(version or 1) for version in told}
    assert max(present) in versions, kind
    found = sorted(present & set(versions))
    return [f"CUpti_Activity{kind}{version if version > 1 else ''}" for version in found]


def placed(struct: str, field: str) -> list[str]:
    """Print where a field lies, and its bytes."""
    return [f"AT({struct}, {field})", f"SAY(sizeof((({struct} *)0)->{field}))"]


def c_fields(struct: str) -> list[str]:
    body = re.search(
        rf"struct {struct} {{(.*?)\n}}", (CUPTI / "include/abi.h").read_text(), re.DOTALL
    )
    assert body
    plain = re.sub(r"/\*.*?\*/|\*", "", body[1])
    names = re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", plain)
    return [name for name in names if not name.startswith("unread")]


@pytest.mark.parametrize("cuda", CUPTI_RELEASES)
def test_records_lie_as_the_real_headers_lay_them(cuda: str, tmp_path: Path) -> None:
    include = cupti_folder(cuda) / "include"
    text = "".join(path.read_text() for path in include.glob("cupti_activity*.h"))
    ours, theirs = [], []
    for struct, kinds in ABI.items():
        for release in (one for kind in kinds.items() for one in declared(text, *kind)):
            for field in c_fields(struct):
                ours += placed(f"struct {struct}", field)
                theirs += placed(release, NAMES.get(field, field))
    said = printed(tmp_path, REAL, theirs, *included(cupti_folder(cuda)))
    assert printed(tmp_path, '#include "include/abi.h"', ours, f"-I{CUPTI}") == said


@pytest.mark.parametrize("cuda", CUPTI_RELEASES)
def test_constants_are_the_real_headers(cuda: str, tmp_path: Path) -> None:
    theirs = [f"SAY({name})" for name in CONSTANTS.values()]
    said = printed(tmp_path, REAL, theirs, *included(cupti_folder(cuda)))
    ours = [f"SAY({name})" for name in CONSTANTS]
    assert printed(tmp_path, '#include "include/abi.h"', ours, f"-I{CUPTI}") == said


@pytest.mark.parametrize("cuda", CUPTI_RELEASES)
def test_real_cupti_exports_every_function_that_is_called(cuda: str) -> None:
    (library,) = (cupti_folder(cuda) / "lib").glob("libcupti.so.*")
    with library.open("rb") as file:
        exported = {function.name for function in ElfFile.read(file).functions()}
    calls = set(re.findall(r"\(\*(cupti\w+)\)", (CUPTI / "include/abi.h").read_text()))
    assert len(calls) == 11
    assert calls <= exported
