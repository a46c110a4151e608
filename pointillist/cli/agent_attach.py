"""`pointillist agent attach`: what to set so that a GPU program's kernels are timed."""

from __future__ import annotations

import json as json_module
import os
import platform
import pwd
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from collectors.gpu_time.found_programs import library_file
from collectors.gpu_time.gpu_time_source import DEFAULT_SOCKET, MOST_SOCKET_PATH

from .output import JsonFlag, emit, examples, unavailable, usage_error

_EPILOG: Final = examples("""
eval "$(pointillist agent attach)" && python train.py
pointillist agent attach systemd   lines for a unit of a GPU service
pointillist agent attach kubernetes   lines for a pod's specification
pointillist agent attach --graphs whole   one record of each CUDA graph, none of its kernels""")

_LOADS: Final = "CUDA_INJECTION64_PATH"
_FINDS: Final = "POINTILLIST_GPU_TIME_SOCKET"
_TRUSTS: Final = "POINTILLIST_AGENT_UID"
_GRAPHS: Final = "POINTILLIST_GPU_TIME_GRAPHS"
_USER: Final = "pointillist-agent"


class Where(StrEnum):
    SHELL = "shell"
    SYSTEMD = "systemd"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class Graphs(StrEnum):
    KERNELS = "kernels"
    WHOLE = "whole"


app = typer.Typer()


@app.command(epilog=_EPILOG)
def attach(
    where: Annotated[Where, typer.Argument(help="What starts the GPU program.")] = Where.SHELL,
    socket: Annotated[
        Path | None, typer.Option(help="The agent's socket; else /run/pointillist/gpu-time.sock.")
    ] = None,
    user: Annotated[str, typer.Option(help="The user as whom the agent runs.")] = _USER,
    graphs: Annotated[
        Graphs,
        typer.Option(help="Record the kernels of CUDA graphs, or graphs as wholes: cheaper."),
    ] = Graphs.KERNELS,
    json: JsonFlag = False,
) -> None:
    """Print what a GPU program needs in its environment to have its kernels timed.

    The CUDA driver then loads a library of Pointillist's into the program when it first uses a GPU.
    The library looks for this host's agent and does nothing else until that asks it to. It listens
    to an agent that is root, the program's own user, or the agent's user of this machine.
    """
    library, at = library_file(), (socket or DEFAULT_SOCKET).absolute()
    if not library.exists():
        machine = platform.machine()
        raise unavailable(f"expected x86_64 or aarch64, this machine is {machine}")
    if (length := len(os.fsencode(at))) > MOST_SOCKET_PATH:
        raise usage_error(
            f"expected a socket's path of at most {MOST_SOCKET_PATH} bytes, got {length}"
        )
    variables = {_LOADS: str(library)}
    if at != DEFAULT_SOCKET:
        variables[_FINDS] = str(at)
    uid = _uid(user)
    if uid is not None:
        variables[_TRUSTS] = str(uid)
    if graphs is not Graphs.KERNELS:
        variables[_GRAPHS] = graphs
    emit({"where": where, "environment": variables}, json, _lines(where, variables, library, at))


def _uid(user: str) -> int | None:
    """Give a user's number; None where the usual one is not there, as the agent is then root.

    Raises  CommandError for another that is not there
    """
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        if user == _USER:
            return None
        raise usage_error(f"expected a user of this machine, got {user}") from None


def _lines(where: Where, variables: dict[str, str], library: Path, socket: Path) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    match where:
        case Where.SHELL:
            return "\n".join(exports)
        case Where.SYSTEMD:
            lines = (f'Environment="{name}={_in_unit(v)}"' for name, v in variables.items())
            return "\n".join(["# systemctl edit UNIT", "[Service]", *lines])
        case Where.SLURM:
            # Slurm sets what a task prolog prints as `export NAME=value`, without a shell.
            prints = (f"echo {shlex.quote(f'export {n}={v}')}" for n, v in variables.items())
            head = "# in the TaskProlog, a script that Slurm runs before each task"
            return "\n".join([head, *prints])
        case Where.KUBERNETES:
            return _pod(variables, library, socket)


def _in_unit(value: str) -> str:
    """Write a value as systemd reads it: % begins a specifier, and quotes are escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%")


def _pod(variables: dict[str, str], library: Path, socket: Path) -> str:
    """Both folders are the host's: they are mounted into the container at the same places.

    Strings are quoted, as JSON is YAML: a variable's value must be one, and a number is none. The
    socket can be connected to through a mount that is read-only.
    """
    environment = "\n".join(
        f"        - name: {name}\n          value: {json_module.dumps(value)}"
        for name, value in variables.items()
    )
    library_folder, socket_folder = (
        json_module.dumps(str(path.parent)) for path in (library, socket)
    )
    return f"""# in the pod's specification
spec:
  containers:
    - name: NAME
      env:
{environment}
      volumeMounts:
        - name: pointillist-library
          mountPath: {library_folder}
          readOnly: true
        - name: pointillist-socket
          mountPath: {socket_folder}
          readOnly: true
  volumes:
    - name: pointillist-library
      hostPath:
        path: {library_folder}
        type: Directory
    - name: pointillist-socket
      hostPath:
        path: {socket_folder}
        type: Directory"""
