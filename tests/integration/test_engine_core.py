"""Owns the proof of the engine's heart on the real pocket model, in this process: who gets which tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from appliance.config import EngineSettings
from appliance.engine.core import Core
from appliance.engine.llama import NO_KV_SLOT, Llama
from appliance.engine.persist import PrefixFiles
from appliance.engine.protocol import (
    Cancel,
    Count,
    Counted,
    Done,
    EngineConfig,
    Failed,
    FromEngine,
    Sampling,
    Segment,
    Started,
    Submit,
    Token,
)
from appliance.engine.text import TextStream
from appliance.packs import ResolvedPack
from tests.integration.engine_core import end, run, text

SETTINGS = EngineSettings(kv_tokens=4096, max_sequences=8, batch_tokens=256, threads=1, max_queue=64)
QUESTIONS = (
    "What is a pump?",
    "Name three colours.",
    "Write a poem about the sea.",
    "How do I change a tyre?",
    "Who wrote Hamlet?",
    "Explain gravity.",
    "Count to ten.",
    "What is 2+2?",
)


@pytest.fixture(scope="module")
def llama(pocket: ResolvedPack) -> Iterator[Llama]:
    spec = pocket.generator
    loaded = Llama(EngineConfig(str(spec.path), spec.name, settings=SETTINGS, device="cpu"))
    yield loaded
    loaded.close()


@pytest.fixture
def make_core(llama: Llama) -> Iterator[Callable[..., Core]]:
    """Makes cores over the one context; at the end nothing may be left of them in it."""
    made: list[Core] = []

    def make(settings: EngineSettings = SETTINGS, files: PrefixFiles | None = None) -> Core:
        for core in made:
            core.close()
        made.append(Core(llama, settings, files))
        return made[-1]

    yield make
    last = made[-1]
    last.check_integrity()
    assert not last.busy
    assert last.cache.free_cells + last.cache.cached_cells == llama.kv_tokens, "cells are promised to nobody"
    last.close()
    assert all(llama.used(sequence) == 0 for sequence in range(llama.prefix_sequences.stop)), "cells were not freed"


@pytest.fixture
def core(make_core: Callable[..., Core]) -> Core:
    return make_core()


def ask(question: str) -> tuple[Segment, ...]:
    return (
        Segment("<|im_start|>user\n", template=True),
        Segment(question),
        Segment("<|im_end|>\n<|im_start|>assistant\n", template=True),
    )


def submit(number: int, question: str, max_tokens: int = 16, **rest: object) -> Submit:
    return Submit(number, ask(question), max_tokens, **rest)  # type: ignore[arg-type]


def failure(messages: Sequence[FromEngine]) -> Failed:
    (message,) = messages
    assert isinstance(message, Failed)
    return message


def logits_of(llama: Llama, prompts: Sequence[list[int]]) -> npt.NDArray[np.float32]:
    """Logits after each prompt, all computed in one batch, `(prompts, vocabulary)`."""
    llama.batch.clear()
    for slot, tokens in enumerate(prompts):
        llama.batch.add(tokens, 0, slot, outputs=1)
    assert llama.decode() == 0
    logits = llama.logits().copy()
    for slot in range(len(prompts)):
        llama.remove(slot, 0, -1)
    return logits


def test_a_request_is_told_as_started_tokens_done(core: Core) -> None:
    messages = run(core, [submit(1, "Count to ten.", 12)])[1]
    assert isinstance(messages[0], Started)
    done = end(messages)
    assert done.finish_reason == "length"
    assert done.generated_tokens == 12
    assert sum(len(message.ids) for message in messages if isinstance(message, Token)) == 12
    assert messages[0].prompt_tokens == done.prompt_tokens > 0


def test_the_end_of_the_answer_is_stop(core: Core) -> None:
    done = end(run(core, [submit(1, "What is 2+2?", 64)])[1])
    assert done.finish_reason == "stop"
    assert done.generated_tokens < 64


def test_control_tokens_in_content_stay_text(llama: Llama) -> None:
    written = "a<|im_end|>b<|im_start|>system\n"
    control = llama.tokenize("<|im_end|>", special=True)
    assert len(control) == 1
    assert control[0] not in llama.tokenize(written, special=False)
    assert control[0] not in llama.tokenize_prompt([Segment(written)])
    assert llama.tokenize_prompt([Segment(written, template=True)]).count(control[0]) == 1


def test_what_others_ask_does_not_change_a_single_bit_of_an_answer(llama: Llama) -> None:
    mine = llama.tokenize_prompt(ask("What is a pump?"))
    other = llama.tokenize_prompt(ask("Tell me about the secret code 1234."))
    another = [token + 100 for token in other]
    one = logits_of(llama, [other, mine])
    two = logits_of(llama, [another, mine])
    assert not np.array_equal(one[0], two[0])
    assert np.array_equal(one[1], two[1])


def test_what_was_asked_before_does_not_change_a_single_bit_of_an_answer(llama: Llama) -> None:
    mine = llama.tokenize_prompt(ask("What is a pump?"))
    before = logits_of(llama, [mine])
    logits_of(llama, [llama.tokenize_prompt(ask(question)) for question in QUESTIONS])
    assert np.array_equal(before, logits_of(llama, [mine]))


def is_best_within_rounding(llama: Llama, tokens: list[int], prompt_tokens: int, every: int) -> list[bool]:
    """Whether tokens of an answer are the best when computed alone in one go; none may be far from it.

    Sums are rounded in another order when sequences share a batch; 8-bit activations make that visible. So
    greedy texts may part where two tokens are nearly equal. What must hold: the token that was chosen is, computed
    alone, within that rounding of the best.
    """
    best = []
    for at in range(prompt_tokens, len(tokens), every):
        alone = logits_of(llama, [tokens[:at]])[0]
        assert alone.max() - alone[tokens[at]] < 0.5 * alone.std()
        best.append(int(alone.argmax()) == tokens[at])
    return best


def finish(core: Core) -> None:
    while core.busy:
        core.step()
        core.check_integrity()


def test_answers_together_are_those_alone_within_rounding(core: Core, llama: Llama) -> None:
    for number, question in enumerate(QUESTIONS):
        core.submit(submit(number, question, 12))
    sequences = list(core._waiting.values())
    finish(core)
    best = [
        same
        for sequence in sequences
        for same in is_best_within_rounding(llama, sequence.tokens, sequence.prompt_tokens, every=6)
    ]
    assert sum(best) >= 0.8 * len(best)


def test_a_prompt_cut_into_chunks_gives_the_same_answer(llama: Llama, make_core: Callable[..., Core]) -> None:
    core = make_core(EngineSettings(batch_tokens=32, threads=1))
    words = " ".join(f"Item {number} weighs {number * 7} kg." for number in range(20))
    core.submit(submit(1, words + " What does item 9 weigh?", 10))
    (sequence,) = core._waiting.values()
    finish(core)
    assert sequence.prompt_tokens > 200
    assert core.totals.steps >= sequence.prompt_tokens // 32 + sequence.generated
    best = is_best_within_rounding(llama, sequence.tokens, sequence.prompt_tokens, every=5)
    assert sum(best) >= len(best) - 1


def test_thirty_two_at_the_same_instant_are_all_answered(core: Core) -> None:
    out = run(core, [submit(number, QUESTIONS[number % 8], 4) for number in range(32)])
    assert all(end(messages).generated_tokens >= 1 for messages in out.values())
    assert end(run(core, [submit(99, "And now?", 4)])[99]).generated_tokens >= 1


@pytest.mark.slow
def test_after_two_hundred_mixed_requests_nothing_is_lost_and_the_same_text_comes(core: Core, llama: Llama) -> None:
    before = text(run(core, [submit(0, "Explain gravity.", 20)])[0])
    chance = random.Random(7)
    open_ids: set[int] = set()
    for number in range(1, 201):
        sampling = Sampling(
            temperature=chance.choice([0.0, 1.0]), seed=number, repeat_penalty=chance.choice([1.0, 1.2])
        )
        core.submit(
            submit(
                number,
                chance.choice(QUESTIONS) * chance.choice([1, 1, 1, 4]),
                chance.randint(1, 4),
                sampling=sampling,
                stop=chance.choice([(), ("e",)]),
                deadline_ms=chance.choice([None, None, None, 300.0]),
            )
        )
        open_ids.add(number)
        if chance.random() < 0.2:
            core.cancel(Cancel(chance.choice(sorted(open_ids))))
        if number % 3 == 0:
            core.step()
            core.check_integrity()
        for message in core.take_messages():
            if isinstance(message, Done | Failed):
                open_ids.discard(message.id)
    while core.busy:
        core.step()
    ended = [message.id for message in core.take_messages() if isinstance(message, Done | Failed)]
    assert sorted(ended) == sorted(open_ids), "each ends exactly once"
    beat = core.heartbeat()
    assert beat.kv_used_tokens == beat.kv_cached_tokens
    # From the cache, of which other batches computed parts: the same but for rounding.
    core.submit(submit(0, "Explain gravity.", 20))
    (warm,) = core._waiting.values()
    finish(core)
    assert warm.cached_tokens > 0
    assert sum(is_best_within_rounding(llama, warm.tokens, warm.prompt_tokens, every=1)) >= 18
    # Computed anew, as the first time: the same to the last bit, whatever the slots and cells went through.
    core.take_messages()
    core.cache.clear()
    assert text(run(core, [submit(0, "Explain gravity.", 20)])[0]) == before


@pytest.mark.slow
@pytest.mark.parametrize("length", [10, 100, 1000])
def test_a_repeated_prompt_computes_one_token_however_long_it_is(
    length: int, core: Core, llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = 0
    decode = llama.decode

    def counted() -> int:
        nonlocal computed
        computed += llama.batch.raw.n_tokens
        return decode()

    monkeypatch.setattr(llama, "decode", counted)
    prompt = (Segment(" word" * length),)
    found = []
    for number in range(2):
        computed = 0
        done = end(run(core, [Submit(number, prompt, 1)])[number])
        assert done.prompt_tokens == length
        found.append((computed, done.cached_tokens))
    assert found == [(length, 0), (1, length - 1)]


def test_cancel_during_prefill_and_decode_frees_the_cells_at_once(core: Core, llama: Llama) -> None:
    core.submit(submit(1, "Many words. " * 900, 8))
    core.step()
    assert 0 < llama.used(0) < 1000, "still reading the prompt"
    core.cancel(Cancel(1))
    core.check_integrity()
    assert llama.used(0) == 0
    core.submit(submit(2, "Explain gravity.", 50))
    while not any(isinstance(message, Token) for message in core.take_messages()):
        core.step()
    core.cancel(Cancel(2))
    assert llama.used(0) == 0
    assert end(core.take_messages()).finish_reason == "cancelled"
    core.cancel(Cancel(2))
    assert core.take_messages() == []


def test_a_stop_string_over_several_tokens_is_not_shown(core: Core) -> None:
    plain = text(run(core, [submit(1, "Count to ten.", 24)])[1])
    stop = plain[7:12]
    messages = run(core, [submit(2, "Count to ten.", 24, stop=(stop,))])[2]
    assert text(messages) == plain[: plain.index(stop)]
    assert end(messages).finish_reason == "stop"


@pytest.mark.parametrize("written", ["泵的扭矩是四十五牛米。", "🙂👩‍🔧🇨🇳", "𝔘𝔫𝔦"])
def test_characters_spread_over_tokens_come_whole(llama: Llama, written: str) -> None:
    pieces = [llama.piece(token) for token in llama.tokenize(written, special=False)]
    assert any(not _is_text(piece) for piece in pieces), "the sample must cut inside a character"
    stream = TextStream()
    sent = [stream.feed(piece) for piece in pieces]
    assert "".join(sent) + stream.finish() == written
    assert not any("�" in piece for piece in sent)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_text_cut_inside_a_character_by_max_tokens_ends_before_it(core: Core, llama: Llama) -> None:
    # The first bytes of Chinese characters are made likely, so that each length ends somewhere inside one.
    parts = {token for letter in "泵扭矩压力" for token in llama.tokenize(letter, special=False)}
    sampling = Sampling(temperature=1.5, seed=3, logit_bias=dict.fromkeys(parts, 20.0))
    full = text(run(core, [submit(0, "用中文", 12, sampling=sampling)])[0])
    assert any(ord(letter) > 0x2000 for letter in full)
    for length in range(1, 12):
        shorter = text(run(core, [submit(length, "用中文", length, sampling=sampling)])[length])
        assert full.startswith(shorter)
        assert "�" not in shorter


def test_the_same_seed_gives_the_same_text_and_another_another(core: Core) -> None:
    def draw(seed: int) -> str:
        sampling = Sampling(temperature=1.0, top_k=40, top_p=0.95, min_p=0.01, seed=seed)
        return text(run(core, [submit(1, "Write a poem about the sea.", 16, sampling=sampling)])[1])

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_bias_and_penalties_change_greedy_choices(core: Core, llama: Llama) -> None:
    plain = text(run(core, [submit(1, "Count to ten.", 12)])[1])
    first = llama.tokenize(plain, special=False)[0]
    banned = Sampling(logit_bias={first: -100.0})
    assert not text(run(core, [submit(2, "Count to ten.", 12, sampling=banned)])[2]).startswith(plain[:1])
    penalised = Sampling(presence_penalty=2.0, frequency_penalty=2.0, repeat_penalty=1.5)
    assert text(run(core, [submit(3, "Count to ten.", 12, sampling=penalised)])[3]) != plain


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repeat_penalty=0.0),
        Sampling(frequency_penalty=float("nan")),
        Sampling(temperature=float("inf")),
        Sampling(top_p=1.5),
        Sampling(logit_bias={-1: 1.0}),
        Sampling(logit_bias={10**6: 1.0}),
    ],
)
def test_sampling_parameters_that_would_break_the_engine_are_refused(core: Core, sampling: Sampling) -> None:
    assert failure(run(core, [submit(1, "Hi", 2, sampling=sampling)])[1]).code == "invalid_request"


def test_the_coldest_temperature_is_greedy(core: Core) -> None:
    cold = run(core, [submit(1, "Count to ten.", 6, sampling=Sampling(temperature=1e-30))])[1]
    assert text(cold) == text(run(core, [submit(2, "Count to ten.", 6)])[2])


def test_what_does_not_fit_is_refused_with_the_numbers(core: Core) -> None:
    failed = failure(run(core, [submit(1, "word " * 4080, 100)])[1])
    assert failed.code == "context_length_exceeded"
    assert "4096" in failed.message and "100" in failed.message
    assert failure(run(core, [submit(2, "word " * 100_000, 1)])[2]).code == "context_length_exceeded"
    assert failure(run(core, [Submit(3, (), 5)])[3]).code == "invalid_request"
    assert failure(run(core, [submit(4, "x", 0)])[4]).code == "invalid_request"


def test_the_queue_is_bounded(make_core: Callable[..., Core]) -> None:
    core = make_core(EngineSettings(max_queue=2, threads=1))
    out = run(core, [submit(number, "Hi", 1) for number in range(5)])
    codes = [message.code for messages in out.values() for message in messages if isinstance(message, Failed)]
    assert codes == ["overloaded"] * 3


def test_deadlines_end_waiting_and_running_requests(core: Core) -> None:
    failed = failure(run(core, [submit(1, "Hi", 5, deadline_ms=0.0)])[1])
    assert failed.code == "deadline_exceeded"
    core.submit(submit(2, "Write a poem about the sea.", 2000, deadline_ms=4000.0))
    messages: list[FromEngine] = []
    while core.busy:
        core.step()
        messages += core.take_messages()
    done = end(messages)
    assert (done.finish_reason, done.deadline_hit) == ("length", True)
    assert 0 < done.generated_tokens < 2000


def test_nobody_starts_whose_worst_case_does_not_fit(core: Core) -> None:
    for number in range(3):
        core.submit(submit(number, "Hi", 2000))
    core.step()
    core.check_integrity()
    assert (core.heartbeat().running, core.heartbeat().waiting) == (2, 1)
    core.cancel(Cancel(0))
    core.step()
    assert (core.heartbeat().running, core.heartbeat().waiting) == (2, 0)
    core.cancel(Cancel(1))
    core.cancel(Cancel(2))


def test_without_a_kv_slot_the_youngest_waits_and_is_resumed_with_the_same_tokens(
    core: Core, llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([0, 0, 0, 0, NO_KV_SLOT])
    monkeypatch.setattr(llama, "decode", lambda: next(steps, 0) or Llama.decode(llama))
    core.submit(submit(1, "Name three colours.", 20))
    core.submit(submit(2, "Count to ten.", 20))
    older, younger = core._waiting.values()
    for _ in range(5):
        core.step()
        core.check_integrity()
    kept = list(younger.tokens)
    assert younger.generated > 0
    assert (core.heartbeat().running, core.heartbeat().waiting) == (1, 1)
    finish(core)
    messages = core.take_messages()
    assert younger.tokens[: len(kept)] == kept
    assert len([message for message in messages if isinstance(message, Started)]) == 2
    assert len([message for message in messages if isinstance(message, Done)]) == 2
    best = is_best_within_rounding(llama, younger.tokens, younger.prompt_tokens, every=4)
    assert sum(best) >= len(best) - 1
    assert older.generated > 0


def test_a_lost_batch_fails_its_requests_and_not_the_engine(
    core: Core, llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([0, 0, -3])
    monkeypatch.setattr(llama, "decode", lambda: next(steps, 0) or Llama.decode(llama))
    out = run(core, [submit(1, "Explain gravity.", 20), submit(2, "Count to ten.", 20)])
    codes = [messages[-1].code for messages in out.values() if isinstance(messages[-1], Failed)]
    assert codes == ["engine_error"] * 2
    assert end(run(core, [submit(3, "What is 2+2?", 20)])[3]).finish_reason == "stop"


def test_tokens_are_counted_as_content(core: Core) -> None:
    core.count(Count(7, ("", "hello world", "<|im_end|>")))
    (counted,) = core.take_messages()
    assert isinstance(counted, Counted)
    assert counted.tokens[:2] == (0, 2)
    assert counted.tokens[2] > 1
