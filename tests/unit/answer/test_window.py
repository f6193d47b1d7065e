"""Which turns stay, and that the prompts of a long conversation keep their beginning for many turns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.answer import prompt
from appliance.answer.layout import Layout
from appliance.answer.types import Message
from appliance.answer.window import turns_left_out
from appliance.engine.protocol import Ready
from appliance.errors import PromptTooLong

READY = Ready(2, "m", 300, 8, "", "", "<|im_end|>", "b", 1.0)


async def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 400))
def test_what_stays_fits_begins_with_a_user_and_holds_the_last(costs: list[int], room: int) -> None:
    starts = [number % 2 == len(costs) % 2 or number == len(costs) - 1 for number in range(len(costs))]
    gone = turns_left_out(costs, starts, room)
    if gone is None:
        assert costs[-1] > room
        return
    assert sum(costs[gone:]) <= room and gone < len(costs) and (gone == 0 or starts[gone])
    assert gone == 0 or sum(costs) > room, "something was left out although all fitted"


def test_the_beginning_stays_the_same_for_many_turns() -> None:
    begins = [
        turns_left_out([10] * turns, [number % 2 == 0 for number in range(turns)], 400) for turns in range(1, 200, 2)
    ]
    assert begins[:20] == [0] * 20
    changes = sum(one != other for one, other in itertools.pairwise(begins))
    assert changes <= 100 / 4  # of 100 turns: not each moves the beginning


def conversation(turns: int) -> list[Message]:
    said = [Message("system", "Be brief and kind")]
    for number in range(turns):
        said += [Message("user", f"question {number} " + "word " * 20), Message("assistant", "answer " * 20)]
    return [*said, Message("user", "and now?")]


async def test_a_long_conversation_loses_its_oldest_turns_and_says_so() -> None:
    built = await prompt.plain(conversation(12), READY, words, 50)
    text = "".join(segment.text for segment in built.segments)
    assert built.tokens + 50 <= 300
    assert "Be brief and kind" in text and "and now?" in text
    assert "question 0 " not in text and "question 11 " in text
    (cut,) = built.report.cut
    assert "oldest of 25 messages" in cut
    assert built.pinned > 0


async def test_a_short_one_stays_whole() -> None:
    built = await prompt.plain(conversation(2), READY, words, 50)
    assert built.report.cut == () and built.report.kept["messages"] == 6


async def test_a_last_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PromptTooLong, match="context holds 300"):
        await prompt.plain([*conversation(3), Message("user", "word " * 290)], READY, words, 50)


async def test_a_question_about_documents_in_a_long_conversation() -> None:
    built = await prompt.grounded(conversation(12), (), READY, words, Layout(), answer_tokens=50, passage_tokens=100)
    text = "".join(segment.text for segment in built.segments)
    assert built.tokens + 50 <= 300
    assert prompt.INSTRUCTIONS in text and "Be brief and kind" in text and "and now?" in text
    assert any("oldest of" in cut for cut in built.report.cut)
