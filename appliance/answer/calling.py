"""Owns what tools are to a conversation: how its calls and their results are told, and what of an answer are calls.

Must not know the form that calls are written in (`engine.tools` does), nor wire formats.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from appliance.answer.types import Delta, Message, Question
from appliance.engine import tools
from appliance.engine.text import TextStream
from appliance.engine.tools import CallPiece, Toolset


def as_text(messages: Sequence[Message], toolset: Toolset | None) -> list[Message]:
    """The conversation with all in its contents that a model must know of tools.

    The first of them gives the instructions, which describe the tools. Results that follow one another are one message,
    of the role `tool`: to the model it is a turn of the user's, but no conversation begins with it.
    """
    told: list[Message] = []
    for is_results, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        if is_results:
            told.append(Message("tool", tools.results([message.content for message in group])))
        else:
            told += [
                Message(message.role, tools.written(message.content, message.calls)) if message.calls else message
                for message in group
            ]
    if toolset is None:
        return told
    described = tools.instructions(toolset.tools)
    if told and told[0].role == "system":
        first = told.pop(0)
        described = "\n\n".join(filter(str.strip, (first.content, described)))
    return [Message("system", described), *told]


def constrained(question: Question) -> Question:
    """The question as it is generated: its tools are a constraint, and stop strings are left to `CallDeltas`."""
    if question.tools is None:
        return question
    return replace(question, constraint=tools.constraint_of(question.tools, question.constraint), stop=())


class CallDeltas:
    """Makes the deltas of one choice from its text, where that may be calls.

    `stop` ends a text, as the engine would end it; in calls it means nothing: half a call is of no use.
    """

    def __init__(self, index: int, stop: Sequence[str]) -> None:
        self._index = index
        self._reader = tools.CallReader()
        self._text = TextStream(stop)
        self.called = False  # a delta of a call was made

    @property
    def stopped(self) -> bool:
        """Whether the text came to a stop string: what follows is none of the answer."""
        return self._text.stopped

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are known now."""
        deltas: list[Delta] = []
        for piece in self._reader.feed(text):
            if self.stopped:
                break
            if isinstance(piece, CallPiece):
                self.called = True
                deltas += [*self._rest(), Delta("", self._index, call=piece)]
            elif known := self._text.feed(piece.encode()):
                deltas.append(Delta(known, self._index))
        return deltas

    def finish(self) -> list[Delta]:
        """No more text comes."""
        known = "" if self.stopped else self._text.feed(self._reader.finish().encode())
        return [*([Delta(known, self._index)] if known else []), *self._rest()]

    def _rest(self) -> list[Delta]:
        """What was held back of a text that has ended."""
        rest = self._text.finish()
        return [Delta(rest, self._index)] if rest else []


async def told_apart(deltas: AsyncGenerator[Delta], calls: CallDeltas) -> AsyncGenerator[Delta]:
    """The deltas of one choice, its text told apart into text and calls; ends `deltas` where a stop string comes."""
    async with contextlib.aclosing(deltas) as given:
        async for delta in given:
            for made in calls.feed(delta.text):
                yield made
            if calls.stopped:
                break
    for made in calls.finish():
        yield made
