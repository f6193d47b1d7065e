"""Owns the messages between the API process and the engine process, and their framing.

Must not know what either side does with them. A frame is a 4-byte big-endian length and a msgpack body;
the first message from the engine is `Ready`, which names the protocol version, or `Failed` with id 0,
which says why the engine cannot start. A request is answered by `Started`, any number of `Token`, and
one `Done`; or by one `Failed` at any point; `Count` by `Counted`, `Forget` by `Forgotten`. Codes of `Failed`:
`context_length_exceeded`, `invalid_request`, `overloaded`, `deadline_exceeded`, `engine_error`; at start also
`model_corrupt`, `bad_setting` and `unavailable`.

A deadline that passes before the first token is `Failed(code="deadline_exceeded")`; one that passes later
ends the text where it is, with `Done(finish_reason="length", deadline_hit=True)`.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from appliance.config import EngineSettings

PROTOCOL_VERSION = 4
MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")

Priority = Literal["interactive", "normal", "batch"]
FinishReason = Literal["stop", "length", "cancelled"]


class EngineConfig(msgspec.Struct, frozen=True):
    """What an engine process is started with: a verified GGUF file, and how to run it."""

    model_path: str
    model_name: str  # what the model is called in messages
    model_context_tokens: int = 0  # 0: what the file says it was trained for
    chat_template: str | None = None  # None: the one in the file
    device: str = "auto"  # "auto", "cpu" or "gpu"
    settings: EngineSettings = EngineSettings()
    model_sha256: str = ""
    cache_dir: str = ""  # for prefixes that survive a restart; "": none do


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a prompt. Only template text may contain control tokens; content never becomes one."""

    text: str
    template: bool = False


class Constraint(msgspec.Struct, frozen=True):
    """What the text must be; enforced token by token.

    `source`: the schema as JSON text for `json_schema`, "" for `json_object`, the pattern for `regex`, a JSON list of
    strings for `choice`, `tools.Calling` as JSON for `tools`.
    """

    kind: Literal["json_schema", "json_object", "regex", "choice", "tools"]
    source: str = ""


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen; the names and meanings are OpenAI's and llama.cpp's."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    dry_multiplier: float = 0.0  # 0: DRY is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: all that is known
    seed: int | None = None  # None: drawn by the engine
    logprobs: int | None = None  # None: none; n: of each token, and of the n most likely ones


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Generate for request `id`. `label` isolates callers from each other's prefix cache.

    `generated` are tokens of the answer that another engine process made before it died: they are computed, not
    sent again, and count for `max_tokens`; `sent` says how many characters its reader has of them. `pinned` says how
    many segments at the front are worth keeping for good: the instructions that many requests begin with. `keep`
    False: of the rest, nothing may stay in the prefix cache.
    """

    id: int
    prompt: tuple[Segment, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    priority: Priority = "interactive"
    deadline_ms: float | None = None  # from the moment of submission
    label: str = ""
    constraint: Constraint | None = None
    generated: tuple[int, ...] = ()
    sent: int = 0
    pinned: int = 0
    keep: bool = True


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop request `id` within one step; answered by `Done(finish_reason="cancelled")`."""

    id: int


class Count(msgspec.Struct, frozen=True, tag=True):
    """Count the tokens of texts (as content); answered by `Counted`."""

    id: int
    texts: tuple[str, ...]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Give up all kept prefixes but pinned ones, of all callers: documents that they quote are gone.

    Requests that were submitted before are answered to their end, but nothing of them is kept. Answered by
    `Forgotten`. Files are the other side's to remove, after that.
    """

    id: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the process after the current step."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warm."""

    protocol: int
    model: str
    context_tokens: int  # the most that prompt and answer of one request may hold
    max_sequences: int
    chat_template: str
    bos: str
    eos: str
    build: str
    load_ms: float
    device: str = "cpu"


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent at least every second, between steps: the engine's loop turns."""

    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    kv_cached_tokens: int = 0  # of the used ones: kept for the next request, given up when room is needed
    host_cache_bytes: int = 0  # KV states kept outside the context
    kv_pinned_tokens: int = 0
    oldest_wait_ms: float = 0.0
    # Since the start of the process:
    kv_evicted_tokens: int = 0  # left the context
    kv_restored_tokens: int = 0  # came back
    steps: int = 0
    step_sequences: int = 0  # in all steps together
    step_ms: float = 0.0
    decode_ms: float = 0.0  # of these, inside llama.cpp
    preempted: int = 0
    prompt_tokens: int = 0  # of the requests that started, and of them …
    cached_tokens: int = 0  # … found computed
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Started(msgspec.Struct, frozen=True, tag=True):
    """Request `id` has left the queue; of its `prompt_tokens`, `cached_tokens` are reused."""

    id: int
    prompt_tokens: int
    cached_tokens: int
    queue_ms: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token, its bytes and the natural logarithm of its probability before any sampling parameter."""

    token: int
    data: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()  # the most likely ones: id, bytes, logprob


class Token(msgspec.Struct, frozen=True, tag=True):
    """More text of request `id`: whole characters only, stop strings held back.

    `ids` are the tokens chosen since the last message of this request; what they say may be held back in part.
    """

    id: int
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()  # of `ids`, where asked for


class Done(msgspec.Struct, frozen=True, tag=True):
    """Request `id` ended. All text was sent before in `Token` messages.

    `generated_tokens` are the tokens of the answer; the end-of-text token is not counted.
    """

    id: int
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    deadline_hit: bool = False
    drafted_tokens: int = 0  # guessed ahead from the text so far, and of them …
    accepted_tokens: int = 0  # … right


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Request `id` cannot be answered. `code` is an error code such as `context_length_exceeded`.

    `param`: what of the request is at fault, by OpenAI's name for it; "": nothing can be named.
    """

    id: int
    code: str
    message: str
    param: str = ""


class Counted(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Count`: tokens of each text."""

    id: int
    tokens: tuple[int, ...]


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Forget`: nothing of it is in the context or in memory, and nothing of it will be written."""

    id: int


ToEngine = Submit | Cancel | Count | Forget | Shutdown
FromEngine = Ready | Heartbeat | Started | Token | Done | Failed | Counted | Forgotten

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


class FrameError(ValueError):
    """The bytes are not a frame of this protocol; the connection cannot be used further."""


def encode(message: ToEngine | FromEngine) -> bytes:
    """One frame: length and body."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the bodies that are now whole.

        Raises:
            FrameError: a length is over the limit.
        """
        self._bytes += data
        bodies: list[bytes] = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            bodies.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return bodies


def decode_to_engine(body: bytes) -> ToEngine:
    """The message in a frame body, on the engine's side. Raises `FrameError` when it is none."""
    try:
        return _to_engine.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def decode_from_engine(body: bytes) -> FromEngine:
    """The message in a frame body, on the API's side. Raises `FrameError` when it is none."""
    try:
        return _from_engine.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
