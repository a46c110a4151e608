"""What strangers may take of the agent: bounded in all, and by user."""

from __future__ import annotations

import pytest

from collectors.gpu_time.listener import MOST_PROCESSES, MOST_ROWS, NAMES_OF_A_ROW, Held, has_room

ROOT, ALICE, BOB = 0, 1000, 1001


@pytest.mark.parametrize(
    ("held", "more", "fits"),
    [
        ([], Held(ALICE, 1), True),
        ([Held(ALICE, 1)] * (MOST_PROCESSES // 2 - 1), Held(ALICE, 1), True),
        ([Held(ALICE, 1)] * (MOST_PROCESSES // 2), Held(ALICE, 1), False),
        ([Held(ALICE, 1)] * (MOST_PROCESSES // 2), Held(BOB, 1), True),
        ([Held(ROOT, 1)] * (MOST_PROCESSES - 1), Held(ROOT, 1), True),
        ([Held(ROOT, 1)] * MOST_PROCESSES, Held(BOB, 1), False),
        ([Held(ALICE, MOST_ROWS // 2 - 1)], Held(ALICE, 1), True),
        ([Held(ALICE, MOST_ROWS // 2)], Held(ALICE, 1), False),
        ([Held(ALICE, MOST_ROWS // 2)], Held(BOB, MOST_ROWS // 2), True),
        ([Held(ALICE, MOST_ROWS // 2)], Held(BOB, MOST_ROWS // 2 + 1), False),
        ([], Held(ALICE, MOST_ROWS // 4, NAMES_OF_A_ROW * MOST_ROWS // 4), True),
        ([], Held(ALICE, MOST_ROWS // 4, NAMES_OF_A_ROW * (MOST_ROWS // 4 + 1)), False),
        ([Held(ALICE, MOST_ROWS // 2)], Held(ROOT, MOST_ROWS // 2 + 1), False),
    ],
)
def test_no_user_but_root_takes_more_than_half(held: list[Held], more: Held, fits: bool) -> None:
    assert has_room(held, more) is fits
