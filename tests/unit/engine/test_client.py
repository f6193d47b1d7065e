"""Owns the proof that answers outlive the engine process, by a process that dies on command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.config import EngineSettings
from appliance.engine.client import EngineClient
from appliance.engine.oblivion import Oblivion
from appliance.engine.persist import Identity, PrefixFiles, _header
from appliance.engine.protocol import Constraint, Done, EngineConfig, Segment, Started, Token
from appliance.errors import BadSetting, EngineDied, ModelCorrupt, Overloaded, Quarantined, Unavailable

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))
SETTINGS = EngineSettings(max_sequences=4, start_timeout_s=30.0)
N = 8  # tokens of an answer

Message = Started | Token | Done


class Bench:
    """A client over scripted engines, and what they wrote down."""

    def __init__(self, folder: Path, script: str, device: str, settings: EngineSettings) -> None:
        self.folder = folder
        self.prefixes = folder / "prefixes"
        config = EngineConfig(str(folder), script, device=device, settings=settings, cache_dir=str(self.prefixes))
        self.client = EngineClient(config, COMMAND)

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "log").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def generate(self, prompt: str, **more: Any) -> AsyncGenerator[Message]:
        return self.client.generate(prompt=[Segment(prompt)], max_tokens=N, **more)

    async def answer(self, prompt: str, **more: Any) -> list[Message]:
        return [message async for message in self.generate(prompt, **more)]

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.client.pid is not None
        os.kill(self.client.pid, number)

    def keep_files(self) -> None:
        """Leave kept prefixes as an engine does: one pinned, one not."""
        files = PrefixFiles(self.prefixes, Identity("sha", "build", "f16"), 1 << 20)
        files.write("", [1, 2], 0, b"instructions", pinned=True)
        files.write("", [1, 2, 3], 2, b"a document", pinned=False)
        files.close()

    def kept(self) -> list[str]:
        """What lies in the folder of kept prefixes: whether each file is pinned, and the note."""
        headers = {path: _header(path) for path in self.prefixes.iterdir()}
        return sorted("note" if not found else "pinned" if found[0].pinned else "other" for found in headers.values())

    def remove(self) -> None:
        """A document is removed, as far as the client is to know."""
        self.client.oblivion.incur()
        self.client.oblivion.commit()

    async def open_gate(self) -> None:
        """Let the engine that waits, or will, become ready."""
        await asyncio.to_thread((self.folder / "gate").write_bytes, b"")


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Bench]]:
    @contextlib.asynccontextmanager
    async def running(
        script: str = "", *, device: str = "cpu", settings: EngineSettings = SETTINGS, wait: bool = True
    ) -> AsyncGenerator[Bench]:
        os.mkfifo(tmp_path / "gate")
        bench = Bench(tmp_path, script, device, settings)
        await bench.client.start(wait=wait)
        try:
            yield bench
        finally:
            await bench.client.stop(grace_s=0.0)

    return running


Running = Callable[..., contextlib.AbstractAsyncContextManager[Bench]]


def text(messages: list[Message]) -> str:
    return "".join(message.text for message in messages if isinstance(message, Token))


def ids(messages: list[Message]) -> list[int]:
    return [token for message in messages if isinstance(message, Token) for token in message.ids]


WHOLE = "0 1 2 3 4 5 6 7 "
IDS = list(range(100, 100 + N))


async def take(stream: AsyncGenerator[Message], tokens: int) -> list[Message]:
    """Messages up to the one that brings the token of this number."""
    taken: list[Message] = []
    async for message in stream:
        taken.append(message)
        if len(ids(taken)) >= tokens:
            break
    return taken


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another process brings about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("hold", ["", " hold=1"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
async def test_an_answer_goes_on_where_it_stopped(bench: Running, hold: str, how: int) -> None:
    async with bench() as b:
        stream = b.generate("pause=3" + hold)
        messages = await take(stream, 3)
        b.kill(how)
        messages += [message async for message in stream]
        assert text(messages) == WHOLE
        assert ids(messages) == IDS
        assert [type(message) for message in messages].count(Started) == 1
        done = messages[-1]
        assert isinstance(done, Done)
        assert (done.generated_tokens, done.finish_reason) == (N, "length")
        assert [line["generated"] for line in b.log("submit")] == [[], IDS[:3]]
        assert [line["max_tokens"] for line in b.log("submit")] == [N, N]
        assert b.client.restarts == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_times_of_both_engines_and_of_the_pause_are_told(bench: Running, how: int) -> None:
    async with bench(settings=EngineSettings(heartbeat_timeout_s=1.0)) as b:
        loop = asyncio.get_running_loop()
        began = loop.time()
        stream = b.generate("pause=3")
        messages = await take(stream, 3)
        b.kill(how)
        messages += [message async for message in stream]
        elapsed_ms = (loop.time() - began) * 1000
        done = messages[-1]
        assert isinstance(done, Done)
        total = done.queue_ms + done.prefill_ms + done.decode_ms
        assert min(done.queue_ms, done.prefill_ms, done.decode_ms) >= 0
        assert total == pytest.approx(elapsed_ms, rel=0.2)
        assert done.queue_ms > 0.5 * total, "the pause was spent waiting"


async def test_an_undisturbed_answer_keeps_the_engines_own_times(bench: Running) -> None:
    async with bench() as b:
        messages = await b.answer("", deadline_ms=60_000.0)
        assert messages[0] == Started(1, 7, 0, 1.0)
        assert messages[-1] == Done(1, "length", 7, 0, N, 1.0, 2.0, 3.0)
        (submitted,) = b.log("submit")
        assert submitted["deadline_ms"] == 60_000.0


async def test_what_was_queued_is_submitted_again(bench: Running) -> None:
    async with bench(settings=EngineSettings(max_sequences=2, max_queue=3)) as b:
        streams = [b.generate(f"{number} pause=2") for number in range(2)]
        heads = [await take(stream, 2) for stream in streams]
        queued = [asyncio.create_task(b.answer(f"{number}")) for number in range(2, 5)]
        await until(lambda: len(b.log("submit")) == 5)
        b.kill()
        for head, stream in zip(heads, streams, strict=True):
            assert text(head + [message async for message in stream]) == WHOLE
        assert [text(await task) for task in queued] == [WHOLE] * 3
        again = [(line["id"], len(line["generated"])) for line in b.log("submit")[5:]]
        assert again == [(1, 2), (2, 2), (3, 0), (4, 0), (5, 0)], "the oldest first, none refused for a full queue"


async def test_a_count_is_repeated(bench: Running) -> None:
    async with bench() as b:
        b.kill(signal.SIGSTOP)
        count = asyncio.create_task(b.client.count(["a b c"]))
        await asyncio.sleep(0)  # it is sent
        b.kill()
        assert await count == [3]


async def test_a_second_death_alone_ends_a_request_and_refuses_it_from_then_on(bench: Running) -> None:
    async with bench() as b:
        messages = []
        with pytest.raises(EngineDied, match="nothing else"):
            async for message in b.generate("die=3"):
                messages.append(message)  # noqa: PERF401
        assert text(messages) == "0 1 2 ", "what was said before stays said"
        assert len(b.log("die")) == 2
        for _ in range(2):
            with pytest.raises(Quarantined, match="change the prompt"):
                await b.answer("die=3", label="somebody else", deadline_ms=1000.0)
        assert len(b.log("submit")) == 2, "it does not reach the engine any more"
        assert text(await b.answer("hello")) == WHOLE


async def test_a_hang_is_a_death(bench: Running) -> None:
    settings = EngineSettings(max_sequences=4, heartbeat_timeout_s=1.0)
    async with bench(settings=settings) as b:
        beside = asyncio.create_task(b.answer("hello pause=4"))
        await until(lambda: b.log("submit"))
        with pytest.raises(EngineDied):
            await b.answer("hang=2")
        assert text(await beside) == WHOLE
        with pytest.raises(Quarantined):
            await b.answer("hang=2")


@pytest.mark.parametrize("poison", ["die=3", "die=0", "die=submit"])
async def test_only_the_deadly_one_among_many_is_refused(bench: Running, poison: str) -> None:
    async with bench() as b:
        prompts = [f"{number}" for number in range(7)]
        prompts.insert(2, poison)
        answers = await asyncio.gather(*map(b.answer, prompts), return_exceptions=True)
        assert isinstance(answers.pop(2), EngineDied)
        for answer in answers:
            assert isinstance(answer, list)
            assert (text(answer), ids(answer)) == (WHOLE, IDS)
        # What kills on arrival never started: those that had are blamed first.
        assert len(b.log("die")) <= (10 if poison == "die=submit" else 5)
        with pytest.raises(Quarantined):
            await b.answer(poison)
        assert text(await b.answer("0")) == WHOLE


async def test_a_count_that_kills_is_refused(bench: Running) -> None:
    async with bench() as b:
        with pytest.raises(EngineDied):
            await b.client.count(["die"])
        with pytest.raises(Quarantined):
            await b.client.count(["die"])
        assert await b.client.count(["live"]) == [1]


async def test_two_deaths_of_several_are_nobodys_fault_and_they_go_on_one_by_one(bench: Running) -> None:
    async with bench() as b:
        streams = [b.generate(f"{number} pause=2,4") for number in range(3)]
        heads = [await take(stream, 2) for stream in streams]
        b.kill()
        for head, stream in zip(heads, streams, strict=True):
            head += await take(stream, 2)
        b.kill()
        rests = [asyncio.create_task(take(stream, N)) for stream in streams]
        late = asyncio.create_task(b.answer("late"))
        for head, rest, stream in zip(heads, rests, streams, strict=True):
            head += await rest
            head += [message async for message in stream]
            assert (text(head), ids(head)) == (WHOLE, IDS)
        assert text(await late) == WHOLE
        lines = (b.folder / "log").read_text().splitlines()
        third = [json.loads(line)["event"] for line in lines if json.loads(line)["life"] == 3]
        assert third == ["start", *["submit", "done"] * 4], "each had the engine for itself"
        assert len(b.log("start")) == 3


async def test_one_that_was_answered_is_under_no_suspicion(bench: Running) -> None:
    async with bench() as b:
        for _ in range(3):
            b.kill(signal.SIGSTOP)
            answer = asyncio.create_task(b.answer("hello"))
            await asyncio.sleep(0)  # it is sent
            b.kill()
            assert text(await answer) == WHOLE
        assert b.client.restarts == 3


async def test_a_deadly_request_that_nobody_waits_for_is_remembered(bench: Running) -> None:
    async with bench(settings=EngineSettings(heartbeat_timeout_s=1.0)) as b:
        stream = b.generate("hang=1")
        await take(stream, 1)
        await until(lambda: b.log("hang"))
        await stream.aclose()
        await until(lambda: b.client.restarts == 1)
        with pytest.raises(EngineDied):
            await b.answer("hang=1")
        assert len(b.log("submit")) == 2


async def test_one_that_was_given_up_in_the_pause_is_not_resumed(bench: Running) -> None:
    async with bench("gate=2") as b:
        gone, stays = b.generate("gone pause=2"), b.generate("stays pause=2")
        await take(gone, 2)
        head = await take(stays, 2)
        b.kill()
        await until(lambda: b.client.state == "restarting")
        await gone.aclose()
        await b.open_gate()
        assert text(head + [message async for message in stays]) == WHOLE
        assert [line["id"] for line in b.log("submit")] == [1, 2, 2]


async def test_a_deadline_counts_from_the_first_submission(bench: Running) -> None:
    async with bench() as b:
        stream = b.generate("pause=2", deadline_ms=60_000.0)
        head = await take(stream, 2)
        b.kill()
        assert text(head + [message async for message in stream]) == WHOLE
        first, second = (line["deadline_ms"] for line in b.log("submit"))
        assert 0 < second < first == 60_000.0


async def test_a_deadline_that_passes_in_the_pause_ends_the_text(bench: Running) -> None:
    async with bench("gate=2") as b:
        stream = b.generate("pause=2", deadline_ms=500.0)
        queued = asyncio.create_task(b.answer("pause=0", deadline_ms=500.0))
        await take(stream, 2)
        await until(lambda: len(b.log("submit")) == 2)
        b.kill()
        (done,) = [message async for message in stream]
        assert isinstance(done, Done)
        assert (done.finish_reason, done.deadline_hit, done.generated_tokens) == ("length", True, 2)
        assert (done.prompt_tokens, done.cached_tokens) == (7, 0)
        with pytest.raises(Overloaded, match="deadline"):
            await queued
        await b.open_gate()
        await b.client.wait_ready(20.0)
        assert await b.client.count(["x"]) == [1]
        assert len(b.log("submit")) == 2


async def test_requests_wait_for_the_start(bench: Running) -> None:
    async with bench("gate=1", settings=EngineSettings(max_queue=2), wait=False) as b:
        waiting = [asyncio.create_task(b.answer("hello")) for _ in range(2)]
        count = asyncio.create_task(b.client.count(["a b"]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 requests are waiting"):
            await b.answer("one too many")
        assert b.client.state == "starting"
        await b.open_gate()
        for task in waiting:
            messages = await task
            assert text(messages) == WHOLE
            started, done = messages[0], messages[-1]
            assert isinstance(started, Started)
            assert isinstance(done, Done)
            assert started.queue_ms == done.queue_ms > 1.0
        assert await count == [2]


async def test_nobody_waits_longer_than_a_start_may_take(bench: Running) -> None:
    settings = EngineSettings(start_timeout_s=0.3)
    async with bench("gate=1", settings=settings, wait=False) as b:
        with pytest.raises(Unavailable, match=r"not ready within 0\.3 s"):
            await b.answer("hello")
        with pytest.raises(Overloaded, match="deadline"):
            await b.answer("hello", deadline_ms=10.0)
        with pytest.raises(Unavailable):
            await b.client.wait_ready(0.01)


@pytest.mark.parametrize("code", ["model_corrupt", "bad_setting"])
async def test_what_no_retry_mends_fails_at_once(bench: Running, code: str) -> None:
    async with bench(f"fails={code}:2") as b:
        stream = b.generate("pause=2")
        await take(stream, 2)
        b.kill()
        with pytest.raises(Unavailable, match="It can't start"):
            async for _ in stream:
                pass
        assert b.client.state == "failed"
        assert len(b.log("start")) == 2, "there were no further tries"
        for attempt in (b.answer("hello"), b.client.count(["x"]), b.client.wait_ready(60.0)):
            with pytest.raises(Unavailable, match="It can't start"):
                await attempt


async def test_a_stop_ends_those_that_wait_for_a_restart(bench: Running) -> None:
    async with bench("gate=2") as b:
        stream = b.generate("pause=2")
        await take(stream, 2)
        b.kill()
        await until(lambda: b.client.state == "restarting")
        await b.client.stop(grace_s=0.0)
        with pytest.raises(Unavailable, match="stopping"):
            async for _ in stream:
                pass
        with pytest.raises(Unavailable, match="stopping"):
            await b.answer("hello")


async def test_without_the_gpu_it_starts_on_the_cpu_and_says_so(bench: Running) -> None:
    async with bench("abort=auto", device="auto") as b:
        assert b.client.state == "ready"
        assert "CPU" in b.client.degraded
        assert "GGML_ASSERT(device)" in b.client.degraded, "the reason is told"
        b.kill()
        assert text(await b.answer("hello")) == WHOLE
        assert [line["device"] for line in b.log("start")] == ["auto", "cpu", "cpu"], "it keeps to what works"


async def test_as_it_was_told_to_run_it_is_not_degraded(bench: Running) -> None:
    async with bench(device="auto") as b:
        assert b.client.degraded == ""
        assert [line["device"] for line in b.log("start")] == ["auto"]


@pytest.mark.parametrize(
    ("code", "error", "devices"),
    [("model_corrupt", ModelCorrupt, ["auto", "cpu"]), ("bad_setting", BadSetting, ["auto"])],
)
async def test_the_cpu_helps_only_where_the_gpu_may_be_at_fault(
    tmp_path: Path, code: str, error: type[Exception], devices: list[str]
) -> None:
    b = Bench(tmp_path, f"fails={code}:1", "auto", SETTINGS)
    with pytest.raises(error, match="It can't start"):
        await b.client.start()
    assert b.client.state == "failed"
    assert b.client.degraded == ""
    assert [line["device"] for line in b.log("start")] == devices


async def test_the_end_that_was_held_back_is_sent_once(bench: Running) -> None:
    async with bench() as b:
        messages = await b.answer("hold=1 die=flush")
        assert (text(messages), ids(messages)) == (WHOLE, IDS)
        assert isinstance(messages[-1], Done)
        assert [(line["generated"], line["sent"]) for line in b.log("submit")] == [([], 0), (IDS, len(WHOLE))]
        assert len(b.log("die")) == 1


async def test_a_ready_engine_forgets_and_then_the_files_go(bench: Running) -> None:
    async with bench() as b:
        b.keep_files()
        await b.client.forget()
        assert b.log("forget") == [] and b.kept() == ["other", "pinned"], "there was nothing to forget"
        b.remove()
        assert b.kept() == ["note", "other", "pinned"]
        await b.client.forget()
        assert len(b.log("forget")) == 1 and b.kept() == ["pinned"]
        for _ in range(2):
            b.remove()
        await asyncio.gather(b.client.forget(), b.client.forget())
        assert b.kept() == ["pinned"] and not b.client.oblivion.owed


async def test_while_the_engine_is_down_the_files_go_and_the_next_one_is_told_first(bench: Running) -> None:
    async with bench("gate=2") as b:
        stream = b.generate("pause=2", memory=b.client.memory)
        await take(stream, 2)
        b.kill()
        await until(lambda: b.client.state == "restarting")
        b.keep_files()
        b.remove()
        await b.client.forget()
        assert b.kept() == ["note", "pinned"], "the note stays: the next engine may have read the files before"
        await b.open_gate()
        assert [message async for message in stream]
        await until(lambda: b.kept() == ["pinned"])
        lines = map(json.loads, (b.folder / "log").read_text().splitlines())
        told = [(line["event"], line.get("keep")) for line in lines if line["life"] == 2]
        assert told[:3] == [("start", None), ("forget", None), ("submit", False)]
        assert not b.client.oblivion.owed


async def test_an_engine_that_dies_when_told_to_forget_does_not_end_the_matter(bench: Running) -> None:
    async with bench("forget=2") as b:
        b.keep_files()
        b.remove()
        await b.client.forget()
        assert "other" not in b.kept()
        await until(lambda: len(b.log("forget")) == 2 and b.kept() == ["pinned"])
        assert not b.client.oblivion.owed


async def test_what_another_process_could_not_finish_is_done_at_the_start(bench: Running, tmp_path: Path) -> None:
    Oblivion(tmp_path / "prefixes").incur()  # and then it was killed
    async with bench() as b:
        b.keep_files()
        await until(lambda: b.kept() == ["pinned"])
        assert len(b.log("forget")) == 1


async def test_without_an_engine_the_files_are_all_there_is(tmp_path: Path) -> None:
    b = Bench(tmp_path, "", "cpu", SETTINGS)
    b.keep_files()
    b.remove()
    await b.client.forget()
    assert b.kept() == ["pinned"]


async def test_a_stop_leaves_nothing_to_be_forgotten(bench: Running) -> None:
    async with bench("gate=2") as b:
        b.kill()
        await until(lambda: b.client.state == "restarting")
        b.remove()
        await b.client.forget()
        b.keep_files()  # as one that dies slowly would
        await b.client.stop(grace_s=0.0)
        assert b.kept() == ["pinned"]


async def test_of_what_was_read_before_nothing_is_kept_after(bench: Running) -> None:
    async with bench() as b:
        before = b.client.memory
        b.remove()
        await b.client.forget()
        for memory in (None, before, b.client.memory):
            await b.answer("hello", memory=memory)
        assert [line["keep"] for line in b.log("submit")] == [True, False, True]


async def test_constraint_and_pinned_reach_every_engine(bench: Running) -> None:
    async with bench() as b:
        constraint = Constraint("choice", '["a"]')
        stream = b.generate("pause=2", constraint=constraint, pinned=1)
        await take(stream, 2)
        b.kill()
        assert [message async for message in stream]
        assert [(line["constraint"]["source"], line["pinned"]) for line in b.log("submit")] == [('["a"]', 1)] * 2
