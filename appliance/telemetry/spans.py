"""Owns spans: how long a piece of work took, within which other, with what attributes; and W3C trace context.

Must not know which spans exist, nor what becomes of those that have ended.

One measurement: a span reads the clock when it begins and when it ends, and stage times, histograms and exported
traces are all made of these two readings. A span is a small object and no OpenTelemetry SDK span: that costs seventeen
times as much, and a search has ten of them. What is exported becomes SDK spans in `otlp`, off the event loop.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

Attribute = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

_current: ContextVar[Span | None] = ContextVar("appliance_span", default=None)


class Trace:
    """What the spans of one request share.

    Attributes:
        id: 128 bits, never 0.
        remote_parent: the span of the caller, in another program; 0: none.
        wall_ns, start_ns: the same moment, in nanoseconds since 1970 and by the clock of spans.
        root: the first span; the trace is over when that ends, though spans may still come.
    """

    __slots__ = ("id", "remote_parent", "root", "start_ns", "wall_ns")

    def __init__(self, root: Span, trace_id: int, remote_parent: int) -> None:
        self.id = trace_id
        self.remote_parent = remote_parent
        self.root = root
        self.wall_ns = time.time_ns()
        self.start_ns = time.perf_counter_ns()


class Span:
    """A piece of work. As a context manager it is current for the block; else between `begin` and `end`.

    One that begins within no other begins a trace. What a block raises is noted by the name of its class alone: the
    text of an error may quote a document.

    Attributes:
        trace: None until it begins.
        parent: its parent's span id; 0: it has none in this program.
        error: the name of what ended it early; "": nothing did.
    """

    __slots__ = ("_token", "attributes", "end_ns", "error", "id", "name", "parent", "start_ns", "trace")

    def __init__(self, name: str, attributes: dict[str, Attribute] | None = None) -> None:
        self.name = name
        self.attributes = attributes if attributes is not None else {}
        self.id = random.getrandbits(64) or 1
        self.parent = 0
        self.start_ns = self.end_ns = 0
        self.trace: Trace | None = None
        self.error = ""
        self._token: Token[Span | None] | None = None

    def begin(self, within: Span | None = None, *, traceparent: str = "") -> Self:
        """Begin now; within `within`, else the current span, else as the first of a trace.

        Args:
            traceparent: of a first span, the header of that name; what is none is passed over.
        """
        parent = within or _current.get()
        if parent is not None and parent.trace is not None:
            self.trace, self.parent = parent.trace, parent.id
        else:
            trace_id, remote = parse_traceparent(traceparent) if traceparent else (0, 0)
            self.trace = Trace(self, trace_id or random.getrandbits(128) or 1, remote)
        self.start_ns = time.perf_counter_ns()
        return self

    def end(self, at_ns: int = 0) -> None:
        """End now, or at a moment that is known from elsewhere."""
        self.end_ns = at_ns or time.perf_counter_ns()
        if _sink is not None:
            _sink(self)

    def set(self, name: str, value: Attribute) -> None:
        """Add an attribute."""
        self.attributes[name] = value

    @property
    def ms(self) -> float:
        """Milliseconds that it took, or takes so far."""
        return ((self.end_ns or time.perf_counter_ns()) - self.start_ns) / 1e6

    def __enter__(self) -> Self:
        if not self.start_ns:
            self.begin()
        self._token = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        if kind is not None and not self.error:
            self.error = kind.__name__
        self.end()


Sink = Callable[[Span], None]
# The only state of the module, as OpenTelemetry's provider is of its own: set by the program that serves.
_sink: Sink | None = None  # of ended spans; None: they are measured and forgotten
_texts = False  # whether spans may hold what people asked


def send_spans_to(sink: Sink | None, *, texts: bool = False) -> None:
    """Have every span that ends handed to `sink`, which must be quick, in whatever thread it ends; None: to nobody.

    Args:
        texts: spans may hold texts of questions; see `note_text`.
    """
    global _sink, _texts
    _sink, _texts = sink, texts


def past(
    name: str,
    ms: float,
    attributes: dict[str, Attribute] | None = None,
    *,
    within: Span | None = None,
    start_ns: int = 0,
) -> Span:
    """Work that another process measured, and told: a span of `ms` milliseconds from `start_ns` on, else until now.

    What followed it began at its `end_ns`.
    """
    done = Span(name, attributes).begin(within)
    took_ns = round(ms * 1e6)
    done.start_ns = start_ns or done.start_ns - took_ns
    done.end(done.start_ns + took_ns)
    return done


def span(name: str, **attributes: Attribute) -> Span:
    """A span for a `with` block."""
    return Span(name, attributes)


def current() -> Span | None:
    """The span that this context is in."""
    return _current.get()


@contextmanager
def inside(outer: Span) -> Iterator[None]:
    """Let what begins in the block be within `outer`, which was begun elsewhere and goes on after it."""
    token = _current.set(outer)
    try:
        yield
    finally:
        _current.reset(token)


def note(attributes: dict[str, Attribute]) -> None:
    """Add attributes to the first span of the trace that this context is in; without one, nothing."""
    inside = _current.get()
    if inside is not None and inside.trace is not None:
        inside.trace.root.attributes.update(attributes)


def note_text(name: str, text: str) -> None:
    """As `note`, for what people wrote; without the setting that allows it, nothing."""
    if _texts:
        note({name: text})


def parse_traceparent(header: str) -> tuple[int, int]:
    """Trace id and parent's span id of a W3C `traceparent`; zeros for what is none."""
    found = _TRACEPARENT.fullmatch(header.strip())
    # Version 00 has four fields; of later ones more may follow.
    if found is None or (header.strip().startswith("00") and found[3]):
        return 0, 0
    trace_id, parent = int(found[1], 16), int(found[2], 16)
    return (trace_id, parent) if trace_id and parent else (0, 0)


def traceparent() -> str:
    """The `traceparent` that whoever is called from this context gets; "": there is no trace."""
    inside = _current.get()
    if inside is None or inside.trace is None:
        return ""
    return f"00-{inside.trace.id:032x}-{inside.id:016x}-01"
