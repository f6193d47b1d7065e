"""Owns the proof of the engine as a process: started, asked, cancelled, killed, hung, orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from appliance.config import EngineSettings
from appliance.engine.chat import render_chat
from appliance.engine.client import EngineClient
from appliance.engine.process import EXIT_BAD_FRAME, engine_arguments, engine_command
from appliance.engine.protocol import (
    Constraint,
    Done,
    EngineConfig,
    FrameBuffer,
    Ready,
    Sampling,
    Segment,
    Started,
    Token,
    decode_from_engine,
)
from appliance.errors import BadRequest, BadSetting, ModelCorrupt, PromptTooLong, Unavailable
from appliance.packs import ResolvedPack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = EngineSettings(kv_tokens=4096, max_sequences=4, batch_tokens=256, threads=1)


@pytest.fixture(scope="module")
def spec(pocket: ResolvedPack) -> EngineConfig:
    return EngineConfig(str(pocket.generator.path), pocket.generator.name, settings=SETTINGS, device="cpu")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(spec: EngineConfig) -> AsyncIterator[EngineClient]:
    """An engine for tests that leave it as they found it."""
    async with running(spec) as client:
        yield client


@contextlib.asynccontextmanager
async def running(spec: EngineConfig) -> AsyncGenerator[EngineClient]:
    client = EngineClient(spec)
    await client.start()
    try:
        yield client
    finally:
        await client.stop(grace_s=0.1)
        assert client.state == "stopped"


def prompt(client: EngineClient, question: str) -> tuple[Segment, ...]:
    assert client.ready is not None
    turns = [("system", "Be brief."), ("user", question)]
    return render_chat(client.ready.chat_template, turns, bos=client.ready.bos, eos=client.ready.eos)


def stream(
    client: EngineClient, question: str, max_tokens: int = 8, stop: tuple[str, ...] = ()
) -> AsyncGenerator[Started | Token | Done]:
    return client.generate(prompt=prompt(client, question), max_tokens=max_tokens, stop=stop)


async def ask(client: EngineClient, question: str, max_tokens: int = 8) -> str:
    pieces = [message.text async for message in stream(client, question, max_tokens) if isinstance(message, Token)]
    return "".join(pieces)


async def until(condition: object, timeout_s: float = 15.0) -> None:
    """Wait for a condition that another process brings about."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def at_rest(client: EngineClient) -> bool:
    """Nothing runs, and no cell is held but by what the cache keeps."""
    beat = client.heartbeat
    return beat is not None and beat.running == 0 and beat.kv_used_tokens == beat.kv_cached_tokens


async def test_ready_tells_the_model(shared: EngineClient) -> None:
    ready = shared.ready
    assert ready is not None and shared.state == "ready"
    assert "im_start" in ready.chat_template
    assert (ready.context_tokens, ready.max_sequences, ready.device) == (4096, 4, "cpu")
    assert ready.eos == "<|im_end|>"


async def test_an_answer_streams_from_started_to_done(shared: EngineClient) -> None:
    messages = [message async for message in stream(shared, "Count to ten.")]
    assert isinstance(messages[0], Started)
    assert isinstance(messages[-1], Done)
    assert all(isinstance(message, Token) for message in messages[1:-1])
    tokens = [message for message in messages if isinstance(message, Token)]
    # The end mark counts as a token and has no text.
    assert sum(len(token.ids) for token in tokens) <= messages[-1].generated_tokens <= 8
    assert "".join(token.text for token in tokens)


async def test_many_at_the_same_instant_are_all_answered(shared: EngineClient) -> None:
    answers = await asyncio.gather(*(ask(shared, f"What is {number} + 1?", 3) for number in range(32)))
    assert all(answers)


async def test_counts_come_while_answers_stream(shared: EngineClient) -> None:
    answer = asyncio.create_task(ask(shared, "Explain gravity.", 20))
    assert await shared.count(["", "hello world"]) == [0, 2]
    assert await answer


async def test_faults_of_a_request_are_told_as_such(shared: EngineClient) -> None:
    with pytest.raises(PromptTooLong, match="4096"):
        await ask(shared, "word " * 5000, 10)
    with pytest.raises(BadRequest):
        await ask(shared, "x", 0)
    with pytest.raises(BadRequest, match="stop"):
        async for _ in stream(shared, "x", stop=("",)):
            pass
    assert await ask(shared, "Hi", 2)


async def test_a_closed_iterator_ends_the_generation(shared: EngineClient) -> None:
    answer = stream(shared, "Write a poem about the sea.", 2000)
    async for message in answer:
        if isinstance(message, Token):
            break
    await answer.aclose()
    await until(lambda: at_rest(shared), 5)


async def test_a_cancelled_task_ends_the_generation_in_prefill(shared: EngineClient) -> None:
    task = asyncio.create_task(ask(shared, "word " * 3000, 100))
    await until(lambda: shared.heartbeat and shared.heartbeat.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: at_rest(shared), 5)


POEM = "Write a poem about the sea."


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
async def test_killed_while_it_streams_it_goes_on_with_the_same_text(spec: EngineConfig, how: int) -> None:
    async with running(spec) as client:
        undisturbed = await ask(client, POEM, 24)
        first = client.pid
        assert first is not None
        messages: list[Started | Token | Done] = []
        async for message in stream(client, POEM, 24):
            messages.append(message)
            if client.pid == first and sum(isinstance(message, Token) for message in messages) == 6:
                os.kill(first, how)
                died = time.monotonic()
                await until(lambda: client.state == "restarting")
                assert await client.count(["hello"]) == [1], "a count waits for the next engine"
                assert time.monotonic() - died < 5.0
        assert "".join(message.text for message in messages if isinstance(message, Token)) == undisturbed
        assert sum(isinstance(message, Started) for message in messages) == 1
        done = messages[-1]
        assert isinstance(done, Done)
        made = sum(len(message.ids) for message in messages if isinstance(message, Token))
        assert made <= done.generated_tokens <= 24
        assert client.restarts == 1


async def test_killed_in_the_middle_of_constrained_output_it_stays_in_its_constraint(spec: EngineConfig) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "sizes": {"type": "array", "items": {"enum": [1]}, "minItems": 4, "maxItems": 4},
        },
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }
    async with running(spec) as client:

        async def fill(kill_after: int) -> str:
            constraint = Constraint("json_schema", json.dumps(schema))
            source = client.generate(prompt=prompt(client, "Describe a ship."), max_tokens=80, constraint=constraint)
            pieces: list[str] = []
            async for message in source:
                if isinstance(message, Token):
                    pieces.append(message.text)
                    if len(pieces) == kill_after and client.pid is not None:
                        os.kill(client.pid, signal.SIGKILL)
            return "".join(pieces)

        undisturbed = await fill(0)
        assert json.loads(undisturbed)["sizes"] == [1, 1, 1, 1]
        assert await fill(4) == undisturbed
        assert client.restarts == 1


async def test_a_hung_engine_is_killed_and_its_answers_go_on(spec: EngineConfig) -> None:
    settings = msgspec.structs.replace(SETTINGS, heartbeat_timeout_s=3.0)
    async with running(msgspec.structs.replace(spec, settings=settings)) as client:
        undisturbed = await ask(client, POEM, 24)
        hung = client.pid
        assert hung is not None
        pieces: list[str] = []
        async for message in stream(client, POEM, 24):
            if isinstance(message, Token):
                pieces.append(message.text)
                if len(pieces) == 6:
                    os.kill(hung, signal.SIGSTOP)
        assert "".join(pieces) == undisturbed
        assert client.restarts == 1
        assert not alive(hung)


async def test_stopping_ends_the_process_and_what_still_streams(spec: EngineConfig) -> None:
    async with running(spec) as client:
        pid = client.pid
        assert pid is not None
        answer = asyncio.create_task(ask(client, "Write a poem about the sea.", 2000))
        await until(lambda: client.heartbeat and client.heartbeat.running == 1)
        await client.stop(grace_s=0.1)
        with pytest.raises(Unavailable, match="stopping"):
            await answer
        assert not alive(pid)
        with pytest.raises(Unavailable):
            await client.count(["x"])


async def test_a_stop_lets_a_short_answer_finish(spec: EngineConfig) -> None:
    async with running(spec) as client:
        answer = asyncio.create_task(ask(client, "Count to ten.", 8))
        await asyncio.sleep(0)
        await client.stop(grace_s=30.0)
        assert await answer


async def test_a_file_that_is_no_model_is_told_as_such(spec: EngineConfig, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" + b"\x00" * 100)
    client = EngineClient(msgspec.structs.replace(spec, model_path=str(wrong)))
    with pytest.raises(ModelCorrupt, match=r"wrong\.gguf"):
        await client.start()
    assert client.state == "failed"
    with pytest.raises(Unavailable):
        await client.count(["x"])


async def test_one_that_never_starts_is_given_up_and_says_why(spec: EngineConfig, tmp_path: Path) -> None:
    client = EngineClient(msgspec.structs.replace(spec, model_path=str(tmp_path / "gone.gguf")))
    await client.start(wait=False)
    with pytest.raises(Unavailable, match=r"gone\.gguf"):
        await client.count(["x"])
    assert client.state == "failed"
    await client.stop(grace_s=0.1)


async def test_a_gpu_that_is_demanded_and_not_there_is_told(spec: EngineConfig) -> None:
    client = EngineClient(msgspec.structs.replace(spec, device="abacus"))
    with pytest.raises(BadSetting, match="abacus"):
        await client.start()


async def test_a_start_that_takes_too_long_is_given_up(spec: EngineConfig) -> None:
    settings = msgspec.structs.replace(SETTINGS, start_timeout_s=0.01)
    client = EngineClient(msgspec.structs.replace(spec, settings=settings))
    with pytest.raises(Unavailable, match=r"0\.01 s"):
        await client.start()


async def test_started_in_the_background_it_becomes_ready(spec: EngineConfig) -> None:
    client = EngineClient(spec)
    await client.start(wait=False)
    assert await client.count(["hello"]) == [1], "it waits"
    assert client.state == "ready"
    await client.stop(grace_s=0.1)


async def test_the_seed_reaches_the_sampler(shared: EngineClient) -> None:
    async def draw(seed: int) -> str:
        sampling = Sampling(temperature=1.0, seed=seed)
        source = shared.generate(prompt=prompt(shared, "Write a poem."), max_tokens=12, sampling=sampling)
        return "".join([message.text async for message in source if isinstance(message, Token)])

    assert await draw(1) == await draw(1) != await draw(2)


@pytest.fixture
def bare(spec: EngineConfig) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """An engine process and the raw socket to it; `Ready` was received."""
    ours, theirs = socket.socketpair()
    arguments = [*engine_command(), *engine_arguments(theirs.fileno(), spec)]
    with ours, subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        ours.settimeout(30)
        (body, *_) = FrameBuffer().feed(ours.recv(1 << 16))
        assert isinstance(decode_from_engine(body), Ready)
        yield process, ours
        process.kill()


async def test_garbage_on_the_socket_ends_the_process_cleanly(
    bare: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    process, sock = bare
    sock.sendall(b"\x00\x00\x00\x05hello")
    assert process.wait(10) == EXIT_BAD_FRAME
    assert process.stderr is not None
    log = process.stderr.read().decode()
    assert "what is no message" in log
    assert "Traceback" not in log


async def test_the_process_ends_with_its_socket(bare: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, sock = bare
    sock.close()
    assert process.wait(10) == 0


async def test_control_c_is_left_to_the_parent(bare: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, sock = bare
    process.send_signal(signal.SIGINT)
    assert sock.recv(1 << 16), "it still sends heartbeats"
    assert sock.recv(1 << 16)
    assert process.poll() is None


async def test_the_engine_does_not_outlive_its_parent(spec: EngineConfig) -> None:
    program = textwrap.dedent("""
        import asyncio, os, sys, msgspec
        from appliance.engine.client import EngineClient
        from appliance.engine.protocol import EngineConfig
        async def main():
            client = EngineClient(msgspec.json.decode(sys.argv[1], type=EngineConfig))
            await client.start()
            print(client.pid, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """)
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, msgspec.json.encode(spec).decode(), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    engine = int(await parent.stdout.readline())
    assert alive(engine)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(engine), 10)
