"""`pointillist agent attach`: what to set so that a GPU program's kernels are timed."""

from __future__ import annotations

import platform
import pwd
from contextlib import suppress
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from .output import JsonFlag, emit, unavailable

EPILOG: Final = """Examples:

eval "$(pointillist agent attach)" && python train.py

pointillist agent attach systemd   lines for a unit of a GPU service

pointillist agent attach kubernetes   lines for a pod's specification

pointillist agent attach --graphs whole   one record of each CUDA graph, none of its kernels"""

_LOADS: Final = "CUDA_INJECTION64_PATH"
_FINDS: Final = "POINTILLIST_GPU_TIME_SOCKET"
_TRUSTS: Final = "POINTILLIST_AGENT_UID"
_GRAPHS: Final = "POINTILLIST_GPU_TIME_GRAPHS"
_USER: Final = "pointillist-agent"


class Where(StrEnum):
    """What starts the GPU program."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class Graphs(StrEnum):
    """What is recorded of CUDA graphs."""

    KERNELS = "kernels"
    WHOLE = "whole"


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
    The library does nothing until this host's agent asks it to, and costs nothing then. It listens
    to an agent that is root, the program's own user, or the agent's user of this machine.
    """
    from collectors.gpu_time.settings import DEFAULT_SOCKET

    library, at = _library(), socket or DEFAULT_SOCKET
    variables = {_LOADS: str(library)}
    if at != DEFAULT_SOCKET:
        variables[_FINDS] = str(at)
    with suppress(KeyError):
        variables[_TRUSTS] = str(pwd.getpwnam(user).pw_uid)
    if graphs is not Graphs.KERNELS:
        variables[_GRAPHS] = graphs
    emit({"where": where, "environment": variables}, json, _lines(where, variables, library, at))


def _library() -> Path:
    """Give the library of this machine. Raises CommandError where there is none."""
    machine = platform.machine()
    library = Path(str(files("cupti"))) / "objects" / f"libpointillist-gpu-time.{machine}.so"
    if not library.exists():
        raise unavailable(f"expected a library for x86_64, this machine is {machine}")
    return library


def _lines(where: Where, variables: dict[str, str], library: Path, socket: Path) -> str:
    exports = [f"export {name}={value}" for name, value in variables.items()]
    if where is Where.SHELL:
        return "\n".join(exports)
    if where is Where.SYSTEMD:
        settings = "\n".join(f"Environment={name}={value}" for name, value in variables.items())
        return f"# systemctl edit UNIT\n[Service]\n{settings}"
    if where is Where.SLURM:
        # Slurm sets what a task prolog prints as `export NAME=value`.
        printed = "\n".join(f'echo "{line}"' for line in exports)
        return f"# in the TaskProlog, which Slurm runs before each task\n{printed}"
    return _pod(variables, library, socket)


def _pod(variables: dict[str, str], library: Path, socket: Path) -> str:
    """Both files are the host's: they are mounted into the container at the same places."""
    environment = "\n".join(
        f"        - name: {name}\n          value: {value}" for name, value in variables.items()
    )
    return f"""# in the pod's specification
spec:
  containers:
    - name: NAME
      env:
{environment}
      volumeMounts:
        - name: pointillist-library
          mountPath: {library.parent}
          readOnly: true
        - name: pointillist-socket
          mountPath: {socket.parent}
  volumes:
    - name: pointillist-library
      hostPath:
        path: {library.parent}
    - name: pointillist-socket
      hostPath:
        path: {socket.parent}"""
