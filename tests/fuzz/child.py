"""A slice of fuzzing in a process that libFuzzer ends: python -m tests.fuzz.child TARGET."""

from __future__ import annotations

import shlex
import sys

import atheris

_PACKAGES = ["wire", "transport", "collectors", "kernels", "diagnosis"]


def main() -> None:
    """Follow which lines the inputs reach in the parsers' packages, and look for more."""
    with atheris.instrument_imports(include=_PACKAGES):
        from tests.fuzz.targets import load

        target = load(sys.argv[1])
    # libFuzzer begins itself again, through a shell, to merge inputs.
    again = shlex.join([sys.executable, "-m", "tests.fuzz.child", sys.argv[1]])
    atheris.Setup([again, *sys.argv[2:]], target.fuzz)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
