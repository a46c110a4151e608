"""GPU programs without a GPU that load the library of cupti/, and agents for them to meet."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Final

from bench.steered import Steered
from scripts.gpu_time.listening import injected
from tests.fake_library import MACHINE, RUNNER, built, built_program
from tests.real_libraries import installed

CUPTI: Final = Path(__file__).parents[1] / "cupti"
FAKES: Final = Path(__file__).parent / "fakes" / "cupti"
PATIENCE_S: Final = 20.0


def cupti_folder() -> Path:
    """Give the folder of the installed CUPTI's include/ and lib/; it is in the group `dev`."""
    return installed("cupti_activity.h")


class Program(Steered):
    def __init__(
        self,
        agent: Path,
        *words: str,
        source: str = "program.c",
        options: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        self.log = agent.parent / f"cupti-{time.monotonic_ns()}.log"
        cupti = built(FAKES / "fake_cupti.c", "libcupti.so.13", CUPTI, options)
        driver = built(FAKES / "fake_driver.c", "libcuda.so.1", CUPTI, options)
        given = {
            **injected(agent, MACHINE), "POINTILLIST_CUPTI": str(cupti), "FAKE_DRIVER": str(driver),
            "FAKE_CUPTI_LOG": str(self.log),
        }  # fmt: skip
        self.errors = ""
        """What it wrote to its standard error, once it has ended."""
        started = built_program(FAKES / source, options=options)
        super().__init__(
            [*RUNNER, started, *words], os.environ | given | environment, errors=subprocess.PIPE
        )
        self.said = self.answer()

    @property
    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.strip() for line in lines]

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Let it come to its end; give its exit code."""
        _, self.errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


program = Program
