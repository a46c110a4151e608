"""A PyTorch loop that gpu_probes.py steers by lines on stdin.

steps N     makes N steps; prints the seconds they took
profile N   makes N steps under torch.profiler; prints {kernel name: [launches, ns]} as JSON
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

GRAPH: Final = "(graph)"
"""The name of a graph: its kernels are not launched one by one."""
NO_KERNELS: Final = ("Memcpy", "Memset", "Optimizer.")
"""How names on the GPU's line begin that are no kernels; the last is a range of the profiler."""


def inference(torch: Any) -> Callable[[], None]:
    """Many small kernels: launches bound it."""
    x = torch.rand(64, device="cuda")

    def step() -> None:
        for _ in range(50):
            x.mul_(1.0001).add_(0.0001).clamp_(0.0, 2.0)

    return step


def training(torch: Any) -> Callable[[], None]:
    """A perceptron with its optimizer: the GPU bounds it."""
    layers = [torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.rand(2048, 4096, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def graphs(torch: Any) -> Callable[[], None]:
    inside = inference(torch)
    inside()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside()
    replay: Callable[[], None] = graph.replay
    return replay


def streams(torch: Any) -> Callable[[], None]:
    inside, turns = inference(torch), [torch.cuda.Stream() for _ in range(4)]

    def step() -> None:
        for stream in turns:
            with torch.cuda.stream(stream):
                inside()

    return step


def triton(torch: Any) -> Callable[[], None]:
    """A kernel that Triton has compiled, launched through the driver."""
    x = torch.rand(4096, device="cuda")
    compiled = torch.compile(lambda y: torch.sin(y) * 2.0 + torch.cos(y))

    def step() -> None:
        compiled(x)

    return step


LOOPS = {f.__name__: f for f in (inference, training, graphs, streams, triton)}


def profiled(torch: Any, step: Callable[[], None], steps: int) -> dict[str, tuple[int, int]]:
    """Count and time kernels by name; what a graph launches counts as one launch of the graph."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = profile.events()
    replays = sum(1 for event in events if event.name == "cudaGraphLaunch")
    counts, times = Counter[str](), Counter[str]()
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
            times[event.name] += round(event.time_range.elapsed_us() * 1_000)
    if replays:
        return {GRAPH: (replays, sum(times.values()))}
    kernels = (name for name in counts if not name.startswith(NO_KERNELS))
    return {name: (counts[name], times[name]) for name in kernels}


def main() -> None:
    torch = importlib.import_module("torch")

    step = LOOPS[sys.argv[1]](torch)
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    if "GPU_CHECK_CPU" in os.environ:  # this thread alone: others go where they will
        os.sched_setaffinity(0, {int(os.environ["GPU_CHECK_CPU"])})
    print("ready", flush=True)
    for line in sys.stdin:
        what, number = line.split()
        begun_s = time.perf_counter()
        if what == "profile":
            print(json.dumps(profiled(torch, step, int(number))), flush=True)
            continue
        for _ in range(int(number)):
            step()
        torch.cuda.synchronize()
        print(time.perf_counter() - begun_s, flush=True)


if __name__ == "__main__":
    main()
