"""The command `pointillist`, whose demo plays its hosts through `tests.recording_slice`."""

from __future__ import annotations

from pointillist.cli import main
from pointillist.demo.processes import Child, Family

_start = Family.start


def _recorded(self: Family, name: str, *module: str) -> Child:
    if module[0] == "simulator.slice_process":
        module = ("tests.recording_slice", *module[1:])
    return _start(self, name, *module)


if __name__ == "__main__":
    Family.start = _recorded  # type: ignore[method-assign]
    main()
