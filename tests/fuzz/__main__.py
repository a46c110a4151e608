"""Fuzz every parser of a stranger's bytes for a while: python -m tests.fuzz --minutes 60.

What was spent and found stands in `fuzzed.json` after every slice, and the inputs that reached
something new in `bench/.cache/fuzz`, so a run that is cut off goes on where it was. The target with
the least time is next. --keep puts the smallest inputs that reach everything into `corpus/`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.targets import NAMES

SLICE_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="of the clock, all targets")
    parser.add_argument("--only", choices=NAMES, action="append", help="these targets alone")
    parser.add_argument("--keep", action="store_true", help="write the committed corpus anew")
    asked = parser.parse_args()
    os.nice(19)
    fuzzing = Fuzzing(Path("bench/.cache/fuzz"))
    names = tuple(asked.only or NAMES)
    fuzzing.forget_mended()
    if asked.keep:
        for name in names:
            print(f"{name}: {fuzzing.keep(name)} inputs kept")
        return
    end = time.monotonic() + 60 * asked.minutes
    while (left := end - time.monotonic()) > 1 and (name := fuzzing.next_of(names)):
        fuzzing.slice(name, max(1, round(min(SLICE_S, left))))
        print(fuzzing.line(name), flush=True)
    for name in names:
        print(fuzzing.line(name))
    sys.exit(1 if fuzzing.open_crashes() else 0)


if __name__ == "__main__":
    main()
