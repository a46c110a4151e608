"""GPU calls as a source hands them out, with numbers that add up by hand."""

from __future__ import annotations

from dataclasses import replace

from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    CollectiveCalls,
    CopyCalls,
    CountedCalls,
    Direction,
    ErrorCalls,
    GovernorState,
    GpuCalls,
    KernelCalls,
    MemoryState,
    ProbeGroup,
    ProcessCalls,
    ProcessLabels,
    Unnamed,
    WaitCalls,
)
from tests.local_kit import BOOT, S

TRAINER = ProcessKey(4711, BOOT - 3600 * S)
SERVER = ProcessKey(815, BOOT - 60 * S)
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16>(T1::Params)"


def gpu_calls(at_ns: int = BOOT, span_ns: int = S, times: int = 1) -> GpuCalls:
    """A trainer of which everything is seen; `times` as many calls, the same memory."""
    trainer = ProcessCalls(
        TRAINER,
        ProcessLabels("python3", "c" * 64, "0f0f0f0f-0000", "77", "llm_training"),
        CountedCalls.exactly(1100 * times),
        WaitCalls(CountedCalls.exactly(10 * times), S // 4 * times),
        (
            CopyCalls(
                Direction.HOST_TO_DEVICE, CountedCalls.exactly(7 * times), 7_340_032 * times,
                ((12, 3 * times), (20, 4 * times)),
            ),
            CopyCalls(
                Direction.DEVICE_TO_HOST, CountedCalls.exactly(2 * times), 2048 * times,
                ((10, 2 * times),),
            ),
        ),
        MemoryState(3 << 30, 5 << 30, 120, 20, 1800 * S),
        (
            CollectiveCalls(
                0x7F00AA00, "all_reduce", CountedCalls.exactly(4 * times), (400 << 20) * times,
                8_000_000 * times,
            ),
        ),
        (ErrorCalls("cudart.alloc", 2, 3 * times),),
    )  # fmt: skip
    kernels = (
        KernelCalls(TRAINER, GEMM, "gemm", CountedCalls.exactly(1000 * times), 2000 * times, 0),
        KernelCalls(
            TRAINER, "flash_fwd_kernel", "attention", CountedCalls.exactly(100 * times), 0, 0
        ),
    )
    return GpuCalls(at_ns, span_ns, (trainer,), kernels)


def sampled_calls(at_ns: int = BOOT) -> GpuCalls:
    """A server seen in a quarter of a period of 8 s."""
    launches = CountedCalls(500, 2000.0, 10_000.0, 0.25)
    server = ProcessCalls(
        SERVER,
        ProcessLabels("vllm"),
        launches,
        WaitCalls(CountedCalls(1, 4.0, 16.0, 0.25), S // 2),
        (CopyCalls(Direction.DEFAULT, CountedCalls(3, 12.0, 4.0, 0.25), 1 << 20, ((18, 3),)),),
    )
    kernel = KernelCalls(SERVER, "paged_attention_v2", "attention", launches, 500, 64_000)
    return GpuCalls(at_ns, 8 * S, (server,), (kernel,), dict.fromkeys(ProbeGroup, 0.25))


def governor_state(at_ns: int = BOOT) -> GovernorState:
    over = "over the budget"
    return GovernorState(
        at_ns, 8 * S, "libbpf", 0.005, 0.25, (ProbeGroup.NAME, ProbeGroup.MEMORY),
        (ProbeGroup.LAUNCH, ProbeGroup.COPY),
        {ProbeGroup.OTHER: over, ProbeGroup.SYNCHRONISE: over}, 0.0044, 0.0041,
        SERVER, 3, {"samples": 17}, 4000, {Unnamed.HANDLE: 500},
    )  # fmt: skip


def many_calls(processes: int, kernels: int) -> GpuCalls:
    """That many processes, each with that many kernels; the later, the busier."""
    (one,), (gemm, _) = gpu_calls().processes, gpu_calls().kernels
    keys = [ProcessKey(1000 + number, BOOT) for number in range(processes)]
    return GpuCalls(
        BOOT,
        S,
        tuple(
            replace(one, process=key, launches=CountedCalls.exactly(10 + number))
            for number, key in enumerate(keys)
        ),
        tuple(
            gemm._replace(process=key, kernel=f"kernel_{n}", launches=CountedCalls.exactly(1 + n))
            for key in keys
            for n in range(kernels)
        ),
    )
