"""Plans: which place of a file gets which row of the table."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile, EntryClass, forward_arm64, forward_x86_64
from collectors.gpu_calls.probe_plan import FilePlan, PlanBook
from collectors.gpu_calls.probe_table import ProbeRow, ProbeTable
from collectors.records.gpu_calls import ProbeGroup
from tests.collectors.gpu_calls import elf_kit
from tests.collectors.gpu_calls.elf_kit import row

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return elf_kit.library(tmp_path_factory.mktemp("plan") / "libcuda.so.1")


VARIANTS = "(_v[0-9]+)?(_ptsz|_ptds)?"


def _plan(path: Path, *rows: ProbeRow, name: str | None = None, moved: bool = True) -> FilePlan:
    with path.open("rb") as file:
        return PlanBook(ProbeTable(rows)).plan(ElfFile.read(file), name or path.name, moved)


def _offsets(path: Path) -> dict[str, int]:
    with path.open("rb") as file:
        return {f.name: f.offset for f in ElfFile.read(file).functions()}


def _placed(path: Path, plan: FilePlan, returns: bool = False) -> dict[str, int]:
    """Names of the planned functions, each with its row."""
    names = {offset: name for name, offset in _offsets(path).items()}
    return {
        names[offset]: row
        for part in plan.attachments
        if part.returns is returns
        for offset, row in zip(part.offsets, part.rows, strict=True)
    }


def test_plan_attaches_every_variant_of_a_name(built: Path) -> None:
    plan = _plan(
        built,
        row(ProbeGroup.MEMORY, ("cuMemAlloc" + VARIANTS,)),
        row(ProbeGroup.LAUNCH, ("cudaLaunchKernel(_ptsz)?",)),
    )
    assert _placed(built, plan) == {
        "cuMemAlloc": 0,
        "cuMemAlloc_v2": 0,
        "cuMemAlloc_v2_ptds": 0,
        "cudaLaunchKernel": 1,
        "cudaLaunchKernel_ptsz": 1,
    }


def test_plan_gives_a_function_to_the_first_row_of_its_group(built: Path) -> None:
    plan = _plan(
        built,
        row(ProbeGroup.MEMORY, ("cuMemAlloc_v2",)),
        row(ProbeGroup.MEMORY, ("cuMem.*",)),
        row(ProbeGroup.MEMORY, ("cuMemAlloc",)),
    )
    assert _placed(built, plan) == {
        "cuMemAlloc": 1,
        "cuMemAlloc_v2": 0,
        "cuMemAlloc_v2_ptds": 1,
        "cuMemAllocHost": 1,
    }


def test_plan_probes_aliases_once(built: Path) -> None:
    plan = _plan(
        built, row(ProbeGroup.COLLECTIVE, ("ncclAllReduce", "pncclAllReduce"), returns=True)
    )
    entry, back = plan.attachments
    assert entry.offsets == back.offsets == (_offsets(built)["ncclAllReduce"],)
    assert (entry.returns, back.returns) == (False, True)


def test_plan_attaches_returns_in_their_own_group(built: Path) -> None:
    plan = _plan(
        built,
        row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",), returns=True),
        row(ProbeGroup.OTHER, ("cudaLaunchKernel",)),
    )
    assert [(part.group, part.returns, part.rows) for part in plan.attachments] == [
        (ProbeGroup.LAUNCH, False, (0,)),
        (ProbeGroup.LAUNCH_RESULT, True, (0,)),
        (ProbeGroup.OTHER, False, (1,)),
    ]


def test_plan_holds_to_the_files_of_a_row(built: Path) -> None:
    wanted = row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",), files=("libcuda.so*",))
    assert _plan(built, wanted)
    assert not _plan(built, wanted, name="trainer")


@pytest.mark.parametrize("flags", [("-pie",), ("-no-pie",), ("-static",), ("-static-pie",)])
def test_plan_finds_a_runtime_inside_a_program(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source = elf_kit.STATIC + "int main(void) { return cudaLaunchKernel(1); }"
    program = elf_kit.compile_c(source, tmp_path / "trainer", *flags)
    assert "cudaLaunchKernel" in _placed(
        program, _plan(program, row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",)))
    )


def test_plan_says_that_a_stripped_static_runtime_is_unseen(tmp_path: Path) -> None:
    device_code = '__attribute__((section(".nv_fatbin"))) const char image[] = "code";'
    source = elf_kit.STATIC.replace("int cu", "static __attribute__((used)) int cu")
    program = elf_kit.compile_c(
        source + device_code + "int main(void) { return 0; }", tmp_path / "trainer", "-s"
    )
    plan = _plan(program, row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",)))
    assert not plan
    assert "static and stripped" in plan.remark
    register = "int __cudaRegisterFatBinary(void*)"
    stub = "int __cudaRegisterFatBinary(void *p) { return p != 0; }"
    runtime = elf_kit.library(tmp_path / "libcudart.so", source=stub)
    dynamic = elf_kit.compile_c(
        f"{device_code}{register}; int main(void) {{ return __cudaRegisterFatBinary(0); }}",
        tmp_path / "dynamic", "-s", runtime,
    )  # fmt: skip
    assert _plan(dynamic, row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",))) == FilePlan(())


def test_plan_probes_behind_endbr64(tmp_path: Path) -> None:
    source = "int other(int); int cudaLaunchKernel(int a) { return other(a) + a; }"
    path = elf_kit.library(tmp_path / "libcudart.so.13", "-fcf-protection", source=source)
    wanted = row(ProbeGroup.LAUNCH, ("cudaLaunchKernel",))
    start = _offsets(path)["cudaLaunchKernel"]
    (behind,) = _plan(path, wanted).attachments
    (before,) = _plan(path, wanted, moved=False).attachments
    assert (behind.offsets, behind.classes) == ((start + 4,), (EntryClass.EMULATED,))
    assert (before.offsets, before.classes) == ((start,), (EntryClass.STEPPED,))


def test_plan_attaches_usdt_marks_with_their_semaphores(built: Path) -> None:
    wanted = row(ProbeGroup.OTHER, usdt=("torch:*",), files=("libcuda*",))
    (part,) = _plan(built, wanted).attachments
    assert len(part.offsets) == 2
    assert part.semaphores[0] == 0 != part.semaphores[1]
    assert not _plan(built, wanted, name="elsewhere")
    one = row(ProbeGroup.OTHER, usdt=("torch:op",))
    assert len(_plan(built, one).attachments[0].offsets) == 1


def test_plan_of_a_file_with_more_places_than_a_link_takes_is_refused(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes a file chooses its names: the link's error would end who attaches."""
    monkeypatch.setattr("collectors.gpu_calls.probe_plan.MOST_PLACES", 2)
    with pytest.raises(ElfError, match="expected at most 2 places"):
        _plan(built, row(ProbeGroup.MEMORY, ("cuMemAlloc" + VARIANTS,)))


def test_plan_of_a_file_with_more_names_than_any_library_is_refused(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.gpu_calls.probe_plan._MOST_NAMES", 2)
    with pytest.raises(ElfError, match="expected at most 2 names"):
        _plan(built, row(ProbeGroup.MEMORY, ("cuMemAlloc" + VARIANTS,)))


FORWARDS = """
volatile int seen;
__attribute__((noinline)) int cuLaunch(int a) { seen += a; return seen; }
int cuLaunch_wrapper(int a) { return cuLaunch(a); }
int cuOther(int a) { return cuLaunch(a); }
"""


def test_plan_leaves_out_what_only_jumps_to_another_function_of_its_row(tmp_path: Path) -> None:
    path = elf_kit.library(tmp_path / "libcuda.so.1", "-O2", "-Wl,-Bsymbolic", source=FORWARDS)
    plan = _plan(
        path, row(ProbeGroup.LAUNCH, ("cuLaunch(_wrapper)?",)), row(ProbeGroup.COPY, ("cuOther",))
    )
    assert _placed(path, plan) == {"cuLaunch": 0, "cuOther": 1}


@pytest.mark.parametrize(
    ("code", "far"),
    [
        ("e910000000", 0x15),
        ("554889e55de9fbffffff", 5),
        ("f30f1efae9f0ffffff", -7),
        ("554889e54157e900000000", None),
        ("e910", None),
    ],
)
def test_forward_of_x86_64_is_a_jump_and_nothing_else(code: str, far: int | None) -> None:
    assert forward_x86_64(bytes.fromhex(code)) == far


@pytest.mark.parametrize(
    ("code", "far"),
    [
        ("04000014", 16),
        ("ffffff17", -4),
        ("5f2403d502000014", 12),
        # sub sp, sp, #32; mov w4, w4; mov w2, w2; add sp, sp, #32; b: NVIDIA's __cudaLaunchKernel
        ("ff8300d1e403042ae203022aff83009104000014", 32),
        ("e203022a04000014", 20),
        ("fd7bbfa9", None),
        ("ff8300d1ff43009104000014", None),  # another frame taken back than was made
        ("ff8300d1e203022a04000014", None),
        ("ff83009104000014", None),
        ("e20302aa04000014", None),  # mov x2, x2
    ],
)
def test_forward_of_arm64_is_a_branch_and_nothing_else(code: str, far: int | None) -> None:
    assert forward_arm64(bytes.fromhex(code)) == far
