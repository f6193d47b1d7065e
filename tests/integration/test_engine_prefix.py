"""Owns the proof, on the real pocket model, that reused KV is the KV that would have been computed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from appliance.config import EngineSettings
from appliance.engine.core import Core
from appliance.engine.llama import Llama
from appliance.engine.persist import Identity, PrefixFiles
from appliance.engine.protocol import Done, EngineConfig, FromEngine, Sampling, Segment, Started, Submit, Token
from appliance.packs import ResolvedPack
from tests.integration.engine_core import end as done
from tests.integration.engine_core import run as run_all
from tests.integration.engine_core import text

SETTINGS = EngineSettings(kv_tokens=2048, max_sequences=4, batch_tokens=128, threads=1, host_cache_bytes=256 << 20)
MANUAL = "The pump P-7 runs at 900 revolutions a minute. Its seal is checked each week and changed each year. " * 6
OTHER = "Bread is baked at 230 degrees for forty minutes. The dough rests in the tin for an hour before. " * 6


@pytest.fixture(scope="module")
def llama(pocket: ResolvedPack) -> Iterator[Llama]:
    spec = pocket.generator
    loaded = Llama(EngineConfig(str(spec.path), spec.name, settings=SETTINGS, device="cpu"))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def bare(pocket: ResolvedPack) -> Iterator[Llama]:
    """Another context, in which one request at a time is computed, with nothing of others."""
    spec = pocket.generator
    settings = msgspec.structs.replace(SETTINGS, deterministic=True)
    loaded = Llama(EngineConfig(str(spec.path), spec.name, settings=settings, device="cpu"))
    yield loaded
    loaded.close()


@pytest.fixture
def core(llama: Llama) -> Iterator[Core]:
    made = Core(llama, SETTINGS)
    yield made
    made.check_integrity()
    made.close()
    assert all(llama.used(sequence) == 0 for sequence in range(llama.prefix_sequences.stop)), "cells were not freed"


def submit(number: int, manual: str, question: str, max_tokens: int = 12, **rest: object) -> Submit:
    prompt = (
        Segment("<|im_start|>system\n", template=True),
        Segment(manual),
        Segment("<|im_end|>\n<|im_start|>user\n", template=True),
        Segment(question),
        Segment("<|im_end|>\n<|im_start|>assistant\n", template=True),
    )
    return Submit(number, prompt, max_tokens, **rest)  # type: ignore[arg-type]


def run(core: Core, *requests: Submit) -> dict[int, list[FromEngine]]:
    """All messages of each request."""
    return run_all(core, requests)


def ids(messages: Sequence[FromEngine]) -> list[int]:
    return [token for message in messages if isinstance(message, Token) for token in message.ids]


class Watched(Core):
    """Keeps the logits after each prompt."""

    seen: dict[int, npt.NDArray[np.float32]]

    def _choose(self, wanted):  # type: ignore[no-untyped-def]
        rows = self.llama.logits()
        row = 0
        for sequence in wanted:
            if sequence.generated == 0:
                self.seen[sequence.request.id] = rows[row].copy()
            row += len(sequence.drafts) + 1
        super()._choose(wanted)


@pytest.fixture
def watched(llama: Llama) -> Iterator[Watched]:
    made = Watched(llama, SETTINGS)
    made.seen = {}
    yield made
    made.close()


def alone(bare: Llama, request: Submit) -> npt.NDArray[np.float32]:
    """Logits after the prompt of a request that is the only one its context has ever seen."""
    core = Watched(bare, msgspec.structs.replace(SETTINGS, deterministic=True))
    core.seen = {}
    run(core, msgspec.structs.replace(request, max_tokens=1))
    core.close()
    return core.seen[request.id]


def assert_same_within_rounding(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> None:
    """The bound is far below what another prompt gives (see the test of the bound itself)."""
    spread = float(other.std())
    shift = float((one - other).mean())  # means nothing: only differences between tokens do
    assert float(np.abs(one - other - shift).mean()) < 0.1 * spread
    assert other.max() - other[int(one.argmax())] < 0.25 * spread


def test_the_bound_tells_another_prompt(bare: Llama) -> None:
    one = alone(bare, submit(1, MANUAL, "How fast is the pump?"))
    for manual, question in ((OTHER, "How fast is the pump?"), (MANUAL, "How often is the seal checked?")):
        with pytest.raises(AssertionError):
            assert_same_within_rounding(one, alone(bare, submit(2, manual, question)))


def test_a_repeated_beginning_is_not_computed_again(core: Core) -> None:
    first = done(run(core, submit(1, MANUAL, "How fast is the pump?"))[1])
    messages = run(core, submit(2, MANUAL, "How often is the seal checked?"))[2]
    second = done(messages)
    assert first.cached_tokens == 0
    assert second.cached_tokens > 100 and second.prompt_tokens - second.cached_tokens < 24
    assert isinstance(messages[0], Started) and messages[0].cached_tokens == second.cached_tokens
    again = done(run(core, submit(3, MANUAL, "How often is the seal checked?"))[3])
    assert again.cached_tokens == again.prompt_tokens - 1, "all but the last token, whose logits are wanted"


def test_another_label_shares_nothing(core: Core) -> None:
    run(core, submit(1, MANUAL, "How fast?", label="a"))
    assert done(run(core, submit(2, MANUAL, "How fast?", label="b"))[2]).cached_tokens == 0
    assert done(run(core, submit(3, MANUAL, "How fast?", label="a"))[3]).cached_tokens > 100


def test_a_then_b_then_a_have_the_logits_that_each_has_alone(bare: Llama, watched: Watched) -> None:
    questions = [
        (MANUAL, "How fast is the pump?"),
        (OTHER, "How hot is the oven?"),
        (MANUAL, "When is the seal changed?"),
    ]
    for number, (manual, question) in enumerate([*questions, *questions]):
        run(watched, submit(number, manual, question))
        assert_same_within_rounding(watched.seen[number], alone(bare, submit(99, manual, question)))


def test_together_over_shared_prefixes_each_has_the_logits_that_it_has_alone(bare: Llama, watched: Watched) -> None:
    asked = [
        submit(number, (MANUAL, OTHER)[number % 2], f"Question {number // 2}: what is said of number {number}?", 3)
        for number in range(8)
    ]
    out = run(watched, *asked)
    computed = sum(done(out[r.id]).prompt_tokens - done(out[r.id]).cached_tokens for r in asked)
    for request in asked:
        assert_same_within_rounding(watched.seen[request.id], alone(bare, request))
    assert computed > 0


def test_what_many_begin_with_at_the_same_moment_is_computed_once(core: Core) -> None:
    before = core.totals.steps
    asked = [submit(number, MANUAL, f"What about item {number}?", 2) for number in range(4)]
    for request in asked:
        core.submit(request)
    tokens = 0
    while core.busy:
        core.step()
        core.check_integrity()
        tokens += core.llama.batch.raw.n_tokens
    prompt = done([m for m in core.take_messages() if isinstance(m, Done)]).prompt_tokens
    assert core.totals.steps > before
    assert tokens < prompt + 4 * 40, "each computed the shared beginning for itself"


def test_a_prefix_that_left_the_context_comes_back_from_memory(bare: Llama, watched: Watched) -> None:
    first = submit(1, MANUAL * 5, "How fast is the pump?", 4)
    run(watched, first)
    run(watched, submit(2, OTHER * 9, "How hot?", 4))
    assert watched.cache.stats.saved > 0
    again = submit(3, MANUAL * 5, "How fast is the pump?", 4)
    end = done(run(watched, again)[3])
    assert watched.cache.stats.restored > 0 and watched.cache.stats.lost == 0
    assert end.cached_tokens == end.prompt_tokens - 1
    assert_same_within_rounding(watched.seen[3], alone(bare, again))


def files_of(llama: Llama, folder: Path) -> PrefixFiles:
    return PrefixFiles(folder, Identity("sha", llama.build, "f16"), 1 << 30)


def restarted(llama: Llama, folder: Path) -> Watched:
    core = Watched(llama, SETTINGS, files_of(llama, folder))
    core.seen = {}
    return core


def leave_a_prefix(llama: Llama, folder: Path) -> None:
    """What a first engine process leaves: the pinned instructions, on the disk."""
    core = restarted(llama, folder)
    run(core, submit(1, MANUAL, "How fast is the pump?", pinned=2))
    core.idle()
    core.close()


def test_pinned_instructions_survive_a_restart(llama: Llama, bare: Llama, tmp_path: Path) -> None:
    leave_a_prefix(llama, tmp_path)
    core = restarted(llama, tmp_path)
    request = submit(1, MANUAL, "How often is the seal checked?")
    end = done(run(core, request)[1])
    pinned = len(llama.tokenize_prompt(request.prompt[:2]))
    core.close()
    assert pinned <= end.cached_tokens < end.prompt_tokens, "the reply itself says what was reused"
    assert_same_within_rounding(core.seen[1], alone(bare, request))


TWENTY = [submit(number, MANUAL if number % 2 else OTHER, f"Say {number}.", 1) for number in range(20)]


@pytest.fixture(scope="module")
def of_a_fresh_process(llama: Llama) -> dict[int, npt.NDArray[np.float32]]:
    """The logits after each of twenty prompts in an engine that finds no files."""
    core = Watched(llama, SETTINGS)
    core.seen = {}
    for request in TWENTY:
        run(core, request)
    core.close()
    return core.seen


@pytest.mark.parametrize("damage", ["flipped byte", "half", "empty", "another model", "another type"])
def test_a_file_that_is_not_right_is_counted_and_twenty_answers_are_those_of_a_fresh_process(
    llama: Llama, of_a_fresh_process: dict[int, npt.NDArray[np.float32]], tmp_path: Path, damage: str
) -> None:
    leave_a_prefix(llama, tmp_path)
    (path,) = tmp_path.iterdir()
    identity = Identity("sha", llama.build, "f16")
    match damage:
        case "flipped byte":
            data = bytearray(path.read_bytes())
            data[-100] ^= 4
            path.write_bytes(data)
        case "half":
            os.truncate(path, path.stat().st_size // 2)
        case "empty":
            os.truncate(path, 0)
        case "another model":
            identity = Identity("other", llama.build, "f16")
        case "another type":
            identity = Identity("sha", llama.build, "q8_0")
    files = PrefixFiles(tmp_path, identity, 1 << 30)
    core = Watched(llama, SETTINGS, files)
    core.seen = {}
    first = done(run(core, TWENTY[1])[1])
    for request in [TWENTY[0], *TWENTY[2:]]:
        run(core, request)
    core.close()
    assert first.cached_tokens == 0
    assert files.stats.refused == 1
    assert not path.exists()
    for request in TWENTY:
        assert_same_within_rounding(core.seen[request.id], of_a_fresh_process[request.id])


def test_an_answer_goes_on_in_another_engine_where_it_stopped(core: Core) -> None:
    request = submit(1, MANUAL, "How fast is the pump?", 24)
    whole = run(core, request)[1]
    told = ids(whole)
    for at in (1, len(told) // 2, len(told) - 1):
        rest = run(core, submit(2, MANUAL, "How fast is the pump?", 24, generated=tuple(told[:at])))[2]
        assert ids(rest) == told[at:]
        assert text(whole).endswith(text(rest))
        assert done(rest).generated_tokens == done(whole).generated_tokens


def test_a_drawn_answer_goes_on_in_another_engine_with_the_same_tokens(core: Core) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=11)
    told = ids(run(core, submit(1, MANUAL, "Tell me about the pump.", 16, sampling=sampling))[1])
    again = submit(2, MANUAL, "Tell me about the pump.", 16, sampling=sampling, generated=tuple(told[:8]))
    assert ids(run(core, again)[2]) == told[8:]


def test_an_answer_that_had_ended_when_the_engine_died_ends_at_once(core: Core) -> None:
    told = ids(run(core, submit(1, MANUAL, "How fast is the pump?", 6))[1])
    messages = run(core, submit(2, MANUAL, "How fast is the pump?", 6, generated=tuple(told)))[2]
    assert ids(messages) == [] and done(messages).finish_reason == "length"


def test_guessing_ahead_changes_nothing_but_the_number_of_steps(llama: Llama) -> None:
    question = "Repeat: the seal is checked each week and changed each year. the seal is checked each week and"
    results = []
    for speculation in (False, True):
        core = Core(llama, EngineSettings(kv_tokens=2048, max_sequences=4, threads=1, speculation=speculation))
        core._pace.marginal = lambda decodes: 0.05  # type: ignore[method-assign]  # whatever this machine costs
        messages = run(core, submit(1, MANUAL, question, 40))[1]
        results.append((ids(messages), core.totals.steps, done(messages)))
        core.close()
    (plain, plain_steps, _), (guessed, steps, end) = results
    assert guessed == plain
    assert end.accepted_tokens > 0 and end.drafted_tokens >= end.accepted_tokens
    assert steps < plain_steps


def test_an_interactive_request_takes_the_place_of_a_batch_one_which_goes_on_later(core: Core) -> None:
    for number in range(4):
        core.submit(submit(number, OTHER, f"Write about bread, part {number}.", 60, priority="batch"))
    messages: list[FromEngine] = []
    while sum(isinstance(message, Token) for message in messages) < 8:
        core.step()
        messages += core.take_messages()
    core.submit(submit(9, MANUAL, "How fast is the pump?", 4, priority="interactive"))
    core.step()
    core.check_integrity()
    beat = core.heartbeat()
    assert (beat.running, beat.waiting) == (4, 1)
    while core.busy:
        core.step()
        core.check_integrity()
    messages += core.take_messages()
    ends = [message for message in messages if isinstance(message, Done)]
    assert ends[0].id == 9 and sorted(end.id for end in ends) == [0, 1, 2, 3, 9]
    assert len([message for message in messages if isinstance(message, Started)]) == 5, "resumed without a word"
    for number in range(4):
        told = [token for m in messages if isinstance(m, Token) and m.id == number for token in m.ids]
        assert len(told) <= 60


def test_a_broken_output_poisons_no_later_answer(core: Core, llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Llama.logits

    def broken(self: Llama) -> npt.NDArray[np.float32]:
        rows = real(self)
        rows[:] = np.nan
        return rows

    monkeypatch.setattr(Llama, "logits", broken)
    run(core, submit(1, MANUAL, "How fast?"))
    monkeypatch.setattr(Llama, "logits", real)
    end = done(run(core, submit(2, MANUAL, "How fast?"))[2])
    assert end.cached_tokens == 0
