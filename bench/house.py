"""How the product is divided into rooms and modules: make bench-house.

Counts the tree as it is, beside the tree of commit BEFORE, as git has it. Which modules a launch
passes is found by sending one through either tree: `launch_way.py` says what counts.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.record import ROOT, Figure, write_result

BEFORE: Final = "991071d"
"""The last commit before collectors, kernels and diagnosis left the agent's package."""
PACKAGES: Final = (
    "wire", "privacy", "transport", "kernels", "collectors", "diagnosis", "edge_agent",
    "aggregator", "analytics", "simulator", "web", "pages", "pointillist",
)  # fmt: skip
SMALL_LINES: Final = 100
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
GOALS: Final = {
    "largest_package_share_percent": 25.0,
    "modules_under_100_lines": 120.0,
    "back_imports": 0.0,
    "modules_on_a_launchs_way": 45.0,
}
_WAY: Final = Path(__file__).with_name("launch_way.py")


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the product.

    lines      of text
    functions  lengths of its functions, lines
    imports    modules of the product that it names, itself apart
    """

    lines: int
    functions: tuple[int, ...]
    imports: frozenset[str]


def read_tree(root: Path) -> dict[str, Module]:
    """Give the modules of a tree by dotted name; what protoc wrote is left out."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
        if not path.name.endswith(GENERATED)
    }
    return {name: _module(name, path, files) for name, path in sorted(files.items())}


def _module(name: str, path: Path, files: Mapping[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    lengths = tuple(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    named = {_known(one, files) for one in _named(tree, package)}
    return Module(text.count("\n"), lengths, frozenset(named - {"", name}))


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            parts = [*(above if node.level else []), *([node.module] if node.module else [])]
            yield from (".".join([*parts, one.name]) for one in node.names)


def _known(name: str, files: Mapping[str, Path]) -> str:
    """Give the module of the product that a dotted name begins with; "" for none."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name


def room_of(name: str) -> str:
    """A folder of a package, or a module that lies loose in it."""
    return ".".join(name.split(".")[:2])


def back_imports(modules: Mapping[str, Module]) -> int:
    """Imports between two rooms that import each other: the fewer of the two ways, summed."""
    ways: Counter[tuple[str, str]] = Counter()
    for name, module in modules.items():
        for other in module.imports:
            if room_of(name) != room_of(other):
                ways[room_of(name), room_of(other)] += 1
    return sum(min(n, ways[b, a]) for (a, b), n in ways.items() if a < b)


def counted(modules: Mapping[str, Module]) -> dict[str, tuple[float, str]]:
    """Give each figure with its unit."""
    lines: Counter[str] = Counter()
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, module in modules.items():
        lines[name.split(".", maxsplit=1)[0]] += module.lines
        for other in module.imports:
            importers[other].add(name)
    (_, largest), total = lines.most_common(1)[0], lines.total()
    lengths = [length for module in modules.values() for length in module.functions]
    return {
        "product_lines": (total, "lines"),
        "largest_package_share_percent": (100 * largest / total, "% of the lines"),
        "modules": (len(modules), "modules"),
        "modules_under_100_lines": (
            sum(module.lines < SMALL_LINES for module in modules.values()), "modules",
        ),
        "modules_above_400_lines": (
            sum(module.lines > 400 for module in modules.values()), "modules",
        ),
        "modules_with_one_importer": (sum(len(one) == 1 for one in importers.values()), "modules"),
        "function_length_p90": (float(np.percentile(lengths, 90)), "lines"),
        "back_imports": (back_imports(modules), "imports"),
    }  # fmt: skip


def on_a_launchs_way(root: Path) -> dict[str, tuple[float, str]]:
    """Send a launch through a tree; count the modules that it passes, and the agent's of them."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, "-P", _WAY, folder], cwd=root, check=True, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(root)},
        ).stdout  # fmt: skip
    passed = {name for stretch in json.loads(answer).values() for name in stretch}
    agents = [name for name in passed if name.startswith("edge_agent/")]
    return {
        "modules_on_a_launchs_way": (len(passed), "modules"),
        "modules_of_the_agent_on_a_launchs_way": (len(agents), "modules"),
    }


def tree_of(commit: str, folder: Path) -> Path:
    """Unpack the product's packages and tests as they were at a commit."""
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", commit], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.split()  # fmt: skip
    packages = [name for name in listed if name in (*PACKAGES, "tests")]
    packed = subprocess.run(
        ["git", "archive", commit, *packages], cwd=ROOT, capture_output=True, check=True
    ).stdout
    # Not by tarfile: it asks for a filter from Python 3.12 on, and has none before 3.11.4.
    subprocess.run(["tar", "--extract", "--directory", folder], input=packed, check=True)
    return folder


def figures_of(root: Path) -> dict[str, tuple[float, str]]:
    """Give each figure of a tree with its unit."""
    return counted(read_tree(root)) | on_a_launchs_way(root)


def main() -> int:
    """Print the table and write the result."""
    with tempfile.TemporaryDirectory() as folder:
        before = figures_of(tree_of(BEFORE, Path(folder)))
    now = figures_of(ROOT)
    figures = []
    for name, (value, unit) in now.items():
        figures.append(Figure(name, value, unit, GOALS.get(name)))
        figures.append(Figure(f"{name}_before", before[name][0], unit))
        sys.stdout.write(f"{name:40} {before[name][0]:10.1f} {value:10.1f} {unit}\n")
    write_result("house", "make bench-house", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
