"""Kernel families: names taken apart, normalised, and given the catalogue's class by rules.

The normalised name, a kernel's key, groups rows of the host's own views; it never leaves the host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Self

from transport.settings.config import limited, read_tree

_ANONYMOUS: Final = re.compile(
    r"\(anonymous namespace\)::|(?<!\w)<unnamed>::|\bunnamed>::|\(anonymous class\)::"
)
"""Nsight Compute leaves the bracket of `<unnamed>::` out; one that stands is a template's own."""
_LAMBDA: Final = re.compile(r"\{lambda\([^{}]*?\)#\d+\}|\[lambda\([^\[\]]*?\)[^\[\]]*\]")
_CUT_MARK: Final = re.compile(r"~[0-9a-f]{4}$")
_SUFFIX: Final = re.compile(r"(?:\[clone [^\]]{0,64}\]|\.kd)$")
_JOINED: Final = re.compile(r"MoE|RoPE|(?:Si|Ge|Re|Se|Ce|Swi)G?LU|BFloat|MXFP|NVFP|LoRA")
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_NO_WORD: Final = re.compile(r"[^A-Za-z0-9]+")
_MANGLED_SCOPE: Final = re.compile(r"_ZL?(?:N[KVr]*)?(?:S[tabsiod])?L?")
_MANGLED_SKIPPED: Final = re.compile(r"L[a-z]n?\d+E|[A-KM-Z_a-z]+|\W|L")
_LENGTH: Final = re.compile(r"\d{1,4}")

_MOST_NAME: Final = 512
_MOST_ARGUMENTS: Final = 1024
"""Characters that are searched: the operation is said early, and a pattern's time may grow by the
square of a hostile name."""


class NameParts(NamedTuple):
    """A name's parts as lower-case words between single blanks: `RMSNorm` is `rms norm`.

    whole       the name as it came
    name        of the function itself
    arguments   of all templates in the function's name; parameters and return type are left out
    scope       namespaces and classes that hold the function
    """

    whole: str
    name: str
    arguments: str
    scope: str


def name_parts(name: str) -> NameParts:
    """Take a name apart; one that is cut, mangled, or no C++ at all gives what can be read."""
    text = _SUFFIX.sub("", name.strip())
    if text.startswith("_Z"):
        path, arguments = _mangled(text)
    else:
        path, arguments = declared(text)
    scope, _, own = path.rpartition("::")
    arguments = words(arguments[:_MOST_ARGUMENTS])
    return NameParts(name, words(own[:_MOST_NAME]), arguments, words(scope[-_MOST_NAME:]))


def words(text: str) -> str:
    joined = _JOINED.sub(lambda match: match.group(0).capitalize(), text)
    return _NO_WORD.sub(" ", _WORD_BEGINS.sub(" ", joined)).strip().lower()


def declared(name: str) -> tuple[str, str]:
    """Split `void scope::name<arguments>(parameters)` into its path and its arguments."""
    text = _LAMBDA.sub("lambda", _ANONYMOUS.sub("", _CUT_MARK.sub("", name.strip())))
    path: list[str] = []
    arguments: list[str] = []
    depth = rounds = 0  # angle brackets; round ones inside of them, where < and > compare
    for char in text:
        if depth == 0 and char == "(":
            break
        if depth == 0 and char == " ":
            path, arguments = [], []  # what came before was the type that it returns
            continue
        depth += char == "<" and not rounds
        (arguments if depth else path).append(char)
        rounds += (depth > 0) * ((char == "(") - (char == ")"))
        depth -= char == ">" and depth > 0 and not rounds
    return "".join(path), "".join(arguments)


def _mangled(text: str) -> tuple[str, str]:
    """Read the identifiers of an Itanium name; it may be cut, where a demangler gives up."""
    head = _MANGLED_SCOPE.match(text)
    place = head.end() if head else 2
    path: list[str] = []
    while found := _identifier(text, place):
        word, place = found
        if not word.startswith("_GLOBAL__N"):
            path.append(word)
        place += text.startswith("L", place)  # a function of one file
    return "::".join(path), " ".join(_identifiers(text, place))


def _identifiers(text: str, place: int) -> Iterator[str]:
    while place < len(text):
        if found := _identifier(text, place):
            word, place = found
            yield word
        else:
            skipped = _MANGLED_SKIPPED.match(text, place) or _LENGTH.match(text, place)
            place = skipped.end() if skipped else place + 1


def _identifier(text: str, place: int) -> tuple[str, int] | None:
    """Give the identifier whose length stands at `place`, and where it ends."""
    length = _LENGTH.match(text, place)
    if length is None:
        return None
    end = length.end() + int(length.group(0))
    word = text[length.end() : end]
    return (word, end) if word.isidentifier() else None


LONGEST_NAME: Final = 4096
"""Characters of a name that are read: template names reach kilobytes, the head decides."""

LONGEST_KEY: Final = 160
"""Characters of a key."""

_BOILERPLATE: Final = re.compile(
    r"\b(?:at|c10|native|cuda|detail|std|at_cuda_detail|internal|engines_precompiled)::"
)
_TRANSFER: Final = re.compile(r"^\[?(?:CUDA )?mem(?:cpy|set)\b", re.IGNORECASE)
# Tensile (rocBLAS, hipBLASLt) writes a hundred tuning parameters behind the problem's type.
_TENSILE_TUNING: Final = re.compile(r"^((?:Custom_)?Cijk_\w*?)_MT#.*$")
_WORD: Final = re.compile(r"[A-Za-z_][\w#]*")

# Kernels that run whatever they are given: their first argument with a meaning belongs to the key.
_WRAPPER: Final = re.compile(
    r"(?:elementwise_kernel(?:_\w+)?|reduce_kernel|multi_tensor_apply_kernel|_kernel_agent"
    r"|(?:^|:)(?:kentry|device_kernel|Kernel#?|static_kernel|cuda_kernel))$"
)
_NO_MEANING: Final = frozenset({
    "at", "native", "c10", "cuda", "detail", "std", "cub", "thrust", "cutlass", "binary_internal",
    "modern", "hip", "flash", "pytorch_flash", "float", "int", "long", "unsigned", "signed",
    "short", "bool", "char", "double", "half", "const", "void", "class", "struct", "typename",
    "auto", "true", "false", "BFloat16", "Half", "bfloat16_t", "half_t", "__half",
    "__nv_bfloat16", "nv_bfloat16", "complex", "array", "Array", "OpaqueType", "tuple",
    "TensorIteratorBase", "TensorIterator", "Scalar", "lambda", "operator", "ck_tile",
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "gpu_kernel_with_scalars", "gpu_index_kernel",
    "gpu_reduce_kernel", "ReduceOp", "func_wrapper_t", "BinaryFunctor", "AUnaryFunctor",
    "BUnaryFunctor", "TensorListMetadata", "TensorListScalarListMetadata",
    "FusedOptimizerTensorListMetadata", "enable_sm90_or_later", "enable_sm80_to_sm89",
    "enable_sm90", "integral_constant", "function",
})  # fmt: skip
_NUMBERS: Final = re.compile(
    # Types, architectures and dimensions are part of what a kernel is.
    r"(?P<kept>(?:bfloat|float|uint|int|half|bf|fp|tf|sm)\d+"
    r"|(?<![A-Za-z])[fsui]\d+(?![0-9x])|[eE]\d[mM]\d|(?<![0-9x_])\d[dD](?![0-9]))"
    r"|(?P<size>\d+(?:x\d+)*)",
    re.IGNORECASE,
)


def normalise(name: str) -> str:
    """Return the key of a kernel: no parameters, template arguments folded, sizes as `#`.

    A kernel that wraps another operation keeps the operation's name between angle brackets:
    `vectorized_elementwise_kernel<CUDAFunctor_add>`. Idempotent.

    name        demangled where the source can; a mangled name only loses its sizes
    Returns     at most LONGEST_KEY characters
    """
    text = name[:LONGEST_NAME].strip()
    if _TRANSFER.match(text):
        first, *rest = text.strip("[]").removeprefix("CUDA ").split("(")[0].split()
        return " ".join((first.capitalize(), *rest))
    outer, inner = declared(text)
    base = _without_sizes(_BOILERPLATE.sub("", outer))
    if _WRAPPER.search(base):
        given = (match.group(0) for match in _WORD.finditer(inner))
        meant = (w for w in given if w not in _NO_MEANING and not w.startswith("std"))
        if word := next(meant, ""):
            base = f"{base}<{_without_sizes(word)}>"
    return _TENSILE_TUNING.sub(r"\1", base)[:LONGEST_KEY]


def _without_sizes(text: str) -> str:
    replaced = _NUMBERS.sub(lambda match: match.group("kept") or "#", text)
    return re.sub(r"(?:_#)+$", "", re.sub(r"#(?:_?#)+", "#", replaced))


_CACHED_NAMES = 16_384
_SPOKEN = {
    "whole": "the name", "name": "the function's own name", "arguments": "its template arguments",
    "scope": "its namespaces",
}  # fmt: skip
_NOTHING = "no other rule matches"

UNKNOWN_APPLICATION = "unknown"
"""The application class of work that no rule attributes."""


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """One rule: a name that holds `pattern` is of `family`, unless an earlier rule took it.

    where    the part of the name that is searched, a field of `NameParts`
    """

    id: str
    priority: int
    family: str
    pattern: re.Pattern[str]
    match: tuple[str, ...]
    where: str = limited("whole", choices=tuple(_SPOKEN))

    def search(self, parts: NameParts) -> re.Match[str] | None:
        return self.pattern.search(getattr(parts, self.where))


@dataclass(frozen=True, slots=True)
class _RulesFile:
    rules: tuple[FamilyRule, ...] = limited((), key="rule")

    def __post_init__(self) -> None:
        for what in ("id", "priority"):
            values = [str(getattr(rule, what)) for rule in self.rules]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"family rules share the {what} {', '.join(twice)}")


class Explanation(NamedTuple):
    """Why a kernel is in its family: the rule, and the piece of the name that it found."""

    family: str
    rule: str
    why: str


class FamilyRules:
    """The rules in order, with a bounded memory of the names seen."""

    def __init__(self, rules: tuple[FamilyRule, ...]) -> None:
        if not rules or rules[-1].pattern.pattern != "":
            raise ValueError("the last family rule must match every name (an empty pattern)")
        self.rules = rules
        self._find = lru_cache(maxsize=_CACHED_NAMES)(self._search)

    @classmethod
    def load(cls, path: Path | None = None, families: Collection[str] | None = None) -> Self:
        """Read the packaged rules, or those of a file.

        families   the names that a rule may give, None: any
        Raises     ValueError naming the rule at fault
        """
        source = path or Path(__file__).with_name("families.toml")
        rules = read_tree(_RulesFile, source).rules
        for rule in rules:
            if families is not None and rule.family not in families:
                what = f"{source}: rule[{rule.id}].family: {rule.family!r}"
                raise ValueError(f"{what} is no family of the catalogue")
        return cls(tuple(sorted(rules, key=lambda rule: rule.priority)))

    def classify(self, kernel_name: str) -> tuple[str, str]:
        """Return (family, rule id) of a kernel."""
        rule = self.rules[self._find(kernel_name[:LONGEST_NAME])]
        return rule.family, rule.id

    def explain(self, kernel_name: str) -> Explanation:
        """Return the family of a kernel with the rule and the words that decided it."""
        name = kernel_name[:LONGEST_NAME]
        rule = self.rules[self._find(name)]
        found = rule.search(name_parts(name))
        words = found.group(0) if found else ""
        where = _SPOKEN[rule.where]
        why = f"found {words!r} in {where} (priority {rule.priority})" if words else _NOTHING
        return Explanation(rule.family, rule.id, why)

    def others(self, kernel_name: str) -> list[tuple[FamilyRule, str]]:
        """Return the rules that lost, in order, and what they match; the last is left out."""
        parts = name_parts(kernel_name[:LONGEST_NAME])
        found = [(rule, rule.search(parts)) for rule in self.rules[:-1]]
        return [(rule, match.group(0)) for rule, match in found if match][1:]

    def _search(self, name: str) -> int:
        parts = name_parts(name)
        return next(i for i, rule in enumerate(self.rules) if rule.search(parts))


@dataclass(frozen=True, slots=True)
class _ApplicationsFile:
    pipeline_tags: Mapping[str, str]


@lru_cache(maxsize=1)
def pipeline_applications() -> Mapping[str, str]:
    """Return the packaged table: pipeline tag of a model hub -> application class."""
    source = Path(__file__).with_name("applications.toml")
    return read_tree(_ApplicationsFile, source).pipeline_tags
