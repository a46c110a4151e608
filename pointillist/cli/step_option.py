"""The option `--step`: which function ends a step, for every command that watches a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .output import need_file, usage_error

if TYPE_CHECKING:
    from collectors.steps.step_programs import StepProbe


def step_probe(text: str) -> StepProbe:
    """Read FILE:FUNCTION, or FILE:FUNCTION() where each call is a step.

    Raises      CommandError
    """
    from collectors.steps.step_programs import StepProbe

    path, colon, symbol = text.rpartition(":")
    name = symbol.removesuffix("()")
    if not colon or not path or not name:
        raise usage_error(f"--step: expected FILE:FUNCTION, got {text!r}")
    file = need_file(Path(path), "a program or library", "--step FILE:FUNCTION")
    return StepProbe(str(file.absolute()), name, returns=symbol != name)
