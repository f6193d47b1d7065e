"""Spans: what is within what, one measurement for times and traces, and trace context on the wire."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import telemetry
from appliance.telemetry import Span, StageTimes
from appliance.telemetry.spans import parse_traceparent, send_spans_to

TREES = st.recursive(st.just(()), lambda below: st.lists(below, max_size=3).map(tuple), max_leaves=12)


def walk(tree: tuple[object, ...], depth: int = 0) -> None:
    with telemetry.span("work", depth=depth):
        for below in tree:
            assert isinstance(below, tuple)
            walk(below, depth + 1)


@given(TREES)
def test_spans_nest_as_their_blocks_do(tree: tuple[object, ...]) -> None:
    ended: list[Span] = []
    send_spans_to(ended.append)
    try:
        walk(tree)
    finally:
        send_spans_to(None)
    root = ended[-1]
    by_id = {span.id: span for span in ended}
    assert {span.trace for span in ended} == {root.trace}
    assert root.parent == 0
    for span in ended[:-1]:
        parent = by_id[span.parent]
        assert span.attributes["depth"] == int(parent.attributes["depth"]) + 1  # type: ignore[arg-type]
        assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
    assert telemetry.current() is None


def test_a_time_that_is_told_is_the_time_of_its_spans(spans: list[Span]) -> None:
    times = StageTimes()
    for _ in range(3):
        with times.stage("recall.dense"):
            pass
    told = times.as_dict()
    assert told["recall_dense"] == round(sum(span.ms for span in spans), 2)
    assert told["total"] >= told["recall_dense"]


def test_what_another_process_measured_follows_on(spans: list[Span]) -> None:
    with telemetry.span("whole") as whole:
        first = telemetry.past("queue", 1.5, within=whole, start_ns=whole.start_ns)
        telemetry.past("prefill", 2.5, {"tokens.cached": 3}, within=whole, start_ns=first.end_ns)
    queue, prefill, _ = spans
    assert (queue.ms, prefill.ms) == (1.5, 2.5)
    assert (queue.start_ns, prefill.start_ns) == (whole.start_ns, queue.end_ns)
    assert queue.parent == prefill.parent == whole.id


def test_an_error_is_noted_by_its_name_and_never_by_its_text(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match="secret"), telemetry.span("work"):
        raise ValueError("the secret of the document")
    assert spans[0].error == "ValueError"
    assert "secret" not in repr(spans[0].attributes)


def test_notes_go_to_the_first_span_and_texts_only_where_they_may(spans: list[Span]) -> None:
    telemetry.note({"lost": True})
    with telemetry.span("whole") as whole, telemetry.span("part"):
        telemetry.note({"seen": 1})
        telemetry.note_text("question", "why?")
    assert whole.attributes == {"seen": 1}
    send_spans_to(spans.append, texts=True)
    with telemetry.span("whole") as whole:
        telemetry.note_text("question", "why?")
    assert whole.attributes == {"question": "why?"}


async def test_threads_and_tasks_of_a_request_are_within_it(spans: list[Span]) -> None:
    def work() -> None:
        with telemetry.span("thread"):
            pass

    async def task() -> None:
        with telemetry.span("task"):
            await asyncio.sleep(0)

    with telemetry.span("whole") as whole:
        await asyncio.gather(task(), asyncio.to_thread(work))
        context = contextvars.copy_context()
    late = threading.Thread(target=context.run, args=(work,))
    late.start()
    late.join()
    assert sorted(span.name for span in spans if span.parent == whole.id) == ["task", "thread", "thread"]
    assert {span.trace for span in spans} == {whole.trace}


def test_a_span_goes_on_in_another_thread(spans: list[Span]) -> None:
    whole = telemetry.span("ingest").begin()

    def work() -> None:
        with telemetry.inside(whole), telemetry.span("embed"):
            pass
        assert telemetry.current() is None

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    whole.end()
    assert [(span.name, span.trace) for span in spans] == [("embed", whole.trace), ("ingest", whole.trace)]


GOOD = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (GOOD, (int("ab" * 16, 16), int("cd" * 8, 16))),
        (f" {GOOD} ", (int("ab" * 16, 16), int("cd" * 8, 16))),
        (GOOD.replace("00-", "01-", 1) + "-more", (int("ab" * 16, 16), int("cd" * 8, 16))),
        (GOOD + "-more", (0, 0)),
        (GOOD.replace("00-", "ff-", 1), (0, 0)),
        (GOOD.upper(), (0, 0)),
        (f"00-{'0' * 32}-{'cd' * 8}-01", (0, 0)),
        (f"00-{'ab' * 16}-{'0' * 16}-01", (0, 0)),
        ("", (0, 0)),
        ("rubbish", (0, 0)),
    ],
)
def test_trace_context_is_read_as_w3c_says(header: str, found: tuple[int, int]) -> None:
    assert parse_traceparent(header) == found


@given(st.text(max_size=80))
def test_no_header_breaks_anything(header: str) -> None:
    trace_id, parent = parse_traceparent(header)
    assert bool(trace_id) == bool(parent)


def test_trace_context_is_passed_on() -> None:
    assert telemetry.traceparent() == ""
    with Span("whole").begin(traceparent=GOOD) as whole:
        assert telemetry.traceparent() == f"00-{'ab' * 16}-{whole.id:016x}-01"
        assert parse_traceparent(telemetry.traceparent()) == (int("ab" * 16, 16), whole.id)
