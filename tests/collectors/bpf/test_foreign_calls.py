"""Every call of a C library passes what the installed headers declare."""

from __future__ import annotations

import ast
import ctypes
import inspect
import platform
import re
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from collectors.binaries import demangle_child, perf_ring
from collectors.bpf import bcc, bpf_maps, libbpf, perf_events, system_calls
from collectors.bpf import bpf_maps as bpf_statistics
from collectors.bpf import uprobes as links
from collectors.bpf.system_calls import PerfEventAttributes
from collectors.devices import bandwidth
from collectors.faults import scan
from collectors.gpu_calls import programs_bcc
from tests.foreign_kit import Headers, Kind, faults, kernel_headers, layout_faults, wheel_headers
from tests.nvml_calls import recorded
from transport.process import doctor_checks, foreign, forked, privileges
from transport.process.foreign import Signatures

ROOT = Path(__file__).parents[3]
PRODUCT = (
    "wire", "privacy", "transport", "kernels", "collectors", "diagnosis", "edge_agent",
    "aggregator", "analytics", "simulator", "web", "pages", "pointillist",
)  # fmt: skip
BINDINGS = {
    "transport/process/foreign.py",
    "collectors/devices/bandwidth.py",
    "edge_agent/service/doctor.py",  # looks whether libraries load, and calls none
    "collectors/binaries/demangle_child.py",
    "collectors/bpf/libbpf.py",
    "collectors/bpf/system_calls.py",
}
"""Who may open a library; each one's table is compared below."""

LIBC = Headers(
    (
        "stdio.h", "stdlib.h", "string.h", "malloc.h", "unistd.h", "sys/prctl.h", "sys/vfs.h",
        "sys/timex.h", "sys/types.h", "sys/capability.h",
    ),
    before="#define _GNU_SOURCE 1\n",
)  # fmt: skip
LIBBPF = Headers(("stdarg.h", "bpf/libbpf.h", "bpf/bpf.h"))
BCC = Headers(("stdint.h", "sys/types.h", "bcc/bcc_common.h", "bcc/libbpf.h"))
PERF = Headers(("linux/perf_event.h", "sys/syscall.h"))
NVME = Headers(("sys/ioctl.h", "linux/nvme_ioctl.h"))
CAPABILITY = Headers(("linux/capability.h",))

CALLED_BY_THE_PACKAGE = (
    "bcc_func_load", "bpf_attach_perf_event", "bpf_attach_tracepoint", "bpf_close_perf_event_fd",
    "bpf_function_name", "bpf_function_size", "bpf_function_start", "bpf_get_next_key",
    "bpf_lookup_elem", "bpf_module_create_c_from_string", "bpf_module_destroy",
    "bpf_num_functions", "bpf_table_fd", "bpf_table_id", "bpf_table_type_id",
)  # fmt: skip
NUMBERS = system_calls.NUMBERS[platform.machine()]


def cuda_headers() -> Headers:
    return Headers(("cuda.h",), (wheel_headers("cuda.h"),))


@pytest.mark.parametrize(
    ("signatures", "headers"),
    [
        (foreign.LIBC, LIBC),
        (demangle_child.LIBC, LIBC),
        (libbpf.SIGNATURES, LIBBPF),
        (bcc.SIGNATURES, BCC),
        (bandwidth.SIGNATURES, None),
        ({"syscall": system_calls.PERF_EVENT_OPEN}, LIBC),
    ],
    ids=["libc", "libc of the demangler", "libbpf", "libbcc", "libcuda", "perf_event_open"],
)
def test_declared_calls_are_those_of_the_headers(
    signatures: Signatures, headers: Headers | None
) -> None:
    assert faults(signatures, headers or cuda_headers()) == {}


def test_demangler_is_declared_as_its_header_has_it() -> None:
    headers = Headers(("cxxabi.h",))
    told = headers.prototypes({"demangle": "decltype(abi::__cxa_demangle)"})["demangle"]
    result, arguments = demangle_child.DEMANGLE
    assert told.faults(Kind.of(result), [Kind.of(one) for one in arguments]) == []


@pytest.mark.parametrize(
    ("callback", "named"),
    [(libbpf.Print, "libbpf_print_fn_t"), (libbpf.RingSample, "ring_buffer_sample_fn")],
)
def test_callbacks_are_those_of_libbpfs_headers(callback: Any, named: str) -> None:
    told = LIBBPF.prototypes({named: f"std::remove_pointer<{named}>::type"})[named]
    result, arguments = callback._restype_, callback._argtypes_
    assert told.faults(Kind.of(result), [Kind.of(one) for one in arguments]) == []


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("bpf_attach_uprobe", slice(0, 6), "takes 7 arguments, declared 6"),
        ("bpf_attach_uprobe", {6: ctypes.c_int32}, "argument 7 is"),
        ("bpf_attach_uprobe", {4: ctypes.c_int}, "argument 5 is"),
        ("bpf_attach_uprobe", {2: ctypes.c_int64}, "argument 3 is"),
        ("bcc_func_load", {4: ctypes.c_size_t}, "argument 5 is"),
        ("bpf_module_license", slice(0, 0), "takes 1 arguments, declared 0"),
    ],
)
def test_wrong_declaration_is_found(name: str, changed: Any, told: str) -> None:
    result, arguments = bcc.SIGNATURES[name]
    if isinstance(changed, slice):
        given = arguments[changed]
    else:
        given = tuple(changed.get(place, kind) for place, kind in enumerate(arguments))
    (found,) = faults({name: (result, given)}, BCC)[name]
    assert found.startswith(told)


def test_wrong_result_is_found() -> None:
    _, arguments = bcc.SIGNATURES["bpf_module_license"]
    (found,) = faults({"bpf_module_license": (ctypes.c_int, arguments)}, BCC)["bpf_module_license"]
    assert found.startswith("gives")


def test_libraries_are_opened_by_the_bindings_alone() -> None:
    openers = set()
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "dll" in text.lower() else ():
                name = getattr(node, "attr", getattr(node, "id", ""))
                if name in {"CDLL", "PyDLL", "cdll", "pydll", "LibraryLoader"}:
                    openers.add(str(path.relative_to(ROOT)))
    assert openers == BINDINGS


def test_package_of_bcc_counts_arguments_as_the_headers_do_where_we_let_it_call() -> None:
    needed = Path(bcc._SYSTEM_PACKAGES, "bcc"), Path(f"/lib/modules/{platform.release()}/build")
    for path in needed:
        if not path.exists():
            pytest.skip(f"needs {path}, as make tools installs it")
    bcc.compile_program("int nothing(void *context) { return 0; }", []).cleanup()
    library = sys.modules["bcc"].lib
    declared = {
        name: (getattr(library, name).restype, tuple(getattr(library, name).argtypes or ()))
        for name in CALLED_BY_THE_PACKAGE
    }
    wrong = [fault for of in faults(declared, BCC).values() for fault in of]
    assert [fault for fault in wrong if fault.startswith("takes")] == []


def functions_of_pynvml() -> set[str]:
    """The functions that the product's sources name."""
    texts = [path.read_text() for path in (ROOT / "collectors/devices").glob("*.py")]
    names = {name for text in texts for name in re.findall(r"\bnvml[A-Z]\w+", text)}
    return {name for name in names if inspect.isfunction(getattr(pynvml, name, None))}


def test_calls_through_pynvml_pass_what_the_header_declares(tmp_path: Path) -> None:
    calls = recorded(tmp_path)
    headers = Headers(("nvml.h",), (wheel_headers("nvml.h"),))
    told = headers.prototypes({name: f"decltype({name})" for name in calls})
    wrong = {
        name: faults
        for name, variants in calls.items()
        for kinds in variants
        if (faults := told[name].faults(Kind.of(ctypes.c_int), [Kind(*kind) for kind in kinds]))
    }
    assert wrong == {}
    asked = {name.removesuffix("_v2") for name in functions_of_pynvml()}
    assert {name for name in asked if not any(one.startswith(name) for one in calls)} == set()


@pytest.mark.slow
def test_structures_of_bpf_are_the_running_kernels() -> None:
    kernel, attributes = kernel_headers(), "union bpf_attr"
    element = {name: name for name in ("map_fd", "key", "value", "flags")}
    batch = {name: f"batch.{name}" for name, _ in bpf_maps.MapBatch._fields_}
    info = {"bpf_fd": "info.bpf_fd", "info_len": "info.info_len", "info": "info.info"}
    link = {
        name: f"link_create.{name}" for name in ("prog_fd", "target_fd", "attach_type", "flags")
    }
    names = {"path", "offsets", "ref_ctr_offsets", "cookies", "pid"}
    link |= {name: f"link_create.uprobe_multi.{name}" for name in names}
    link |= {
        "count": "link_create.uprobe_multi.cnt",
        "multi_flags": "link_create.uprobe_multi.flags",
    }
    assert layout_faults(bpf_maps.Element, element, attributes, kernel) == []
    assert layout_faults(bpf_maps.MapBatch, batch, attributes, kernel) == []
    assert layout_faults(bpf_statistics.InfoByFd, info, attributes, kernel) == []
    assert layout_faults(links.LinkCreate, link, attributes, kernel) == []
    event = {name: link[name] for name in ("prog_fd", "target_fd", "attach_type", "flags")}
    event["cookie"] = "link_create.perf_event.bpf_cookie"
    assert layout_faults(links.EventLinkCreate, event, attributes, kernel) == []
    load = {name: name for name, _ in links.ProgramLoad._fields_ if "prog_name" not in name}
    assert layout_faults(links.ProgramLoad, load, attributes, kernel) == []


def test_structures_of_the_system_are_those_of_its_headers() -> None:
    perf = {
        name: name for name, _ in PerfEventAttributes._fields_ if name not in {"flags", "wakeup"}
    }
    perf["wakeup"] = "wakeup_events"
    command = {
        "opcode": "opcode", "namespace": "nsid", "cdw2": "cdw2", "cdw3": "cdw3",
        "metadata": "metadata", "address": "addr", "metadata_bytes": "metadata_len",
        "data_bytes": "data_len", "timeout_ms": "timeout_ms", "result": "result",
    } | {name: name for name in (f"cdw{number}" for number in range(10, 16))}  # fmt: skip
    head = {"version": "version", "pid": "pid"}
    sets = {name: name for name, _ in privileges.CapabilitySets._fields_}
    run = {name: name for name, _ in libbpf.RunOptions._fields_}
    for structure, fields, kind, headers in (
        (PerfEventAttributes, perf, "struct perf_event_attr", PERF),
        (scan.AdminCommand, command, "struct nvme_admin_cmd", NVME),
        (privileges.CapabilityHeader, head, "struct __user_cap_header_struct", CAPABILITY),
        (privileges.CapabilitySets, sets, "struct __user_cap_data_struct", CAPABILITY),
        (libbpf.RunOptions, run, "struct bpf_test_run_opts", LIBBPF),
    ):
        assert layout_faults(structure, fields, kind, headers) == [], kind
    assert ctypes.sizeof(scan.AdminCommand) == NVME.number("sizeof(struct nvme_admin_cmd)")


def test_wrong_layout_is_found() -> None:
    class Shifted(ctypes.Structure):
        _fields_ = (("type", ctypes.c_uint32), ("config", ctypes.c_uint32))

    fields = {"type": "type", "config": "config"}
    (found,) = layout_faults(Shifted, fields, "struct perf_event_attr", PERF)
    assert found == "config: expected offset and size (8, 8), got (4, 4)"


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        (
            PERF,
            {
                "SYS_bpf": NUMBERS["bpf"],
                "SYS_perf_event_open": NUMBERS["perf_event_open"],
                "PERF_TYPE_SOFTWARE": perf_events.SOFTWARE,
                "PERF_FLAG_FD_CLOEXEC": system_calls.CLOSE_ON_EXEC,
                "PERF_COUNT_SW_DUMMY": perf_events.DUMMY,
                "PERF_COUNT_SW_CPU_CLOCK": perf_events.CPU_CLOCK,
                "PERF_SAMPLE_TIME": perf_ring.SAMPLE_TIME,
            },
        ),
        (
            LIBC,
            {
                "TIME_ERROR": doctor_checks.TIME_ERROR,
                "sizeof(struct timex)": doctor_checks.TIMEX_BYTES,
                "__builtin_offsetof(struct timex, maxerror)": doctor_checks.MAXERROR_AT,
                "__builtin_offsetof(struct statfs, f_type)": 0,
                "sizeof(((struct statfs *)0)->f_type)": ctypes.sizeof(ctypes.c_long),
                "PR_SET_PDEATHSIG": forked.PR_SET_PDEATHSIG,
                "PR_SET_NO_NEW_PRIVS": demangle_child.PR_SET_NO_NEW_PRIVS,
            },
        ),
        (
            BCC,
            {
                "BPF_PROBE_ENTRY": programs_bcc.ENTRY,
                "BPF_PROBE_RETURN": programs_bcc.RETURN,
                "BPF_PROG_TYPE_KPROBE": programs_bcc.KPROBE,
            },
        ),
        (LIBBPF, {"BPF_TRACE_RAW_TP": libbpf.TP_BTF}),
        (NVME, {"NVME_IOCTL_ADMIN_CMD": scan.ADMIN_COMMAND}),
    ],
    ids=["perf", "libc", "bcc", "libbpf", "nvme"],
)
def test_numbers_are_those_of_the_headers(headers: Headers, ours: dict[str, int]) -> None:
    assert headers.numbers(list(ours)) == ours


def test_numbers_of_bpf_are_the_running_kernels() -> None:
    ours = {
        "BPF_MAP_LOOKUP_ELEM": bpf_maps.LOOKUP,
        "BPF_MAP_UPDATE_ELEM": bpf_maps.UPDATE,
        "BPF_MAP_DELETE_ELEM": bpf_maps.DELETE,
        "BPF_MAP_GET_NEXT_KEY": bpf_maps.NEXT_KEY,
        "BPF_MAP_LOOKUP_BATCH": bpf_maps.LOOKUP_BATCH,
        "BPF_LINK_CREATE": bpf_maps.LINK_CREATE,
        "BPF_OBJ_GET_INFO_BY_FD": bpf_statistics.INFO_BY_FD,
        "BPF_PROG_LOAD": links.PROG_LOAD,
        "BPF_PROG_TYPE_KPROBE": links.KPROBE,
        "BPF_PERF_EVENT": links.PERF_EVENT,
        "BPF_TRACE_UPROBE_MULTI": links.UPROBE_MULTI,
        "BPF_F_UPROBE_MULTI_RETURN": links.RETURN,
        "__builtin_offsetof(struct bpf_prog_info, run_time_ns)": bpf_statistics.RUN_TIME_AT,
        "__builtin_offsetof(struct bpf_prog_info, run_cnt)": bpf_statistics.RUN_TIME_AT + 8,
    }
    assert kernel_headers().numbers(list(ours)) == ours


def test_flags_of_the_ring_are_those_of_the_header() -> None:
    names = (
        "exclude_kernel", "exclude_hv", "mmap", "comm", "task", "watermark", "sample_id_all",
        "mmap2", "comm_exec", "use_clockid",
    )  # fmt: skip
    given = ", ".join(f".{name} = 1" for name in names)
    at = "__builtin_offsetof(struct perf_event_attr, read_format) + 8"
    word = f"*(unsigned long long *)((char *)&(struct perf_event_attr){{{given}}} + {at})"
    assert PERF.number(word) == perf_ring.FLAGS
    assert PerfEventAttributes.flags.offset == PERF.number(at)
