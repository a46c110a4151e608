"""Tables as profilers write them: each form by its heads, units, delimiters and decimal signs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.families import FamilyRules
from kernels.launches.launch import Launch, LaunchesRefused, Skip
from kernels.launches.read import open_launches
from kernels.launches.tables import FORMS

NCU = '"ID","Kernel Name","CC","Metric Name","Metric Unit","Metric Value"\n'
RAW = "ID;Kernel Name;CC;gpu__time_duration.sum;dram__throughput\n;;;us;%\n"


def read(folder: Path, content: str) -> tuple[str, list[Launch], dict[Skip, int]]:
    path = folder / "input"
    path.write_text(content, encoding="utf-8")
    found = open_launches(path)
    return found.form, list(found.launches), dict(found.skipped)


def refusal(folder: Path, content: str) -> str:
    with pytest.raises(LaunchesRefused) as refused:
        read(folder, content)
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "form", "launches"),
    [
        (
            "Time(%),Total Time (ns),Instances,Average,Maximum,Name\n9.5,7000,2,3500.0,2,k\n",
            "an Nsight Systems summary (CSV)",
            [Launch("k", 2, 7_000)],
        ),
        (
            "Start(nsec),Duration(nsec),CorrId,Device,Ctx,Strm,Name\n5,7000,1,T4 (0),1,7,k\n",
            "an Nsight Systems trace (CSV)",
            [Launch("k", 1, 7_000)],
        ),
        (
            "Time (%)\tTotal Time (\u03bcs)\tInstances\tName\n9.5\t7.0\t2\tvoid f<a, b>(int)\n",
            "an Nsight Systems summary (CSV)",
            [Launch("void f<a, b>(int)", 2, 7_000)],
        ),
        (
            (
                "Time (%),Total Time (ns),Instances,Avg (ns),Category,Operation\n"
                "60,9000000,3,3.5,CUDA_API,cudaMemcpy\n30,7000,2,3.5,CUDA_KERNEL,k\n"
                "10,500,1,3.5,MEMORY_OPER,[CUDA memcpy Host-to-Device]\n"
            ),
            "an Nsight Systems summary (CSV)",
            [Launch("k", 2, 7_000), Launch("[CUDA memcpy Host-to-Device]", 1, 500)],
        ),
        (
            "API Dur (ns),Kernel Dur (ns),API Function,Kernel Name\n900,7000,cudaLaunchKernel,k\n",
            "an Nsight Systems trace (CSV)",
            [Launch("k", 1, 7_000)],
        ),
        (
            '"Start","Duration","Device","Context","Name"\nms,ms,,,\n1.5,2.0,"V100 (0)",1,k\n',
            "an nvprof trace (CSV)",
            [Launch("k", 1, 2_000_000)],
        ),
        (
            (
                '"Kernel Name","Invocations","Metric Name","Metric Unit","Maximum","Average"\n'
                '"k","4","Duration","us","9.00","2.50"\n"k","4","Elapsed Cycles","cycle","9","2"\n'
            ),
            "an Nsight Compute report (CSV)",
            [Launch("k", 4, 10_000)],
        ),
        (
            (
                f'{NCU}"0","k","8.9","gpu__time_duration.sum","ns","7,000"\n'
                '"0","k","8.9","Duration","us","7.00"\n'
            ),
            "an Nsight Compute report (CSV)",
            [Launch("k", 1, 7_000)],
        ),
        (
            '"Index","KernelName","grd","sgpr","DurationNs"\n0,"k.kd",256,32,7000\n',
            "a rocprof trace (CSV)",
            [Launch("k.kd", 1, 7_000)],
        ),
        (
            "Time (%),Total Time (ns),Instances,Operation\n70,7000,7,[CUDA memcpy HtoD]\n",
            "an Nsight Systems summary (CSV)",
            [Launch("[CUDA memcpy HtoD]", 7, 7_000)],
        ),
        (
            RAW + "0;k;8.9;7,25;65,7\n1;k;8.9;1.117,5;3,1\n",
            "an Nsight Compute report (CSV)",
            [Launch("k", 1, 7_250), Launch("k", 1, 1_117_500)],
        ),
        (
            (
                '"Kind","Direction","Source_Agent_Id","Start_Timestamp","End_Timestamp"\n'
                '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,100,400\n'
            ),
            "a rocprofv3 trace (CSV)",
            [Launch("MEMORY_COPY_HOST_TO_DEVICE", 1, 300)],
        ),
        (
            '"Kernel_Name","Count","Sum(ns)","Mean(ns)","Pct"\n"k",4,7000.0,1750.0,99.5\n',
            "a rocprof-compute summary (CSV)",
            [Launch("k", 4, 7_000)],
        ),
        (
            "Name,Tensor Cores Used,Calls,Total Duration (us),Mean Duration (us)\nk,Yes,4,7,1.75\n",
            "a TensorBoard kernel table (CSV)",
            [Launch("k", 4, 7_000)],
        ),
    ],
)
def test_tables_are_read_as_their_profiler_means_them(
    tmp_path: Path, content: str, form: str, launches: list[Launch]
) -> None:
    assert read(tmp_path, content) == (form, launches, {})
    assert read(tmp_path, "\ufeff" + content.replace("\n", "\r\n")) == (form, launches, {})


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("Start (ns),Duration (ns),Name,PID,TID\n5,9,poll,1,1\n", "Duration (ns), Name"),
        ("Start (ns),Duration (ns),Event,Pid,Rank\n5,9,MPI_Send,1,1\n", "Event, Pid"),
        ("Time (%),Total Time (ns),Instances,Source,Name\n9,5,1,pid,MPI_Recv\n", "Source, Name"),
        (
            "Time (%),Total Time (ns),Instances,Style,Range\n9,5,1,PushPop,:forward\n",
            "Style, Range",
        ),
        (
            "NVTX Range,Style,Total Time (ns),Instances,Kernel Name,Name\n:a,P,5,1,k,k\n",
            "NVTX Range",
        ),
        (
            (
                '"Kernel_Name","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n'
                '"k","SQ_WAVES",3,100,400\n"k","GRBM_COUNT",9,100,400\n'
            ),
            "Counter_Name",
        ),
        ("Domain,Function,Start_Timestamp,End_Timestamp\nHIP,hipMalloc,1,2\n", "Function"),
        ("Start,Duration,Name\nms,us,\n1,7,cudaMalloc\n", "Start, Duration, Name"),
        (
            " Time (%)  Total Time (ns)  Instances  Name\n -----  -----  -----  ----\n",
            "Total Time (ns)",
        ),
        (
            "   Type  Time(%)      Time     Calls  Name\n GPU:  9.5%  7.0us   2  k\n",
            "Type, Time(%)",
        ),
        ("Name      Self CUDA\n----  ----\naten::mm  3us\n", "Name      Self CUDA"),
        ("+----+----+\n| Kernel | Time | Calls |\n| k | 7 us | 2 |\n", "Kernel, Time, Calls"),
        ("kernel;calls;micros\nk;2;7\n", "kernel, calls, micros"),
        ("Start (ns),Duration (ns),Name,PID\n", "Name, PID"),
        ("Start (ns),Duration (ns),Name,PID\n5,9,poll\n", "Name, PID"),
    ],
)
def test_tables_of_something_else_are_refused_with_what_was_seen(
    tmp_path: Path, content: str, seen: str
) -> None:
    said = refusal(tmp_path, content)
    assert said.startswith("expected columns of names and GPU times, got")
    assert seen in said


@pytest.mark.parametrize(
    "names",
    [
        ("hsa_signal_wait_scacquire", "hsa_amd_memory_lock"),
        ("__hipPushCallConfiguration", "hipMemcpyWithStream", "ncclAllReduce"),
        ("KERNEL_DISPATCH", "HIP_RUNTIME_API", "MARKER_CORE_API", "MEMORY_COPY"),
        ("cudaMemcpyAsync", "cudaLaunchKernel", "cuModuleLoadData"),
    ],
)
def test_tables_of_host_functions_hold_no_launches(tmp_path: Path, names: tuple[str, ...]) -> None:
    head = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
    rows = "".join(f'"{name}",4,9000000,1.5,5.25\n' for name in names)
    assert read(tmp_path, head + rows)[1:] == ([], {Skip.HOST: len(names)})


def test_tables_keep_kernels_whose_names_begin_as_host_functions(tmp_path: Path) -> None:
    kernels = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "hipcub_scan", "cudaKernel(float*)")
    rows = "".join(f'"{name}",4,9000,1.5,5.25\n' for name in kernels)
    head = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
    assert [one.name for one in read(tmp_path, head + rows)[1]] == list(kernels)


def test_tables_end_where_another_head_begins(tmp_path: Path) -> None:
    content = (
        "** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n"
        "Time (%),Total Time (ns),Instances,Name\n100.0,7000,2,k\n"
        "** CUDA API Summary (cuda_api_sum):\n"
        "Time (%),Total Time (ns),Num Calls,Name\n100.0,9000000,2,cudaGraphLaunch\n"
    )
    assert read(tmp_path, content)[1:] == (
        [Launch("k", 2, 7_000)], {Skip.COLUMNS: 1, Skip.NO_TABLE: 2},
    )  # fmt: skip


def test_tables_of_nvprof_without_types_leave_host_calls_out(tmp_path: Path) -> None:
    head = '"Time(%)","Time","Calls","Avg","Name"\n%,ms,,us,\n'
    kernels, calls = f"{head}9.5,7.0,2,3.5,k\n", f"{head}9.5,800.0,2,3.5,cudaMalloc\n"
    content = f"==7== Profiling result:\n{kernels}==7== API calls:\n{calls}"
    assert read(tmp_path, content)[1] == [Launch("k", 2, 7_000_000)]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (("117.344", "992"), "cannot tell whether the point in 117.344 is a decimal sign"),
        (("117.34", "9,92"), "a point and with a comma"),
    ],
)
def test_tables_without_one_decimal_sign_are_refused(
    tmp_path: Path, times: tuple[str, ...], said: str
) -> None:
    rows = (f'"0","k","8.9","gpu__time_duration.sum","ns","{time}"\n' for time in times)
    assert said in refusal(tmp_path, NCU + "".join(rows))


def test_tables_find_the_decimal_sign_in_any_column(tmp_path: Path) -> None:
    rows = '"0","k","8.9","gpu__time_duration.sum","ns","117.344"\n"0","k","8.9","sm","%","{}"\n'
    assert read(tmp_path, NCU + rows.format("65,77"))[1] == [Launch("k", 1, 117_344)]
    assert read(tmp_path, NCU + rows.format("65.77"))[1] == [Launch("k", 1, 117)]


@pytest.mark.parametrize("number", ["1'117'344", "1\u202f117\u202f344", "1 117 344", "1,117,344"])
def test_tables_read_thousands_as_locales_part_them(tmp_path: Path, number: str) -> None:
    row = f'"0","k","8.9","gpu__time_duration.sum","ns","{number}"\n'
    assert read(tmp_path, NCU + row)[1] == [Launch("k", 1, 1_117_344)]


def test_tables_read_rows_that_end_behind_what_is_needed(tmp_path: Path) -> None:
    content = "Name,Calls,TotalDurationNs,AverageNs,Percentage\nk,2,7000\nk,2\nk,2,7,8,9,10\n"
    assert read(tmp_path, content)[1:] == ([Launch("k", 2, 7_000)], {Skip.COLUMNS: 2})


def test_tables_of_every_form_are_told_apart() -> None:
    """No form hides another: the first that fits a form's own heads is that form."""
    for place, form in enumerate(FORMS):
        heads = {form.name, *form.time, *form.beside, form.count or form.name}
        first = next(
            number for number, other in enumerate(FORMS)
            if {other.name, *other.time, *other.beside, other.count or other.name} <= heads
            and heads.isdisjoint(other.without)
        )  # fmt: skip
        assert first == place, form


def test_copies_of_rocm_are_copies() -> None:
    rules = FamilyRules.load()
    for name in ("MEMORY_COPY_HOST_TO_DEVICE", "DEVICE_TO_HOST", "CopyHostToDevice"):
        assert rules.classify(name)[0] == "memcpy", name
