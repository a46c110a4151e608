"""Normalise kernel names: one key for all instances and sizes of a kernel, by rule.

The key is local: it groups rows of the host's own views and tells applications apart. It never
leaves the host.
"""

from __future__ import annotations

import re
from typing import Final

from .name_parts import declared

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
        words = text.strip("[]").removeprefix("CUDA ").split("(")[0].split()
        return " ".join((words[0].capitalize(), *words[1:]))
    outer, inner = declared(text)
    base = _without_sizes(_BOILERPLATE.sub("", outer))
    if _WRAPPER.search(base) and (word := _meaning(inner)):
        base = f"{base}<{_without_sizes(word)}>"
    return _TENSILE_TUNING.sub(r"\1", base)[:LONGEST_KEY]


def _meaning(arguments: str) -> str:
    """The first word of the arguments that is neither a type nor another wrapper."""
    words = (match.group(0) for match in _WORD.finditer(arguments))
    return next((w for w in words if w not in _NO_MEANING and not w.startswith("std")), "")


def _without_sizes(text: str) -> str:
    replaced = _NUMBERS.sub(lambda match: match.group("kept") or "#", text)
    return re.sub(r"(?:_#)+$", "", re.sub(r"#(?:_?#)+", "#", replaced))
