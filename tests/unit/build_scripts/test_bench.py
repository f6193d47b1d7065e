"""The benchmark's pure parts: the same requests each time, figures, tables, and what is read from a stream."""

from __future__ import annotations

import asyncio
import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.protocol import Segment
from appliance.errors import ApplianceError, Unavailable
from build_scripts.bench._lib.conditions import Conditions
from build_scripts.bench._lib.figures import percentile, ratios, spread
from build_scripts.bench._lib.record import put_section
from build_scripts.bench._lib.tables import number
from build_scripts.bench.engine_bench import report, results
from build_scripts.bench.engine_bench.__main__ import keys_of, main
from build_scripts.bench.engine_bench.answers import Answer, gaps_s
from build_scripts.bench.engine_bench.drive import Run, measure
from build_scripts.bench.engine_bench.events import EventReader
from build_scripts.bench.engine_bench.measure import Metrics, metrics
from build_scripts.bench.engine_bench.overhead import Overhead
from build_scripts.bench.engine_bench.plans import KEYS, OVERHEAD, PLANS, Goal, tuning
from build_scripts.bench.engine_bench.sizes import SCALES
from build_scripts.bench.engine_bench.texts import WORDS_PER_TOKEN
from build_scripts.bench.engine_bench.workloads import Order, Request, Workload, build

CONDITIONS = Conditions(
    "2026-12-01", "engine", "tiny", "Some CPU", 2, 2, 24, "Linux", "abc", {"llama-cpp-python": "0.3.36"}
)
METRICS = Metrics(1.0, 50.0, 100.0, 200.0, 20.0, 40.0, None, 100, 60, 10, 0, 0, 2.0, 0.01)


def words(request: Request) -> str:
    return "".join(segment.text for segment in request.prompt)


@pytest.mark.parametrize("key", PLANS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_workload_is_the_same_each_time_and_no_request_is_asked_twice(key: str, scale: str) -> None:
    size = SCALES[scale][key]
    made = build(key, size)
    assert made == build(key, size)
    requests = [*made.warm, *made.requests, *(request for loop in made.loops for request in loop)]
    assert len({words(request) for request in requests}) == len(requests), "a whole answer would come from the cache"
    assert all(request.max_tokens == size.answer for request in requests)
    assert all(request.pinned < len(request.prompt) for request in requests)
    assert 1 <= made.in_flight <= len(made.requests)


@pytest.mark.parametrize("key", ["b8", "b16", "c"])
def test_prompts_share_their_instructions_and_little_else(key: str) -> None:
    made = build(key, SCALES["full"][key])
    heads = {request.prompt[:2] for request in made.requests}
    assert len(heads) == 1
    instructions = next(iter(heads))[1].text
    assert len(instructions.split()) / WORDS_PER_TOKEN == pytest.approx(250, rel=0.15)


def test_the_order_of_passages_is_all_that_differs_between_the_peers_of_c() -> None:
    size = SCALES["full"]["c"]
    ours, theirs = build("c", size), build("c", size, "relevance")

    def passages(request: Request) -> list[str]:
        body = request.prompt[4].text.split("\n\nQuestion:")[0]
        return [line.split("] ", 1)[1] for line in body.splitlines()[1:]]

    assert len(ours.requests) == 200
    pairs = [(passages(a), passages(b)) for a, b in zip(ours.requests, theirs.requests, strict=True)]
    assert all(len(set(a)) == 5 and set(a) == set(b) for a, b in pairs)
    assert any(a != b for a, b in pairs)
    assert 30 <= len({passage for a, _ in pairs for passage in a}) <= 40
    firsts = [passages(request)[0] for request in theirs.requests]
    assert max(map(firsts.count, firsts)) > 20, "some passages are asked for more often than others"


def test_a_quoting_prompt_ends_where_its_text_has_begun_again() -> None:
    (segment,) = build("f", SCALES["small"]["f"]).requests[0].prompt
    told, begun = segment.text.split("Again, word for word, the manual says:\n\n")
    assert told.count(begun) == 1


def test_every_scale_has_every_workload_and_every_goal_a_column() -> None:
    assert all(set(sizes) == set(KEYS) for sizes in SCALES.values())
    for plan in PLANS.values():
        names = [column.name for column in plan.columns]
        assert len(set(names)) == len(names)
        assert plan.columns[0].ours
        assert all(goal.over in names[1:] for goal in plan.goals)
        assert all(not column.ours for column in tuning(plan))


def test_keys_of_a_command_line() -> None:
    assert keys_of("", "pocket") == KEYS
    assert "f" not in keys_of("", "bench-3b")
    assert keys_of("c,b", "pocket") == ("b8", "b16", "c")
    assert keys_of("overhead", "bench-3b") == (OVERHEAD,)
    with pytest.raises(ApplianceError, match="no workload 'z'"):
        keys_of("a,z", "pocket")


@pytest.mark.parametrize("key", ["kv", "overhead"])
def test_what_is_measured_without_llama_server_cannot_be_tuned(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", key, "--tune"])
    assert f"not measured in {key}" in capsys.readouterr().err


def test_a_mistake_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("Error: There is no workload 'nothing'.")


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)][::-1]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2
    assert math.isnan(percentile([], 0.5))


def test_tokens_that_come_together_have_no_time_between_them() -> None:
    answer = Answer("normal", 0.0, [(1.0, 2), (1.5, 1), (3.0, 3)])
    assert gaps_s(answer) == [0.0, 0.5, 1.5, 0.0, 0.0]


def test_metrics_are_those_of_the_interactive_requests_where_there_are_some() -> None:
    long = Answer("long", 0.0, [(4.0, 1), (8.0, 1)], prompt_tokens=90, generated_tokens=2)
    short = Answer("interactive", 1.0, [(1.5, 1), (1.6, 1)], prompt_tokens=10, cached_tokens=5, generated_tokens=2)
    made = metrics(Run((long, short), span_s=8.0, client_cpu_s=0.8))
    assert (made.requests_per_s, made.tokens_per_s) == (0.25, 0.5)
    assert (made.ttft_p50_ms, made.long_ttft_p50_ms) == (500.0, 4000.0)
    assert made.itl_p99_ms == pytest.approx(100.0)
    assert (made.prompt_tokens, made.cached_tokens, made.client_cpu) == (100, 5, 0.1)
    alone = metrics(Run((long,), span_s=8.0, client_cpu_s=0.0))
    assert alone.itl_p99_ms == pytest.approx(4000.0)


def test_ratios_are_taken_round_by_round() -> None:
    made = ratios([10.0, 40.0, 9.0], [10.0, 20.0, 10.0])
    assert (made.median, made.least, made.most) == (1.0, 0.9, 2.0)
    assert spread([math.nan, 2.0, 4.0]).median == 3.0
    assert math.isnan(spread([math.nan]).least)


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.0, 0.01234, 1.234, 56.78, 1234.5)] == [
        "0.00",
        "0.012",
        "1.23",
        "56.8",
        "1234",
    ]
    assert number(math.nan) == "–"


def test_results_show_figures_ratios_and_whether_goals_are_reached() -> None:
    slower = [msgspec.structs.replace(METRICS, tokens_per_s=rate, ttft_p50_ms=110.0) for rate in (25.0, 50.0, 40.0)]
    measured = results.Measured(
        "a title",
        CONDITIONS,
        {"ours": "defaults", "peer": "-np 8"},
        {"ours": [METRICS] * 3, "peer": slower},
        {"peer": 0.75},
    )
    overhead = results.OverheadMeasured(CONDITIONS, [Overhead(12, 100.0, 4.0), Overhead(12, 100.0, 2.0)])
    made = report.results_text(results.Results("pocket", {"b8": measured}, overhead))
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in made.splitlines()
        if "|" in line
    }
    assert rows["tokens/s"] == ["50.0", "40.0 (25.0–50.0)", "1.25 (1.00–2.00), goal ≥ 1: reached"]
    assert rows["first token p50, ms"] == ["100", "110", "0.909, goal ≤ 0.8: not reached"]
    assert rows["prompt tokens from the cache, %"] == ["60.0", "60.0", ""]
    assert rows["answers equal to the first column's, %"] == ["", "75.0", ""]
    assert "guesses that were right, %" not in rows, "nobody guessed"
    assert rows["of it outside llama.cpp, %"] == ["3.00 (2.00–4.00), goal ≤ 3: reached"]
    assert "Some CPU" in made and "`-np 8`" in made and "3 rounds" in made
    assert msgspec.json.decode(msgspec.json.encode(measured), type=results.Measured) == measured


def test_a_goal_says_its_side() -> None:
    assert str(Goal("m", "peer", 0.5, at_least=False)) == "≤ 0.5"
    assert not Goal("m", "peer", 0.5, at_least=False).reached(0.51)
    assert Goal("m", "peer", 1.5, at_least=True).reached(1.5)


def test_new_results_replace_only_what_they_measured() -> None:
    measured = results.Measured("old", CONDITIONS, {}, {"ours": [METRICS]}, {})
    newer = msgspec.structs.replace(measured, title="new")
    old = results.Results("pocket", {"a": measured, "c": measured}, results.OverheadMeasured(CONDITIONS, []))
    merged = results.merge(old, results.Results("pocket", {"c": newer}))
    assert (merged.workloads["a"].title, merged.workloads["c"].title) == ("old", "new")
    assert merged.overhead == old.overhead


EVENTS = [b'{"content":"a"}', b'{"content":"\xc3\xa9","stop":true}']
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_events_may_come_in_any_pieces(cuts: list[int]) -> None:
    stream = HEAD
    for body in (b"data: " + EVENTS[0] + b"\n\n", b": ping\n\nda", b"ta: " + EVENTS[1] + b"\n\n", b""):
        stream += b"%x\r\n%s\r\n" % (len(body), body)
    reader = EventReader()
    borders = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    found = [event for a, b in itertools.pairwise(borders) for event in reader.feed(stream[a:b])]
    assert found == EVENTS
    assert reader.ended and reader.status == 200


def test_another_answer_than_events_is_kept_whole() -> None:
    reader = EventReader()
    assert reader.feed(b'HTTP/1.1 503 Busy\r\nContent-Length: 12\r\n\r\n{"error"') == []
    assert reader.feed(b": 1}") == []
    assert (reader.status, bytes(reader.body)) == (503, b'{"error": 1}')


class Echo:
    """Answers with how many requests there were, and notes them."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[Request] = []
        self.running = self.most = 0
        self.started = self.stopped = False
        self._fails = fails

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        self.stopped = True

    async def ask(self, request: Request) -> Answer:
        self.asked.append(request)
        number = len(self.asked)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self._fails and len(self.asked) > 2:
            raise Unavailable("It broke.")
        return Answer(request.kind, 0.0, [(0.1, 1)], text=f"<{number}>", generated_tokens=1)


async def test_conversations_go_on_with_their_own_answers() -> None:
    requests = tuple(
        Request((Segment(f"q{turn}{user}"),), 4, conversation=user) for turn in range(3) for user in range(4)
    )
    engine = Echo()
    made = await measure(engine, Workload(requests, in_flight=3))
    assert len(made.answers) == 12
    assert engine.most <= 3 and engine.started and engine.stopped
    last = engine.asked[-1].prompt
    assert [segment.text[:2] for segment in last[::2]] == ["q0", "q1", "q2"]
    assert {segment.text[2] for segment in last[::2]} == {last[0].text[2]}, "one user's questions only"
    assert last[1].text == f"<{1 + engine.asked.index(next(r for r in engine.asked if r.prompt == last[:1]))}>"


async def test_long_requests_begin_when_the_others_stream_and_end_them() -> None:
    loops = tuple((Request((Segment(f"short {user}"),), 4, "interactive"),) for user in range(3))
    long = (Request((Segment("long"),), 4, "long"),)
    engine = Echo()
    made = await measure(engine, Workload(long, 1, loops, warm=loops[0]))
    first = next(place for place, request in enumerate(engine.asked) if request.kind == "long")
    assert first >= 4, "one answer to warm up, one of each user"
    assert made.answers[0].kind == "long"
    assert len(made.answers) == len(engine.asked) - 1, "what warms up is not counted"


@pytest.mark.parametrize("order", ["canonical", "relevance"])
async def test_an_engine_that_fails_is_stopped_and_its_error_told(order: Order) -> None:
    engine = Echo(fails=True)
    with pytest.raises(Unavailable, match=r"It broke\."):
        await measure(engine, build("c", SCALES["tiny"]["c"], order))
    assert engine.stopped


def test_a_section_is_replaced_and_the_others_stay() -> None:
    one = put_section("", "pocket", "### a\n\ntext\n")
    two = put_section(one, "Recall", "### 100k\n\nfigures")
    assert two == one + "\n## Recall\n\n### 100k\n\nfigures\n"
    three = put_section(two, "pocket", "### a\n\nnewer")
    assert three == two.replace("text", "newer")
    assert put_section(three, "pocket", "### a\n\nnewer") == three
