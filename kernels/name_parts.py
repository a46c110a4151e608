"""Take a kernel's name apart: the function's own name, its template arguments, its namespaces.

The function's own name says what it does; the others say for which types, and whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous class\)::")
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
    return NameParts(
        name,
        words(own[:_MOST_NAME]),
        words(arguments[:_MOST_ARGUMENTS]),
        words(scope[-_MOST_NAME:]),
    )


def words(text: str) -> str:
    """Write a text as lower-case words between single blanks."""
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
