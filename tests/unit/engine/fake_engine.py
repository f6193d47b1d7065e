"""An engine process whose answers and deaths are scripted. Run as a program; speaks the real protocol.

Must not know the tests. Token k of every answer has the id 100 + k and the text "k ". What it does besides is
said by words of the prompt, as `key=value`:

- `die=3`: it kills itself instead of choosing token 3; `die=submit`: when the request comes; `die=flush`: when it has
  sent the end of the text that it held, before it says that this was the end.
- `hang=3`: it stops there instead, without a sign of life.
- `pause=2,5`: the first process that the folder has seen chooses no more than 2 tokens, the second no more than 5.
- `hold=1`: the text of a token is sent with the next one.

and, for the start, by words of the model's name: `abort=auto` dies where the device is auto; `fails=bad_setting:2`
says so from the second process on; `gate=2` waits from the second on until somebody writes to the pipe `gate`;
`forget=2`: processes before the second kill themselves when they are told to forget.
The model's path is a folder; what happens is appended to `log` in it, one JSON object in a line.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from appliance.engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Count,
    Counted,
    Done,
    EngineConfig,
    Failed,
    Forget,
    Forgotten,
    FrameBuffer,
    FromEngine,
    Heartbeat,
    Ready,
    Shutdown,
    Started,
    Submit,
    ToEngine,
    Token,
    decode_to_engine,
    encode,
)

BEAT_S = 0.05


def words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


class Answer:
    def __init__(self, request: Submit, life: int) -> None:
        self.request = request
        self.script = words("".join(segment.text for segment in request.prompt))
        self.ids = list(request.generated)
        self.started = False
        pauses = [int(value) for value in self.script.get("pause", "").split(",") if value]
        self.limit = pauses[life - 1] if life <= len(pauses) else request.max_tokens
        self.flushed = request.sent > len(text(0, self.said()))

    def said(self) -> int:
        """Tokens whose text was sent."""
        return max(0, len(self.ids) - 1) if "hold" in self.script else len(self.ids)


class FakeEngine:
    def __init__(self, fd: int, config: EngineConfig) -> None:
        self.config = config
        self.folder = Path(config.model_path)
        self.most = config.settings.max_sequences or 8  # 0: as it likes
        self.sock = socket.socket(fileno=fd)
        self.frames = FrameBuffer()
        self.answers: dict[int, Answer] = {}
        log = self.folder / "log"
        self.life = 1 + (sum('"start"' in line for line in log.read_text().splitlines()) if log.exists() else 0)
        self.log("start", device=config.device)

    def log(self, event: str, **details: object) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(json.dumps({"event": event, "life": self.life, **details}) + "\n")

    def send(self, messages: Iterable[FromEngine]) -> None:
        self.sock.sendall(b"".join(map(encode, messages)))

    def run(self) -> int:
        script = words(self.config.model_name)
        if script.get("abort") == self.config.device:
            print("GGML_ASSERT(device) failed", file=sys.stderr, flush=True)  # noqa: T201
            os.kill(os.getpid(), signal.SIGABRT)
        code, _, life = script.get("fails", "").partition(":")
        if code and self.life >= int(life):
            self.send([Failed(0, code, "It can't start.")])
            return 3
        if "gate" in script and self.life >= int(script["gate"]):
            (self.folder / "gate").read_bytes()
        self.send([Ready(PROTOCOL_VERSION, "fake", 4096, self.most, "", "", "", "fake", 0.0)])
        self.beat()
        while True:
            busy = any(answer.started and len(answer.ids) < answer.limit for answer in self.answers.values())
            if select.select([self.sock], [], [], 0.0 if busy else BEAT_S)[0]:
                data = self.sock.recv(1 << 16)
                if not data:
                    return 0
                for body in self.frames.feed(data):
                    message = decode_to_engine(body)
                    if isinstance(message, Shutdown):
                        return 0
                    self.handle(message)
            else:
                self.beat()
            self.step()

    def beat(self) -> None:
        self.send([Heartbeat(sum(answer.started for answer in self.answers.values()), 0, 0, 0)])

    def handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.log("submit", **msgspec.to_builtins(message))
                answer = self.answers[message.id] = Answer(message, self.life)
                if answer.script.get("die") == "submit":
                    self.die()
            case Cancel():
                self.log("cancel", id=message.id)
                if message.id in self.answers:
                    self.finish(self.answers[message.id], "cancelled")
            case Count():
                self.log("count", id=message.id)
                if "die" in message.texts:
                    self.die()
                self.send([Counted(message.id, tuple(len(text.split()) for text in message.texts))])

            case Forget():
                self.log("forget", id=message.id)
                if self.life < int(words(self.config.model_name).get("forget", "0")):
                    self.die()
                self.send([Forgotten(message.id)])

    def step(self) -> None:
        for answer in list(self.answers.values()):
            running = sum(each.started for each in self.answers.values())
            if not answer.started and running < self.most:
                answer.started = True
                self.send([Started(answer.request.id, 7, 0, 1.0)])
            if answer.started:
                self.advance(answer)

    def advance(self, answer: Answer) -> None:
        if len(answer.ids) < answer.limit:
            at = len(answer.ids)
            if answer.script.get("die") == str(at):
                self.die()
            if answer.script.get("hang") == str(at):
                self.log("hang")
                time.sleep(3600)
            before = answer.said()
            answer.ids.append(100 + at)
            self.send([Token(answer.request.id, text(before, answer.said()), (100 + at,))])
        if len(answer.ids) >= answer.request.max_tokens:
            rest = text(answer.said(), len(answer.ids))
            if rest and not answer.flushed:
                self.send([Token(answer.request.id, rest, ())])
                if answer.script.get("die") == "flush":
                    self.die()
            self.finish(answer, "length")

    def finish(self, answer: Answer, reason: str) -> None:
        del self.answers[answer.request.id]
        self.log("done", id=answer.request.id)
        done = {"id": answer.request.id, "finish_reason": reason, "prompt_tokens": 7, "cached_tokens": 0}
        times = {"generated_tokens": len(answer.ids), "queue_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 3.0}
        self.send([msgspec.convert({"type": "Done", **done, **times}, Done)])

    def die(self) -> None:
        self.log("die")
        os.kill(os.getpid(), signal.SIGKILL)


def text(begin: int, end: int) -> str:
    return "".join(f"{number} " for number in range(begin, end))


if __name__ == "__main__":
    sys.exit(FakeEngine(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=EngineConfig)).run())
