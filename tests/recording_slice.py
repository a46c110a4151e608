"""A slice of the demo's fleet that writes down, in steps, what it encoded and what noise it drew.

Started in place of `simulator.slices` by `tests.recorded_demo`; one line of JSON per window.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.protocol import participant
from edge_agent.protocol.seal_report import Sealing, seal_reports
from edge_agent.windows.encode import encode_rows
from privacy.noise import NoiseSampler
from simulator import slices
from simulator.slices import SliceConfig
from wire.fields import Scheme, TaskId
from wire.task import Task

FILE: Final = "POINTILLIST_TEST_RECORD"
"""Names the file; it is opened before root is given up."""


class Recorder:
    """What the participant did since the last window was sealed."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._line: dict[str, Any] = {}

    def encode(
        self, task: Task, rows: NDArray[np.int64], random_bytes: Callable[[int], bytes]
    ) -> NDArray[np.int64]:
        steps = encode_rows(task, rows, random_bytes)
        self._line = {"series": task.series, "true": steps.sum(axis=0).tolist()}
        return steps

    def seal(
        self,
        task_id: TaskId,
        scheme: Scheme,
        window_s: int,
        hosts: Sequence[Sealing],
        noisy: NDArray[np.int64],
        random_bytes: Callable[[int], bytes],
    ) -> list[bytes]:
        line = {**self._line, "window": window_s, "hosts": len(hosts)}
        self._write(json.dumps(line) + "\n")
        return seal_reports(task_id, scheme, window_s, hosts, noisy, random_bytes)

    def drew(self, noise: NDArray[np.int64]) -> None:
        self._line["noise"] = noise.sum(axis=0).tolist()


class RecordedSampler:
    def __init__(self, inner: NoiseSampler, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder

    @property
    def seeded(self) -> bool:
        return self._inner.seeded

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = self._inner.sample(hosts, sigma_1024)
        self._recorder.drew(noise)
        return noise


def main() -> None:
    samplers = slices._samplers
    with Path(os.environ[FILE]).open("a", encoding="utf-8", buffering=1) as file:
        recorder = Recorder(file.write)

        def watched(config: SliceConfig) -> NoiseSampler:
            return RecordedSampler(samplers(config), recorder)

        slices._samplers = watched
        participant.encode_rows = recorder.encode  # type: ignore[attr-defined]
        participant.seal_reports = recorder.seal  # type: ignore[attr-defined]
        slices.main()


if __name__ == "__main__":
    main()
