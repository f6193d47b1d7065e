"""Owns what is asked in each workload: the same requests for every engine, in every round.

Must not know engines, tokens or time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from appliance.answer.layout import Layout
from appliance.engine.protocol import Segment

from . import texts
from .sizes import Size

Kind = Literal["normal", "interactive", "long"]
Order = Literal["canonical", "relevance"]

_SEED = 20261201
_PASSAGES = 40  # that questions are answered from, and …
_PACKED = 5  # … how many of them go into a prompt
_LOOPED = 24  # different requests of one user who keeps asking
_OPEN = Segment("<|im_start|>user\n", template=True)
_CLOSE = Segment("<|im_end|>\n<|im_start|>assistant\n", template=True)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. In a `conversation`, `prompt` is what follows all that was said in it before."""

    prompt: tuple[Segment, ...]
    max_tokens: int
    kind: Kind = "normal"
    pinned: int = 0  # segments at the front that other prompts begin with too
    conversation: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked, and how many at once.

    `requests` are begun in their order, `in_flight` of them at a time. Each of `loops` is a user who asks one after
    the other, from the beginning again, until all `requests` are answered; those begin when each such user has had an
    answer. `warm` comes first, untimed.
    """

    requests: tuple[Request, ...]
    in_flight: int
    loops: tuple[tuple[Request, ...], ...] = ()
    warm: tuple[Request, ...] = ()


def build(key: str, size: Size, order: Order = "canonical") -> Workload:
    """The workload `key` (a, b8, b16, c, d, e, f, kv); `order` is that of the passages in c."""
    rng = random.Random(f"{_SEED} {key}")
    match key:
        case "a" | "b8" | "b16" | "kv":
            return _own_passages(rng, size)
        case "c":
            return _overlapping(rng, size, order)
        case "d":
            return _conversations(rng, size)
        case "e":
            return _mixed(rng, size)
        case "f":
            return _quoting(rng, size)
    raise ValueError(f"there is no workload {key!r}")


def _own_passages(rng: random.Random, size: Size) -> Workload:
    system = _system(rng, size)

    def ask() -> Request:
        content = f"Passages:\n{texts.prose(rng, size.passage)}\n\nQuestion: {texts.question(rng)}"
        return Request((*system, *_turn(content)), size.answer, pinned=2)

    warm = (ask(),)
    return Workload(tuple(ask() for _ in range(size.requests)), size.users, warm=warm)


def _overlapping(rng: random.Random, size: Size, order: Order) -> Workload:
    system = _system(rng, size)
    passages = [texts.prose(rng, size.passage) for _ in range(_PASSAGES + _PACKED)]
    # Which passage is asked for often has nothing to do with its place in the documents.
    popular = rng.sample(range(_PASSAGES), _PASSAGES)
    weights = [1 / rank for rank in range(1, _PASSAGES + 1)]
    layout = Layout()

    def ask(found: list[int]) -> Request:
        laid_out = found if order == "relevance" else layout.arrange(found, lambda which: (0, which))
        listing = "\n".join(f"[{number}] {passages[which]}" for number, which in enumerate(laid_out, start=1))
        content = f"Passages:\n{listing}\n\nQuestion: {texts.question(rng)}"
        return Request((*system, *_turn(content)), size.answer, pinned=2)

    warm = (ask(list(range(_PASSAGES, _PASSAGES + _PACKED))),)
    found = [_drawn(rng, popular, weights) for _ in range(size.requests)]
    return Workload(tuple(map(ask, found)), size.users, warm=warm)


def _drawn(rng: random.Random, popular: list[int], weights: list[float]) -> list[int]:
    """Different passages, the most relevant first."""
    drawn: dict[int, None] = {}
    while len(drawn) < _PACKED:
        drawn[rng.choices(popular, weights)[0]] = None
    return list(drawn)


def _conversations(rng: random.Random, size: Size) -> Workload:
    system = _system(rng, size)
    requests = []
    for turn in range(size.requests):
        for user in range(size.users):
            content = f"{texts.prose(rng, size.passage)} {texts.question(rng)}"
            if turn == 0:
                prompt, pinned = (*system, *_turn(content)), 2
            else:
                prompt, pinned = (Segment("<|im_end|>\n", template=True), *_turn(content)), 0
            requests.append(Request(prompt, size.answer, pinned=pinned, conversation=user))
    warm = (Request((*system, *_turn(texts.question(rng))), size.answer, pinned=2),)
    return Workload(tuple(requests), max(1, size.users // 2), warm=warm)


def _mixed(rng: random.Random, size: Size) -> Workload:
    system = _system(rng, size)

    def short() -> Request:
        return Request((*system, *_turn(texts.question(rng))), size.answer, "interactive", pinned=2)

    def long() -> Request:
        content = f"{texts.prose(rng, size.passage)}\n\nSummarize this."
        return Request((*system, *_turn(content)), size.answer, "long", pinned=2)

    loops = tuple(tuple(short() for _ in range(_LOOPED)) for _ in range(size.users))
    return Workload(tuple(long() for _ in range(size.requests)), min(2, size.requests), loops, warm=(short(),))


def _quoting(rng: random.Random, size: Size) -> Workload:
    """Answers that say again what the prompt says: each prompt ends where its text has begun a second time."""

    def ask() -> Request:
        lines = list(_lines(rng, size.passage))
        begun = "\n".join(lines[:2])
        text = "\n".join(lines)
        prompt = Segment(f"The manual says:\n\n{text}\n\nAgain, word for word, the manual says:\n\n{begun}\n")
        return Request((prompt,), size.answer)

    return Workload(tuple(ask() for _ in range(size.requests)), 1)


def _lines(rng: random.Random, tokens: int) -> Iterator[str]:
    """Numbered sentences, of about `tokens` tokens together."""
    words = 0.0
    number = 0
    while number < 3 or words < tokens * texts.WORDS_PER_TOKEN:
        number += 1
        line = f"{number}. {texts.sentence(rng)}"
        words += len(line.split())
        yield line


def _system(rng: random.Random, size: Size) -> tuple[Segment, ...]:
    return (
        Segment("<|im_start|>system\n", template=True),
        Segment(texts.instructions(rng, size.instructions)),
        Segment("<|im_end|>\n", template=True),
    )


def _turn(content: str) -> tuple[Segment, ...]:
    return (_OPEN, Segment(content), _CLOSE)
