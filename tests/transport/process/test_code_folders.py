"""A role that gave root up has its code, whoever may enter the folder that it lies in."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.closed_kit import REPOSITORY, closed, may_mount
from transport.process.privileges import reachable

pytestmark = pytest.mark.slow

ROLE_PACKAGES = (
    "wire",
    "privacy",
    "transport",
    "kernels",
    "collectors",
    "diagnosis",
    "edge_agent",
    "aggregator",
    "analytics",
    "pages",
)
CLOSABLE = pytest.mark.skipif(not may_mount(), reason="needs root that may mount")

_LATE = f"""
import importlib, pkgutil
from importlib import metadata, resources
from pathlib import Path
packages = [importlib.import_module(name) for name in {(*ROLE_PACKAGES, "bpf", "simulator")}]
from simulator.applications import load_workloads
from transport.process.privileges import HELPER_USER, drop_to
from wire.catalogue import Catalogue
drop_to(HELPER_USER)
for package in packages:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if package.__name__ != "simulator":
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:  # Spark has an environment of its own
                if missing.name.partition(".")[0] != "pyspark":
                    raise
waiting = [resources.files(package) for package in packages]
read = 0
while waiting:
    for entry in waiting.pop().iterdir():
        if entry.is_dir():
            waiting.append(entry)
        elif not entry.name.endswith(".pyc"):
            read += bool(entry.read_bytes())
import scipy.stats, numpy.ma, email.mime.text, pandas
assert scipy.stats.norm.cdf(0.0) == 0.5
assert Catalogue.load().sections and load_workloads()
assert metadata.version("pointillist")
from edge_agent.protocol.task_check import choose_gate
from privacy.accountant import gate
assert choose_gate() is gate  # a child would find no package in the folder
try:
    Path({str(REPOSITORY / "pyproject.toml")!r}).read_text()
except PermissionError:
    print("read", read)
"""

_CHILDREN = """
from collectors.devices.bounded import Spawner
from edge_agent.protocol.task_check import GateProcess, choose_gate
from collectors.binaries.symbols import Demangler
from privacy.accountant import SectionNoise
from transport.process.privileges import AGENT_USER, drop_to
def late(pipe):
    import email.mime.text
    pipe.send(email.mime.text.__name__)
drop_to(AGENT_USER)
gate = choose_gate()
assert isinstance(gate, GateProcess)
noise = SectionNoise(1_000, sigma_1024=1 << 20, windows=10, coordinates=4, honest_hosts=9)
assert 0 < gate([noise], 2_000_000, 1_000) < 2
spawner = Spawner()
print(Demangler().demangle(["_Z3addPf"])[0], spawner.start(late).connection.recv())
spawner.close()
"""

_UNREADABLE = """
import os, sys, tempfile
from pathlib import Path
from transport.process.privileges import AGENT_USER, drop_to
with tempfile.TemporaryDirectory() as name:
    package = Path(name, "private_package")
    package.mkdir(mode=0o700)
    (package / "__init__.py").write_text("")
    sys.path.append(name)
    import private_package
    drop_to(AGENT_USER)
"""


def run(script: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run a script in the checkout, with a folder closed."""
    command = closed([sys.executable, "-c", script], folder)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.root
@CLOSABLE
def test_dropped_role_loads_every_module_and_file_from_a_closed_checkout() -> None:
    done = run(_LATE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.removeprefix("read ")) > 300  # and the checkout's other files it cannot


@pytest.mark.root
@CLOSABLE
def test_dropped_agent_begins_children_from_below_a_closed_folder() -> None:
    done = run(_CHILDREN, folder=REPOSITORY.parent)
    assert done.stdout == "add(float*) email.mime.text\n", done.stderr


@pytest.mark.root
def test_drop_names_code_that_its_own_mode_closes() -> None:
    done = run(_UNREADABLE)
    assert "private_package: expected that pointillist-agent may read the code" in done.stderr
    assert "chmod -R go+rX" in done.stderr


def test_code_is_reachable_by_its_owner_alone_below_a_private_folder(tmp_path: Path) -> None:
    below = tmp_path / "private" / "checkout"
    below.mkdir(parents=True)
    below.parent.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(below)
    assert reachable(link, os.getuid(), os.getgid())
    assert not reachable(link, os.getuid() + 1, os.getgid() + 1)


@pytest.mark.parametrize("package", ROLE_PACKAGES)
def test_modules_of_roles_name_no_path_when_they_are_imported(package: str) -> None:
    """Such a path would be the one that closes when root is given up."""
    for path in (REPOSITORY / package).rglob("*.py"):
        early = [node.lineno for node in _evaluated(ast.parse(path.read_text())) if _is_path(node)]
        assert not early, f"{path}:{early}: find files when they are read"


def _is_path(node: ast.expr) -> bool:
    """Whether it asks where this module lies: `__file__`, or a call of `files`."""
    called = node.func if isinstance(node, ast.Call) else None
    name = getattr(called, "attr", getattr(called, "id", None))
    return name == "files" or (isinstance(node, ast.Name) and node.id == "__file__")


def _evaluated(node: ast.AST) -> Iterator[ast.expr]:
    """Give the expressions that an import evaluates: those of no function's body."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in (*child.args.defaults, *filter(None, child.args.kw_defaults)):
                yield from (default, *_evaluated(default))
        elif not isinstance(child, ast.Lambda):
            yield from _evaluated(child)
