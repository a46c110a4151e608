"""Where a function is probed: at the first cheap instruction that every call passes unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.binaries.elf_file import EntryClass, x86_64_entry
from collectors.binaries.probe_offset import FARTHEST, MOST_CODE, probe_offset

COMPARE = "813d112233446d6d6d6d"  # cmpl $0x6d6d6d6d, 0x44332211(%rip)
JE = "7408"
JUMP = "ff2511223344"  # jmp *0x44332211(%rip)
PUSH = "55"
ENDBR64 = "f30f1efa"


def _place(text: str, size: int | None = None) -> int:
    code = bytes.fromhex(text)
    return probe_offset(code, len(code) if size is None else size)


@pytest.mark.parametrize(
    ("code", "place"),
    [
        pytest.param(PUSH + "4889e5" + "c3", 0, id="cheap entry"),
        pytest.param(COMPARE + JE + JUMP, 10, id="the driver's shape"),
        pytest.param(COMPARE + "0f840a000000" + JUMP, 10, id="near conditional jump"),
        pytest.param(ENDBR64 + PUSH + "c3", 4, id="endbr64"),
        pytest.param(ENDBR64 + COMPARE + JE + JUMP, 14, id="endbr64 and compare"),
        pytest.param("31c0" + "85ff" + JE + JUMP, 4, id="a register that carries no argument"),
        pytest.param("4c8d1511223344" + "0f1f440000" + JUMP, 7, id="five-byte nop"),
    ],
)
def test_place_is_the_first_cheap_instruction(code: str, place: int) -> None:
    assert _place(code) == place


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("89f7" + PUSH + "c3", id="an argument is overwritten"),
        pytest.param("4183c801" + PUSH + "c3", id="a part of an argument is overwritten"),
        pytest.param("4883ec08" + PUSH + "c3", id="the stack pointer has moved"),
        pytest.param("890424" + PUSH + "c3", id="the return address is overwritten"),
        pytest.param("893d11223344" + PUSH + "c3", id="memory is written"),
        pytest.param("f3aa" + PUSH + "c3", id="memory is written without naming it"),
        pytest.param(JUMP + PUSH, id="behind a jump"),
        pytest.param("c3" + PUSH, id="behind a return"),
        pytest.param("cc" + PUSH, id="behind a trap"),
        pytest.param("ff15112233" + "44" + PUSH, id="behind a call"),
        pytest.param("4889c0" * 11 + PUSH + "c3", id="too far"),
        pytest.param("06" + PUSH, id="no instruction"),
        pytest.param("", id="nothing"),
    ],
)
def test_place_stays_the_entry_where_a_call_may_look_different(code: str) -> None:
    assert _place(code) == 0


@pytest.mark.parametrize(
    ("back", "place"),
    [
        pytest.param("ebf2", 0, id="to the place itself"),
        pytest.param("e9efffffff", 0, id="the same, written long"),
        pytest.param("75f2", 0, id="on a condition"),
        pytest.param("e2f2", 0, id="a loop"),
        pytest.param("ebe8", 10, id="to the entry, which is a call more"),
        pytest.param("ebf4", 10, id="behind the place"),
    ],
)
def test_place_is_not_one_that_the_function_jumps_back_to(back: str, place: int) -> None:
    """`back` is at byte 22."""
    code = COMPARE + JE + "4889c0" * 3 + "90" + back
    assert _place(code + "c3") == place


def test_place_stays_the_entry_of_a_function_that_was_not_searched_whole() -> None:
    code = COMPARE + JE + JUMP
    assert _place(code, size=len(code) // 2 + 1) == 0
    assert probe_offset(bytes.fromhex(code) + b"\x90" * MOST_CODE, MOST_CODE + 1) == 0
    assert _place(code, size=0) == 10


@given(st.binary(max_size=200), st.integers(0, 300))
def test_place_of_any_bytes_is_near_and_cheap(code: bytes, size: int) -> None:
    place = probe_offset(code, size)
    assert 0 <= place <= FARTHEST
    assert place == 0 or x86_64_entry(code[place:]) is not EntryClass.STEPPED
