"""The kernel's log: untrusted text, read with bounds, its gaps counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.faults.log_signs import MachineChecks
from collectors.kernel_log import (
    LONGEST_MESSAGE,
    KernelLog,
    gpu_signs,
    load_rules,
    parse_record,
)
from tests.faults_kit import make_fifo


def line(seq: int, message: str | None = None, priority: int = 6) -> bytes:
    text = f"number {seq}" if message is None else message
    return f"{priority},{seq},{seq * 1_000},-;{text}\n".encode()


def test_record_has_number_and_message() -> None:
    assert parse_record(b"3,17,99,c,caller=T1;NVRM: x") == (17, "NVRM: x")


@pytest.mark.parametrize("priority", [8, 11, 1 << 20])
def test_record_of_user_space_is_no_record_of_the_kernel(priority: int) -> None:
    assert parse_record(line(1, "NVRM: Xid (PCI:0000:1b:00): 79", priority)) == (1, None)


@given(st.binary(max_size=4_000))
def test_record_parser_bounds_whatever_comes(junk: bytes) -> None:
    record = parse_record(junk)
    assert record is None or len(record[1] or "") <= LONGEST_MESSAGE
    message = junk.decode("latin-1")
    load_rules().sign(message)
    MachineChecks().sign("mce: [Hardware Error]: " + message)


@given(
    st.integers(0, 2**53),
    st.integers(0, 7),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=LONGEST_MESSAGE),
)
def test_record_parser_gives_back_what_the_kernel_wrote(seq: int, level: int, text: str) -> None:
    assert parse_record(line(seq, text, level).rstrip(b"\n")) == (seq, text)


@given(st.data())
def test_rules_bound_what_they_take_from_a_message(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(load_rules().rules))
    cut = data.draw(st.integers(0, len(rule.example)))
    junk = data.draw(st.text(max_size=200))
    sign = load_rules().sign(rule.example[:cut] + junk + rule.example[cut:])
    assert sign is None or 0 < len(sign.subject) <= 24


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_log_cut_anywhere_by_a_pipe_gives_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    text = b"".join(line(seq, f"message {seq}") + b" KEY=value\n" for seq in range(9))
    path = tmp_path_factory.mktemp("log") / "kmsg"
    pen = make_fifo(path)
    log = KernelLog(path, from_now=True)
    found: list[str] = []
    for size in [*cuts, len(text)]:
        os.write(pen, text[:size])
        text = text[size:]
        found += log.read(10)
    log.close()
    os.close(pen)
    assert found == [f"message {seq}" for seq in range(9)]
    assert (log.lost, log.malformed) == (0, 0)


def test_log_counts_what_was_overwritten(tmp_path: Path) -> None:
    pen = make_fifo(tmp_path / "kmsg")
    log = KernelLog(tmp_path / "kmsg", from_now=True)
    os.write(pen, line(5) + line(6) + line(40, priority=14) + line(41))
    assert log.read(10) == ["number 5", "number 6", "number 41"]
    assert log.lost == 33
    log.close()
    os.close(pen)


def test_log_goes_on_after_the_kernel_says_it_overtook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KernelLog(_file(tmp_path, b""))
    answers: Iterator[bytes | OSError] = iter(
        [line(1), BrokenPipeError(), line(9), BlockingIOError()]
    )

    def read(_fd: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert log.read(10) == ["number 1", "number 9"]
    assert log.lost == 7
    assert log.at_end
    monkeypatch.undo()
    log.close()


def test_log_counts_lines_that_are_no_records(tmp_path: Path) -> None:
    log = KernelLog(_file(tmp_path, b"no record\n" + line(3) + b"x" * 20_000))
    assert log.read(10) == ["number 3"]
    assert log.malformed == 2
    log.close()
    log.close()


def test_log_read_is_bounded(tmp_path: Path) -> None:
    log = KernelLog(_file(tmp_path, b"".join(line(seq) for seq in range(5_000))))
    first = log.read(2)
    assert 0 < len(first) < 2_000
    assert not log.at_end
    log.close()


def test_log_from_now_leaves_the_past_out(tmp_path: Path) -> None:
    path = _file(tmp_path, line(1))
    log = KernelLog(path, from_now=True)
    with path.open("ab") as stream:
        stream.write(line(2))
    assert log.read(10) == ["number 2"]
    log.close()


def test_xids_inside_another_message_or_of_user_space_do_not_count(tmp_path: Path) -> None:
    said = "NVRM: Xid (PCI:0000:1b:00): 79, gone"
    path = _file(
        tmp_path, line(1, f"sh[3]: {said}") + line(2, said, 11) + line(3, said.replace("79", "48"))
    )
    found = gpu_signs(path)
    assert isinstance(found, list)
    assert [(sign.subject, sign.name) for sign in found] == [("0000:1b:00", "xid_48")]


def _file(folder: Path, text: bytes) -> Path:
    path = folder / "kmsg"
    path.write_bytes(text)
    return path
