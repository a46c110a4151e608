"""Where to probe a function of x86-64 at the least cost: its first instruction that is cheap.

The driver's library begins nearly every function with a compare of memory, which the kernel passes
in a single step, and a conditional jump, which costs a thirtieth. A place serves as the entry does
where every call passes it once (no branch before it, no jump back to it), and arguments and return
address are where they were (nothing before it writes their registers or memory).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import capstone
from capstone import x86

from .elf_file import EntryClass, x86_64_entry

FARTHEST: Final = 32
"""Bytes behind the entry at which a place may lie."""
MOST_CODE: Final = 64 << 10
"""Bytes of a function that are searched for jumps back; a longer one is probed at its entry."""
_UNKNOWN_SIZE: Final = 4096
_LONGEST_INSTRUCTION: Final = 15

_ARGUMENTS: Final = frozenset(
    register
    for family in (
        "RDI EDI DI DIL", "RSI ESI SI SIL", "RDX EDX DX DL DH", "RCX ECX CX CL CH",
        "R8 R8D R8W R8B", "R9 R9D R9W R9B", "RSP ESP SP SPL",
    )
    for register in (getattr(x86, f"X86_REG_{name}") for name in family.split())
)  # fmt: skip
"""Registers of the System V calling convention that a probe's program reads, and the stack's."""
_BRANCHES: Final = (
    capstone.CS_GRP_JUMP,
    capstone.CS_GRP_CALL,
    capstone.CS_GRP_RET,
    capstone.CS_GRP_INT,
    capstone.CS_GRP_IRET,
)


def probe_offset(code: bytes, size: int) -> int:
    """Give how many bytes behind its entry a function is probed at least cost.

    code     the function's bytes from its entry; what is missing of `size` is not searched
    Returns  0 .. FARTHEST; 0 where the entry is cheap itself or no other place is as good
    Source   System V ABI for x86-64, 3.2.3: what carries arguments
    """
    place = next(_cheap(code[: FARTHEST + _LONGEST_INSTRUCTION + 1]), 0)
    if place == 0:
        return 0
    length = size or min(len(code), _UNKNOWN_SIZE)
    if length > min(MOST_CODE, len(code)):
        return 0
    return 0 if any(0 < target <= place for target in _targets(code[:length])) else place


def _cheap(head: bytes) -> Iterator[int]:
    """Yield each cheap place of a function's head up to the first that calls may not pass."""
    for instruction in _disassembler(True).disasm(head, 0):
        if instruction.address > FARTHEST:
            return
        if x86_64_entry(head[instruction.address :]) is not EntryClass.STEPPED:
            yield instruction.address
        if _disturbs(instruction):
            return


def _disturbs(instruction: capstone.CsInsn) -> bool:
    if any(instruction.group(group) for group in _BRANCHES):
        return True
    if not _ARGUMENTS.isdisjoint(instruction.regs_access()[1]):
        return True
    return any(
        operand.type == x86.X86_OP_MEM and operand.access & capstone.CS_AC_WRITE
        for operand in instruction.operands
    )


def _targets(code: bytes) -> Iterator[int]:
    for _, _, mnemonic, operands in _disassembler(False).disasm_lite(code, 0):
        if mnemonic[0] == "j" or "loop" in mnemonic or "call" in mnemonic or " j" in mnemonic:
            try:
                target = int(operands, 16)
            except ValueError:
                continue  # through a register or memory: a table's targets lie behind a branch
            yield target - (1 << 64) if target >> 63 else target


@lru_cache(maxsize=2)
def _disassembler(detail: bool) -> capstone.Cs:
    found = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found.detail = detail
    found.skipdata = not detail
    return found
