"""`pointillist agent`: run the agent of this host, and the commands about it.

Each command is imported when it is called: `agent run` lives for months, and holds no screen.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

from .output import examples
from .root import CommandGroup

_EXAMPLES = examples("""
pointillist agent join --config agent.toml --token-file token   have this host enrolled
pointillist agent run --config agent.toml   until SIGTERM or Ctrl-C
pointillist agent doctor   what can be collected here, and what to do about the rest
pointillist agent top   this host, live; what is shown never leaves it
pointillist agent web --open   this host in a browser; only its owner is let in
pointillist agent diagnose --live   why was it slow
pointillist agent history --since 10m   raw data of the last day
pointillist agent sent   what left this host, report by report
pointillist agent profile --pid 4711 --out calls.pb.gz   GPU calls of one process, for pprof
pointillist agent attach   what a GPU program needs, to have its kernels timed
pointillist agent ledger show --config agent.toml --json   what this host has spent
pointillist agent ledger recover --config agent.toml   after the ledger was lost""")

# Before NumPy comes: an agent multiplies nothing, and idle threads are memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "rich" not in sys.modules:  # structlog takes it where it can, for tracebacks of its own: 4 MB
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]

app = typer.Typer(
    help="The agent of this host: run it, see what it sees.", epilog=_EXAMPLES,
    no_args_is_help=True,
)  # fmt: skip

COMMANDS: Final = (
    CommandGroup("run", "agent_run", "Run the agent until SIGTERM or Ctrl-C."),
    CommandGroup("doctor", "doctor_commands", "What can be collected here."),
    CommandGroup("top", "agent_top", "This host, live."),
    CommandGroup("web", "agent_web", "This host in a browser."),
    CommandGroup("diagnose", "agent_diagnose", "When steps became slow, and why."),
    CommandGroup("history", "agent_history", "Raw data that this host keeps."),
    CommandGroup("sent", "agent_sent", "What left this host, and its noise."),
    CommandGroup("profile", "agent_profile", "GPU calls and time of one process."),
    CommandGroup("attach", "agent_attach", "What a GPU program needs to be timed."),
    CommandGroup("join", "agent_membership", "Ask to be enrolled."),
    CommandGroup("rekey", "agent_membership", "Go on under a new key."),
    CommandGroup("disown", "agent_membership", "Own identity for a copied machine."),
    CommandGroup("retire", "agent_membership", "End this host: destroy its key."),
    CommandGroup("ledger", "agent_membership", "What was spent; after a loss."),
    CommandGroup("health", "agent_health", "Check GPUs, memory, drives, links."),
)
