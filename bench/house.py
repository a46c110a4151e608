"""How the product is divided into rooms and modules: make bench-house.

Counts the tree as it is, beside the tree of commit BEFORE, as git has it. Which modules a launch
passes is found by sending one through either tree: `launch_way.py` says what counts.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from bench.record import ROOT, Figure, write_result
from transport.settings.config import read_table

BEFORE: Final = "79362040"
"""The last commit before the house was made smaller."""
PACKAGES: Final = (
    "wire", "privacy", "transport", "kernels", "collectors", "diagnosis", "edge_agent",
    "aggregator", "analytics", "simulator", "web", "pages", "pointillist",
)  # fmt: skip
BESIDE: Final = ("tests", "docs", "deploy", "bench", "scripts", "README.md")
SMALL_LINES: Final = 100
MIRRORED_FIELDS: Final = 4
MIRRORED_SHARE: Final = 0.8
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
GOALS: Final = {
    "product_lines": 102_500.0,
    "modules": 520.0,
    "import_lines": 7_700.0,
    "classes": 1_400.0,
    "docs_words": 60_000.0,
    "sentence_words_mean": 20.0,
    "test_kit_lines": 11_000.0,
    "mirrored_type_pairs": 25.0,
    "bench_and_scripts_lines": 15_000.0,
    "largest_package_share_percent": 25.0,
    "back_imports": 0.0,
    "modules_on_a_launchs_way": 100.0,
}
MOVED: Final = Path(__file__).with_name("tests_moved.toml")
"""Of removed tests, where what they held is held now."""


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the product.

    lines       of text
    functions   lengths of its functions, lines
    imports     modules of the product that it names, itself apart
    import_lines  that its imports take
    statements  of its syntax tree: as many, however they lie on lines
    fmt_skips   places that the formatter leaves alone
    classes     names of the fields that each class declares
    """

    lines: int
    functions: tuple[int, ...]
    imports: frozenset[str]
    import_lines: int
    statements: int
    fmt_skips: int
    classes: tuple[frozenset[str], ...]


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
    return Module(
        lines=text.count("\n"),
        functions=lengths,
        imports=frozenset(named - {"", name}),
        import_lines=sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
        statements=sum(isinstance(node, ast.stmt) for node in ast.walk(tree)),
        fmt_skips=text.count("fmt: skip") + text.count("fmt: off"),
        classes=tuple(_fields(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
    )


def _fields(one: ast.ClassDef) -> frozenset[str]:
    return frozenset(
        line.target.id
        for line in one.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith(("ClassVar", "Final"))
    )


def mirrored_type_pairs(modules: Mapping[str, Module]) -> int:
    """Pairs of classes that share at least four fields, and four fifths of the smaller's."""
    large = [
        one for module in modules.values() for one in module.classes if len(one) >= MIRRORED_FIELDS
    ]
    return sum(
        len(a & b) >= max(MIRRORED_FIELDS, MIRRORED_SHARE * min(len(a), len(b)))
        for a, b in combinations(large, 2)
    )


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
        "import_lines": (sum(module.import_lines for module in modules.values()), "lines"),
        "modules_under_100_lines": (
            sum(module.lines < SMALL_LINES for module in modules.values()), "modules",
        ),
        "modules_above_400_lines": (
            sum(module.lines > 400 for module in modules.values()), "modules",
        ),
        "modules_with_one_importer": (sum(len(one) == 1 for one in importers.values()), "modules"),
        "function_length_p90": (float(np.percentile(lengths, 90)), "lines"),
        "back_imports": (back_imports(modules), "imports"),
        "statements": (sum(module.statements for module in modules.values()), "statements"),
        "fmt_skips": (sum(module.fmt_skips for module in modules.values()), "places"),
        "classes": (sum(len(module.classes) for module in modules.values()), "classes"),
        "mirrored_type_pairs": (mirrored_type_pairs(modules), "pairs"),
    }  # fmt: skip


def beside_the_product(root: Path) -> dict[str, tuple[float, str]]:
    """Count what stands around the product: pages, tests and their kits, benches and scripts."""
    pages = [*(root / "docs").rglob("*.md"), *(root / "deploy").rglob("*.md")]
    pages += [root / "README.md", root / "wire" / "SPEC.md"]
    tests = list((root / "tests").rglob("*.py"))
    kits = [path for path in tests if not path.name.startswith("test_")]
    beside = [
        path
        for folder, endings in (("bench", (".py",)), ("scripts", (".py", ".sh")))
        for path in (root / folder).rglob("*")
        if path.suffix in endings
    ]
    return {
        "sentence_words_mean": (sentence_words_mean([path.read_text() for path in pages]), "words"),
        "docs_words": (sum(len(path.read_text().split()) for path in pages), "words"),
        "test_lines": (sum(_lines(path) for path in tests), "lines"),
        "test_kit_lines": (sum(_lines(path) for path in kits), "lines"),
        "test_functions": (len(test_names(root)), "functions"),
        "bench_and_scripts_lines": (sum(_lines(path) for path in beside), "lines"),
    }


def sentence_words_mean(pages: Sequence[str]) -> float:
    """Mean length of sentences: code, tables, headings and links' targets are none."""
    lengths = []
    for page in pages:
        prose = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->|^[|#].*?$", "\n\n", page)
        for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose):
            words = (len(one.split()) for one in re.split(r"(?<=[.!?])\s", block))
            lengths += [count for count in words if count]
    return float(np.mean(lengths))


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_names(root: Path) -> list[str]:
    """Name every test of a tree, without its file: tests move."""
    return [
        node.name
        for path in (root / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def removed_tests(before: Path) -> dict[str, tuple[float, str]]:
    """Count tests that a tree has no more, and those of them that MOVED says something of."""
    gone = Counter(test_names(before)) - Counter(test_names(ROOT))
    rows = read_table(MOVED)["moved"]
    patterns = [pattern for row in rows for pattern in row["tests"]]
    unnamed = [name for name in gone if not any(fnmatch(name, one) for one in patterns)]
    for name in unnamed:
        sys.stdout.write(f"{MOVED.name} does not name {name}\n")
    named = gone.total() - sum(gone[name] for name in unnamed)
    return {
        "tests_removed": (gone.total(), "functions"),
        "tests_moved_or_named": (named, "functions"),
    }


def on_a_launchs_way(root: Path) -> dict[str, tuple[float, str]]:
    """Send a launch through a tree; count the modules that it passes, and the agent's of them."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, "-P", root / "bench" / "launch_way.py", folder],
            cwd=root, check=True, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(root)},
        ).stdout  # fmt: skip
    passed = {name for stretch in json.loads(answer).values() for name in stretch}
    agents = [name for name in passed if name.startswith("edge_agent/")]
    return {
        "modules_on_a_launchs_way": (len(passed), "modules"),
        "modules_of_the_agent_on_a_launchs_way": (len(agents), "modules"),
    }


def tree_of(commit: str, folder: Path) -> Path:
    """Unpack what is counted as it was at a commit."""
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", commit], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.split()  # fmt: skip
    packages = [name for name in listed if name in (*PACKAGES, *BESIDE)]
    packed = subprocess.run(
        ["git", "archive", commit, *packages], cwd=ROOT, capture_output=True, check=True
    ).stdout
    # Not by tarfile: it asks for a filter from Python 3.12 on, and has none before 3.11.4.
    subprocess.run(["tar", "--extract", "--directory", folder], input=packed, check=True)
    return folder


def figures_of(root: Path) -> dict[str, tuple[float, str]]:
    """Give each figure of a tree with its unit."""
    return counted(read_tree(root)) | beside_the_product(root) | on_a_launchs_way(root)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        before = figures_of(tree_of(BEFORE, Path(folder)))
        removed = removed_tests(Path(folder))
    now = figures_of(ROOT)
    figures = [Figure(name, value, unit) for name, (value, unit) in removed.items()]
    for name, (value, unit) in now.items():
        figures.append(Figure(name, value, unit, GOALS.get(name)))
        figures.append(Figure(f"{name}_before", before[name][0], unit))
        sys.stdout.write(f"{name:40} {before[name][0]:10.1f} {value:10.1f} {unit}\n")
    write_result("house", "make bench-house", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
