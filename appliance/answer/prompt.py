"""Owns the prompt: what the generator is told, and what is cut by which rule when it does not fit.

Must not know wire formats or how passages were found. The layout goes from what changes least to what
changes most (instructions, passages, conversation, question), so that prompts share their beginnings. Passages are
chosen by rank and laid out as `layout` says. Numbers follow the layout: by rank, the same passage would be another
text in each prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from appliance.answer.calling import as_text
from appliance.answer.layout import Layout
from appliance.answer.types import Message, PromptReport
from appliance.answer.window import turns_left_out
from appliance.engine.chat import render_chat
from appliance.engine.protocol import Ready, Segment
from appliance.engine.tools import Toolset
from appliance.errors import PromptTooLong
from appliance.retrieval.types import Passage

INSTRUCTIONS = (
    "You answer questions about equipment documents. Use only the numbered passages. "
    "Answer in one or two short sentences, with the exact values, and put the passage number after each "
    "sentence, like [1]. If the passages do not contain the answer, say: The documents do not say."
)

CountTokens = Callable[[Sequence[str]], Awaitable[list[int]]]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt ready for the engine."""

    segments: tuple[Segment, ...]
    tokens: int  # counted segment by segment
    report: PromptReport
    pinned: int = 0  # segments at the front that other prompts begin with too
    passages: tuple[Passage, ...] = ()  # those in it: number n is the n-th


async def plain(
    messages: Sequence[Message], ready: Ready, count: CountTokens, answer_tokens: int, tools: Toolset | None = None
) -> Prompt:
    """The conversation as it is, with the tools; where it is too long, without its oldest turns (see `window`).

    Raises:
        PromptTooLong: instructions and the last message do not fit beside an answer of `answer_tokens`.
    """
    kept, cut = await _windowed(as_text(messages, tools), ready, count, ready.context_tokens - answer_tokens)
    segments = _render(kept, ready)
    tokens = sum(await count([segment.text for segment in segments]))
    _check_fits(tokens, answer_tokens, ready.context_tokens)
    report = PromptReport(kept={"messages": len(kept), "tokens": tokens}, cut=cut)
    return Prompt(segments, tokens, report, _pinned(kept, segments))


async def grounded(
    messages: Sequence[Message],
    passages: Sequence[Passage],
    ready: Ready,
    count: CountTokens,
    layout: Layout,
    *,
    answer_tokens: int,
    passage_tokens: int,
) -> Prompt:
    """The conversation with passages to answer from.

    Passages come best first, and are taken in that order while they fit `passage_tokens` and the context. The
    conversation comes first: it is left whole where it fits beside the answer, else without its oldest turns.

    Raises:
        PromptTooLong: instructions and the last message do not fit beside an answer of `answer_tokens`.
    """
    messages = as_text(messages, None)
    framed = _with_passages(messages, [])
    framed, cut = await _windowed(framed, ready, count, ready.context_tokens - answer_tokens)
    if cut:
        messages = [message for message in messages if message.role == "system"] + _turns(framed)
    frame = _render(_with_passages(messages, []), ready)
    # Counted with the longest number that a passage may get.
    listed = [_numbered(len(passages), passage) for passage in passages]
    costs = await count([segment.text for segment in frame] + listed)
    frame_tokens = sum(costs[: len(frame)])
    _check_fits(frame_tokens, answer_tokens, ready.context_tokens)
    room = min(passage_tokens, ready.context_tokens - answer_tokens - frame_tokens)
    kept = 0
    tokens = 0
    for cost in costs[len(frame) :]:
        if tokens + cost + 1 > room:
            break
        tokens += cost + 1  # the line break between two passages
        kept += 1
    laid_out = layout.arrange(passages[:kept], lambda passage: (passage.document_id, passage.chunk_id))
    conversation = _with_passages(messages, laid_out)
    segments = _render(conversation, ready)
    if kept < len(passages):
        cut += (f"passages ranked {kept + 1} to {len(passages)}: over the budget of {room} tokens for passages",)
    total = frame_tokens + tokens
    report = PromptReport(kept={"messages": len(messages), "passages": kept, "tokens": total}, cut=cut)
    return Prompt(segments, total, report, _pinned(conversation, segments), laid_out)


async def _windowed(
    messages: Sequence[Message], ready: Ready, count: CountTokens, room: int
) -> tuple[list[Message], tuple[str, ...]]:
    """The messages that fit `room` tokens, and what was left out."""
    segments = _render(messages, ready)
    costs = await count([segment.text for segment in segments] + [message.content for message in messages])
    total, contents = sum(costs[: len(segments)]), costs[len(segments) :]
    if total <= room:
        return list(messages), ()
    # What the template adds is shared out evenly: what it writes once counts as if it were each message's.
    added = -(-(total - sum(contents)) // len(messages))
    fixed = [message for message in messages if message.role == "system"]
    turns = _turns(messages)
    each = [cost + added for message, cost in zip(messages, contents, strict=True) if message.role != "system"]
    instructions = sum(cost + added for message, cost in zip(messages, contents, strict=True)) - sum(each)
    gone = turns_left_out(each, [message.role == "user" for message in turns], room - instructions)
    if not gone:
        return list(messages), ()
    what = f"the {gone} oldest of {len(turns)} messages: the conversation has {total} tokens, there is room for {room}"
    return fixed + turns[gone:], (what,)


def _turns(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]


def _pinned(messages: Sequence[Message], segments: Sequence[Segment]) -> int:
    """How many segments there are to the end of the system message, which comes first if there is one."""
    if messages[0].role != "system" or not messages[0].content.strip():
        return 0
    first = next(number for number, segment in enumerate(segments) if not segment.template)
    return first + 1


def _with_passages(messages: Sequence[Message], passages: Sequence[Passage]) -> list[Message]:
    own = [message.content for message in messages if message.role == "system"]
    turns = _turns(messages)
    listing = "\n".join(_numbered(number, passage) for number, passage in enumerate(passages, start=1))
    first = Message(role=turns[0].role, content=f"Passages:\n{listing}\n\nQuestion: {turns[0].content}")
    return [Message(role="system", content="\n\n".join([INSTRUCTIONS, *own])), first, *turns[1:]]


def _numbered(number: int, passage: Passage) -> str:
    place = f" ({passage.heading})" if passage.heading else ""
    return f"[{number}]{place} {passage.text.strip()}"


def _render(messages: Sequence[Message], ready: Ready) -> tuple[Segment, ...]:
    turns = [("user" if message.role == "tool" else message.role, message.content) for message in messages]
    return render_chat(ready.chat_template, turns, bos=ready.bos, eos=ready.eos)


def _check_fits(tokens: int, answer_tokens: int, context_tokens: int) -> None:
    if tokens + answer_tokens > context_tokens:
        raise PromptTooLong(
            f"The prompt has {tokens} tokens and the answer may have {answer_tokens}, "
            f"but the context holds {context_tokens}.",
            remedy="Shorten the prompt or ask for a shorter answer (max_tokens).",
            param="messages",
        )
