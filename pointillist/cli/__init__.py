"""The `pointillist` command; each group is a module of this package, loaded when it is used."""

from __future__ import annotations

import sys

from transport.process.unforeseen import told

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, for a Ctrl-C that comes while the command is still being loaded."""


def main() -> None:
    """Run the command line; every way out has a documented exit code."""
    with told(json="--json" in sys.argv):
        try:
            from .root import main as run
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        run()
