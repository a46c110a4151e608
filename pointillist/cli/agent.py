"""`pointillist agent`: run the agent of this host, and the commands about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import agent_file
from .agent_attach import EPILOG as ATTACH_EPILOG
from .agent_attach import attach
from .agent_diagnose import EPILOG as DIAGNOSE_EPILOG
from .agent_diagnose import diagnose
from .agent_health import health
from .agent_history import EPILOG as HISTORY_EPILOG
from .agent_history import history
from .agent_join import EPILOG as JOIN_EPILOG
from .agent_join import join
from .agent_ledger import ledger_app
from .agent_profile import EPILOG as PROFILE_EPILOG
from .agent_profile import profile
from .agent_rekey import REKEY_EPILOG, RETIRE_EPILOG, rekey, retire
from .agent_run import Options, run_agent
from .agent_sent import EPILOG as SENT_EPILOG
from .agent_sent import sent
from .agent_top import EPILOG as TOP_EPILOG
from .agent_top import top
from .agent_web import EPILOG as WEB_EPILOG
from .agent_web import web
from .doctor_commands import AGENT_EPILOG as DOCTOR_EPILOG
from .doctor_commands import agent_doctor

_EXAMPLES = """Examples:

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

pointillist agent ledger recover --config agent.toml   after the ledger was lost"""

app = typer.Typer(
    help="The agent of this host: run it, see what it sees.", epilog=_EXAMPLES,
    rich_markup_mode="rich", no_args_is_help=True,
)  # fmt: skip
app.add_typer(ledger_app, name="ledger")
app.command("doctor", epilog=DOCTOR_EPILOG)(agent_doctor)
app.command(epilog=TOP_EPILOG)(top)
app.command(epilog=WEB_EPILOG)(web)
app.command(epilog=DIAGNOSE_EPILOG)(diagnose)
app.command(epilog=HISTORY_EPILOG)(history)
app.command(epilog=SENT_EPILOG)(sent)
app.command(epilog=PROFILE_EPILOG)(profile)
app.command(epilog=ATTACH_EPILOG)(attach)
app.command(epilog=JOIN_EPILOG)(join)
app.command(epilog=REKEY_EPILOG)(rekey)
app.command(epilog=RETIRE_EPILOG)(retire)
app.command(epilog="Example: pointillist agent health --machine nd96isr_h100_v5 --json")(health)


@app.command(epilog="Example: pointillist agent run --config /etc/pointillist/agent.toml")
def run(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file; else /etc/pointillist/agent.toml."),
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="The host's key.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Ledger, spool, history.")] = None,
    log_folder: Annotated[Path | None, typer.Option(help="Folder of the embedded log.")] = None,
    leader: Annotated[list[str] | None, typer.Option(help="A Leader's key, hex; repeat.")] = None,
    helper: Annotated[list[str] | None, typer.Option(help="A Helper's key, hex; repeat.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Model of a GPU; repeat.")] = None,
    gpu_uuid: Annotated[list[str] | None, typer.Option(help="Its GPU-...; repeat.")] = None,
    replay: Annotated[list[Path] | None, typer.Option(help="A trace to play; repeat.")] = None,
    loader: Annotated[
        str | None,
        typer.Option(help="Kernel-level metrics by eBPF, through auto, libbpf or bcc."),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other key: section.key=value; repeat."),
    ] = None,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C; SIGHUP reloads sources and log level.

    Options stand above the file, and can do without one. The agent logs to stderr, never a
    measurement; it refuses demo tasks and seeded noise. Started as root it becomes the configured
    user before it opens a key.
    """
    flags = {
        "host.key_file": key_file, "host.state_dir": state_dir, "host.gpus": gpu,
        "host.gpu_uuids": gpu_uuid, "transport.folder": log_folder, "trust.leaders": leader,
        "trust.helpers": helper,
    }  # fmt: skip
    options = Options(config, flags, replay or (), loader, assign or ())
    run_agent(options, agent_file.become_agent)
