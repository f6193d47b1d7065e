"""The core over a stand-in for llama.cpp, whose next token follows from the whole text before it and nothing else.

So each answer can be told without the engine: if it is another, KV was mixed up, lost or stale. The real model is in
tests/integration; there rounding hides what is exact here.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import EngineSettings
from appliance.engine.core import Core
from appliance.engine.grammar import Grammar, Grammars
from appliance.engine.persist import Identity, PrefixFiles
from appliance.engine.prefix import WORTH_SAVING_TOKENS, PrefixCache
from appliance.engine.protocol import (
    Cancel,
    Constraint,
    Done,
    Failed,
    Forget,
    Forgotten,
    FromEngine,
    Sampling,
    Segment,
    Started,
    Submit,
    Token,
)
from appliance.engine.schema import UnsupportedConstraint
from tests.unit.engine.cells import Cells

VOCABULARY = 12  # small: texts repeat themselves, so that guesses are often right
END = 0
SLOTS, PREFIXES = 4, 12


@dataclass
class Rows:
    """Stands in for `Batch`."""

    capacity: int = 64
    items: list[tuple[int, int, int, bool]] = field(default_factory=list)  # token, position, sequence, output

    @property
    def outputs(self) -> list[int]:
        return [place for place, item in enumerate(self.items) if item[3]]

    def clear(self) -> None:
        self.items.clear()

    def add(self, tokens: Sequence[int], position: int, sequence: int, *, outputs: int) -> None:
        first = len(tokens) - outputs
        self.items += [(token, position + n, sequence, n >= first) for n, token in enumerate(tokens)]
        assert len(self.items) <= self.capacity


class StandIn(Cells):
    """Stands in for `Llama`: what a token's KV depends on is kept in its cell, and checked at every use."""

    n_vocab = VOCABULARY
    context_tokens = 60
    warm_up_s = 0.001
    max_sequences = SLOTS
    prefix_sequences = range(SLOTS, SLOTS + PREFIXES)
    vocab = None
    device = "cpu"

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.kv_tokens = total
        self.batch = Rows()
        self.rows: list[tuple[int, ...]] = []
        self.computed = 0  # tokens

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return [ord(letter) - 96 for letter in text]

    def tokenize_prompt(self, prompt: Iterable[Segment]) -> list[int]:
        return [token for segment in prompt for token in self.tokenize(segment.text, special=False)]

    def piece(self, token: int) -> bytes:
        return bytes([96 + token])

    def is_end(self, token: int) -> bool:
        return token == END

    def used(self, sequence: int) -> int:
        return max(self.of(sequence), default=-1) + 1

    def decode(self) -> int:
        self.rows = []
        self.computed += len(self.batch.items)
        for token, position, sequence, output in self.batch.items:
            before = [self.held[self.of(sequence)[at]] for at in range(position)]
            tokens = tuple(cell[1][-1] for cell in before)
            assert all(cell[1] == tokens[: at + 1] for at, cell in enumerate(before)), "KV of another text"
            self.compute(sequence, position, ("", (*tokens, token)))
            if output:
                self.rows.append((*tokens, token))
        return 0

    def logits(self) -> npt.NDArray[np.float32]:
        return np.stack([scores(tokens) for tokens in self.rows])


def scores(tokens: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """What the stand-in thinks comes next: mostly what followed the last three tokens before, else a hash."""
    digest = hashlib.blake2b(bytes(tokens[-3:]), digest_size=VOCABULARY).digest()
    rare = hashlib.blake2b(bytes(tokens), digest_size=1).digest()[0]
    found = np.frombuffer(digest, np.uint8).astype(np.float32) / np.float32(64)
    found[END] = 5.0 if rare % 9 == 0 else -5.0
    found[1 + rare % (VOCABULARY - 1)] += 3.0 * (rare % 4 == 0)
    return found


def alone(prompt: str, max_tokens: int) -> str:
    """The greedy answer, from the rule itself."""
    tokens = [ord(letter) - 96 for letter in prompt]
    said = ""
    while len(said) < max_tokens:
        best = int(scores(tuple(tokens)).argmax())
        if best == END:
            break
        tokens.append(best)
        said += chr(96 + best)
    return said


SETTINGS = EngineSettings(kv_tokens=150, max_sequences=SLOTS, batch_tokens=32, aging_s=0.01, host_cache_bytes=20_000)


def new_core(total: int = 150, **changes: Any) -> tuple[Core, StandIn]:
    llama = StandIn(total)
    settings = EngineSettings(**{name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__} | changes)
    return Core(llama, settings), llama  # type: ignore[arg-type]


def submit(number: int, prompt: str, max_tokens: int, **rest: Any) -> Submit:
    return Submit(number, (Segment(prompt),), max_tokens, **rest)


def text(messages: Iterable[FromEngine], number: int) -> str:
    return "".join(m.text for m in messages if isinstance(m, Token) and m.id == number)


def finish(core: Core, llama: StandIn) -> list[FromEngine]:
    messages = core.take_messages()
    steps = 0
    while core.busy:
        core.step()
        core.check_integrity()
        messages += core.take_messages()
        steps += 1
        assert steps < 10_000, "it does not end"
    return messages


begins = st.sampled_from(["", "abcabcabcabc", "abcabcabcabd", "kkkkkkkkkkkkkkkkkkkkkkkk", "abc"])
prompts = st.builds(lambda begin, rest: (begin + rest) or "a", begins, st.text("abcdefghijk", max_size=20))
requests = st.tuples(
    prompts,
    st.integers(1, 15),
    st.sampled_from(["interactive", "normal", "batch"]),
    st.sampled_from(["", "", "tenant"]),
    st.integers(0, 3),  # steps before the next one
    st.booleans(),  # pinned
)


@settings(max_examples=120, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=14),
    total=st.sampled_from([75, 150, 1000]),
    host=st.sampled_from([0, 20_000]),
    speculation=st.booleans(),
    cancelled=st.sets(st.integers(0, 13), max_size=3),
)
def test_whatever_else_is_asked_each_answer_is_the_one_that_it_is_alone(
    asked: list[tuple[str, int, Any, str, int, bool]], total: int, host: int, speculation: bool, cancelled: set[int]
) -> None:
    core, llama = new_core(total, host_cache_bytes=host, speculation=speculation)
    core._pace.marginal = lambda decodes: 0.05  # type: ignore[method-assign]  # guesses pay, whatever this machine costs
    messages: list[FromEngine] = []
    for number, (prompt, most, priority, label, pause, pinned) in enumerate(asked):
        core.submit(submit(number, prompt, most, priority=priority, label=label, pinned=int(pinned)))
        for _ in range(pause):
            core.step()
            core.check_integrity()
        if number in cancelled:
            core.cancel(Cancel(number))
        messages += core.take_messages()
    messages += finish(core, llama)
    for number, (prompt, most, *_) in enumerate(asked):
        (end,) = [m for m in messages if isinstance(m, Done | Failed) and m.id == number]
        assert isinstance(end, Done)
        said = text(messages, number)
        assert len([m for m in messages if isinstance(m, Started) and m.id == number]) <= 1
        if end.finish_reason == "cancelled":
            assert alone(prompt, most).startswith(said)
        else:
            assert said == alone(prompt, most)
            assert end.generated_tokens == len(said)
    assert core.cache.free_cells + core.cache.cached_cells == total == llama.kv_tokens
    assert llama.used_cells() == core.cache.cached_cells
    core.close()
    assert llama.used_cells() == 0


@settings(max_examples=60, deadline=None)
@given(prompt=prompts, most=st.integers(1, 20), at=st.integers(0, 20), seed=st.none() | st.integers(0, 9))
def test_an_answer_that_another_engine_takes_over_is_the_same(
    prompt: str, most: int, at: int, seed: int | None
) -> None:
    sampling = Sampling() if seed is None else Sampling(temperature=1.0, seed=seed)
    core, llama = new_core()
    core.submit(submit(1, prompt, most, sampling=sampling))
    messages = finish(core, llama)
    told = [token for m in messages if isinstance(m, Token) for token in m.ids]
    other, llama = new_core()
    other.submit(submit(1, prompt, most, sampling=sampling, generated=tuple(told[:at])))
    rest = finish(other, llama)
    assert [token for m in rest if isinstance(m, Token) for token in m.ids] == told[at:]
    assert isinstance(rest[-1], Done) and isinstance(messages[-1], Done)
    assert rest[-1].generated_tokens == messages[-1].generated_tokens == len(told)
    if at < len(told):  # else it had ended, and how was lost with the engine
        assert rest[-1].finish_reason == messages[-1].finish_reason


@settings(max_examples=60, deadline=None)
@given(prompt=prompts, most=st.integers(1, 12), stop=st.text("abcdefghijk", min_size=2, max_size=3))
def test_an_answer_that_had_ended_sends_nothing_twice(prompt: str, most: int, stop: str) -> None:
    """The other engine died after its last text and before it could say that this was the last."""
    core, llama = new_core()
    core.submit(submit(1, prompt, most, stop=(stop,)))
    messages = finish(core, llama)
    told = tuple(token for m in messages if isinstance(m, Token) for token in m.ids)
    sent = len(text(messages, 1))
    other, llama = new_core()
    other.submit(submit(1, prompt, most, stop=(stop,), generated=told, sent=sent))
    rest = finish(other, llama)
    assert text(rest, 1) == ""
    assert isinstance(rest[-1], Done) and isinstance(messages[-1], Done)
    if rest[-1].generated_tokens == messages[-1].generated_tokens:
        assert rest[-1].finish_reason == messages[-1].finish_reason


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(requests, min_size=1, max_size=8), again=prompts, steps=st.integers(0, 40))
def test_after_forgetting_only_pinned_instructions_are_found(
    asked: list[tuple[str, int, Any, str, int, bool]], again: str, steps: int
) -> None:
    core, llama = new_core(150)
    llama.context_tokens = 80  # the longest of these requests must fit
    for number, (prompt, most, priority, label, _, _) in enumerate(asked):
        segments = (Segment("kkkkkkkkkk"), Segment(prompt))
        core.submit(Submit(number, segments, most, priority=priority, label=label, pinned=1))
    for _ in range(steps):
        core.step()
    core.forget(Forget(7))
    core.check_integrity()
    messages = finish(core, llama)
    assert Forgotten(7) in messages
    for number, (prompt, most, *_) in enumerate(asked):
        assert text(messages, number) == alone("kkkkkkkkkk" + prompt, most), "it is answered to its end"
    pinned = [node for _, node in core.cache.nodes() if node.pinned]
    assert all(core.cache.path_tokens(node) == [11] * node.end and node.end <= 10 for _, node in core.cache.nodes())
    assert core.cache.cached_cells == llama.used_cells() <= 10 * 2, "two labels"
    assert core.cache.host_bytes == sum(node.saved.size for node in pinned if node.saved)
    core.submit(Submit(99, (Segment("kkkkkkkkkk"), Segment(again)), 3))
    (started,) = [m for m in finish(core, llama) if isinstance(m, Started)]
    assert started.cached_tokens <= 10


def test_what_was_read_before_a_removal_is_answered_and_not_kept() -> None:
    core, llama = new_core()
    core.submit(submit(1, "abcdefgh", 4, keep=False))
    assert text(finish(core, llama), 1) == alone("abcdefgh", 4)
    assert core.cache.cached_cells == llama.used_cells() == 0


def test_it_has_forgotten_when_what_was_to_be_written_is_written(tmp_path: Path) -> None:
    woken = threading.Event()
    files = PrefixFiles(tmp_path, Identity("sha", "build", "f16"), 1 << 20)
    core = Core(StandIn(150), SETTINGS, files, woken.set)  # type: ignore[arg-type]
    core.submit(submit(1, "abcdefghijk", 1, pinned=1))
    while core.busy:
        core.step()
    core.idle()
    core.take_messages()
    core.forget(Forget(5))
    assert woken.wait(20)
    core.collect()
    assert core.take_messages() == [Forgotten(5)]
    assert len(list(tmp_path.glob("*.kv"))) == 1
    core.close()


@pytest.mark.parametrize(
    ("length", "idle"),
    # In the context any prompt is kept; memory takes those that are worth a copy.
    [*((length, None) for length in range(10, 58)), *((length, 0) for length in range(WORTH_SAVING_TOKENS + 1, 58))],
)
def test_a_prompt_that_is_repeated_computes_one_token_at_every_length(length: int, idle: int | None) -> None:
    core, llama = new_core(150)
    core.cache = PrefixCache(llama, llama.kv_tokens, llama.prefix_sequences, 20_000, idle)
    prompt = ("abcdefghijk" * 6)[:length]
    computed = []
    for number in range(3):
        before = llama.computed
        core.submit(submit(number, prompt, 1))
        finish(core, llama)
        computed.append(llama.computed - before)
    assert computed == [length, 1, 1]


class Gated:
    """Stands in for compiled constraints: all of them wait for `gate`, then allow the letter that they name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.woken = threading.Semaphore(0)
        self.asked: list[str] = []
        monkeypatch.setattr(Grammars, "compile", lambda grammars, constraint: self.compile(constraint))

    def compile(self, constraint: Constraint) -> Grammar:
        self.asked.append(constraint.source)
        assert self.gate.wait(30)
        if constraint.source == "bad":
            raise UnsupportedConstraint("no such letter")
        return Letter(ord(constraint.source) - 96)

    def core(self) -> tuple[Core, StandIn]:
        llama = StandIn(150)
        return Core(llama, SETTINGS, wake=self.woken.release), llama  # type: ignore[arg-type]

    def open(self, core: Core) -> None:
        """Let everything be compiled that was begun, and the core know of it."""
        self.gate.set()
        assert self.woken.acquire(timeout=30)
        core.collect()


class Letter(Grammar):
    """Stands in for a grammar whose texts repeat one letter."""

    worn = False

    def __init__(self, token: int) -> None:
        self.token = token

    def matcher(self) -> Any:
        return self

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        kept = logits[self.token].copy()
        logits[:] = -np.inf
        logits[self.token] = kept

    def accept(self, token: int) -> None:
        if token != self.token:
            raise ArithmeticError(f"token {token} is not allowed")

    def forced(self, most: int) -> list[int]:
        return [self.token] * most


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    gated = Gated(monkeypatch)
    yield gated
    gated.gate.set()


def constrained(number: int, source: str, most: int = 4, **rest: Any) -> Submit:
    return submit(number, "abc", most, constraint=Constraint("regex", source), **rest)


def test_others_are_answered_while_a_constraint_is_compiled(gated: Gated) -> None:
    core, llama = gated.core()
    core.submit(constrained(1, "f"))
    core.submit(constrained(2, "f"))
    assert not core.busy, "there is nothing to compute"
    core.submit(submit(3, "abcdef", 4))
    messages = finish(core, llama)
    assert text(messages, 3) == alone("abcdef", 4)
    assert {m.id for m in messages if isinstance(m, Started | Token | Done)} == {3} and core.heartbeat().waiting == 2
    gated.open(core)
    messages = finish(core, llama)
    assert text(messages, 1) == text(messages, 2) == "ffff"
    core.submit(constrained(4, "f", generated=(6, 6)))
    assert text(finish(core, llama), 4) == "ff", "it is compiled, and goes on where another engine left it"
    assert gated.asked == ["f"]
    core.close()


@pytest.mark.parametrize(
    ("request_", "named"),
    [(constrained(1, "bad"), "no such letter"), (constrained(1, "f", generated=(6, 5)), "not allowed")],
)
def test_a_constraint_that_cannot_be_is_refused_by_name(request_: Submit, named: str, gated: Gated) -> None:
    core, _ = gated.core()
    core.submit(request_)
    gated.open(core)
    (failed,) = core.take_messages()
    assert isinstance(failed, Failed)
    assert (failed.code, failed.param) == ("invalid_request", "") and named in failed.message
    assert not core.busy
    core.close()


def test_one_that_takes_too_long_is_refused(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.engine.compiling.MOST_S", -1.0)
    core, _ = gated.core()
    core.submit(constrained(1, "f"))
    core.collect()
    (failed,) = core.take_messages()
    assert isinstance(failed, Failed) and "to compile" in failed.message
    gated.open(core)
    assert core.take_messages() == []
    core.close()


def test_a_request_that_waits_for_its_constraint_can_end_as_any_other(gated: Gated) -> None:
    core, _ = gated.core()
    core.submit(constrained(1, "f"))
    core.submit(constrained(2, "f", deadline_ms=0.0))
    core.submit(constrained(3, "g"))
    core.submit(constrained(4, "h"))
    for number in (1, 4):
        core.cancel(Cancel(number))
    core.collect()
    ends = core.take_messages()
    assert [(m.id, m.finish_reason) for m in ends if isinstance(m, Done)] == [(1, "cancelled"), (4, "cancelled")]
    assert [(m.id, m.code) for m in ends if isinstance(m, Failed)] == [(2, "deadline_exceeded")]
    core.check_integrity()
    gated.gate.set()
    core.close()
    assert sorted(gated.asked) == ["f", "g"], "nobody waited for the last one when a thread became free"


def test_after_many_requests_no_cell_and_no_slot_is_lost() -> None:
    count = int(os.environ.get("SOAK_REQUESTS", "2000"))  # the long form: 10000
    core, llama = new_core(400)
    chance = random.Random(5)
    ended = 0
    for number in range(count):
        begin = chance.choice(["abcabcabcabc", "kkkkkkkkkkkkkkkkkkkk", ""])
        prompt = begin + "".join(chance.choices("abcdefghijk", k=chance.randint(1, 12)))
        priority = chance.choice(["interactive", "normal", "batch"])
        core.submit(submit(number, prompt, chance.randint(1, 6), priority=priority))
        if chance.random() < 0.1:
            core.cancel(Cancel(number - chance.randint(0, 5)))
        core.step()
        ended += sum(isinstance(m, Done | Failed) for m in core.take_messages())
    core.check_integrity()
    ended += sum(isinstance(m, Done | Failed) for m in finish(core, llama))
    assert ended == count
    assert core.cache.free_cells + core.cache.cached_cells == 400
    assert llama.used_cells() == core.cache.cached_cells
    core.close()
    assert llama.used_cells() == 0
