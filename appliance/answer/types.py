"""Owns what the way of a question takes and gives: requests, events, the final report.

Must not know wire formats: `http/` and `cli/` turn events into SSE, JSON or terminal text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from appliance.engine.protocol import Constraint, Priority, Sampling, TokenLogprob
from appliance.engine.tools import Call, CallPiece, Toolset
from appliance.store.attributes import Filter
from appliance.store.records import RecallTarget

CacheOutcome = Literal["miss", "hit", "stale"]
CacheUse = Literal["default", "bypass", "refresh"]  # refresh: made anew and kept; bypass: neither looked up nor kept
Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["full", "fast"]
Reason = Literal["stop", "length", "tool_calls"]

MAX_CHOICES = 8


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation, text only, and the calls with which one of the assistant's ends.

    Of the role `tool` is what came of one call; results follow the message with the calls, in the order of these.
    """

    role: Role
    content: str
    calls: tuple[Call, ...] = ()


class Question(msgspec.Struct, frozen=True):
    """What a client asks.

    `messages` ends with a user turn: the question that recall searches for. `collection` None: plain
    generation, no documents. Only that may be constrained, have several choices or tools (and end with what came of
    calls): an answer from documents is one text with numbers in it, followed by quotations.
    """

    messages: tuple[Message, ...]
    collection: str | None
    request_id: str
    top_k: int | None = None  # passages in the prompt at most; None: from settings
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    tools: Toolset | None = None  # with a constraint: of answers that are no calls, JSON
    n: int = 1  # choices: answers to the same prompt, each with a seed of its own
    priority: Priority = "interactive"
    deadline_ms: float | None = None
    effort: Effort = "full"  # "fast": excerpts without reranking or generation
    cache: CacheUse = "default"
    label: str = ""
    filters: Filter | None = None  # over the documents to answer from
    recall: RecallTarget | None = None  # of the search; None: the collection's

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_CHOICES:
            raise ValueError(f"n is {self.n}, not 1 to {MAX_CHOICES}")
        if self.collection is not None and (self.n > 1 or self.constraint is not None or self.tools is not None):
            raise ValueError("an answer from documents has one choice, no constraint and no tools")


class Source(msgspec.Struct, frozen=True):
    """A numbered source of an answer."""

    n: int
    document: str
    title: str
    page: int | None
    heading: str
    chunk: int
    score: float
    quote: str
    document_id: int


class PromptReport(msgspec.Struct, frozen=True):
    """What of the prompt was kept, and what was cut by which rule."""

    kept: dict[str, int]  # e.g. {"messages": 3, "passages": 4, "tokens": 812}
    cut: tuple[str, ...] = ()


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens of the generator."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    speculated_accepted: int = 0


class Report(msgspec.Struct, frozen=True):
    """The `appliance` object of a reply."""

    request_id: str
    cache: CacheOutcome
    degraded: tuple[str, ...]
    sources: tuple[Source, ...]
    grounded: bool
    prompt: PromptReport
    timings_ms: dict[str, float]
    tokens: TokenCounts


class Sources(msgspec.Struct, frozen=True, tag=True):
    """First event of a grounded answer: the sources that the numbers in the text refer to."""

    sources: tuple[Source, ...]
    degraded: tuple[str, ...]
    timings_ms: dict[str, float]


class Delta(msgspec.Struct, frozen=True, tag=True):
    """More text of a choice, or a piece of a call: none of both where only `logprobs` came, of text held back."""

    text: str
    index: int = 0  # of the choice
    logprobs: tuple[TokenLogprob, ...] = ()  # where asked for: of the tokens generated since the last event
    call: CallPiece | None = None


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Last event of an answer that came to its end. The concatenated deltas of a choice are the whole of it.

    `tool_calls`: it called tools, and each call is whole.
    """

    finish_reason: Reason
    report: Report
    further: tuple[Reason, ...] = ()  # why the choices after the first ended


Event = Sources | Delta | Finished
