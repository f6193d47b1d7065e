"""Owns how results are shown: tables for people, as Markdown that a terminal shows as well.

Must not know how figures are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from build_scripts.bench._lib.figures import Spread, ratios, spread
from build_scripts.bench._lib.tables import number, rounds_text, spread_text, table

from .results import LiveMeasured, Results, Round, SideMeasured, Vectors, Whole

_PLAIN = "usearch"
_LARGE = "hnswlib"
_SLOWER_THAN_PLAIN = 1.2
_MEMORY_SHARE = 1 / 3
_START_MS = 1000.0
_SLOWER_THAN_HALF = 1.3
_SLOWER_BESIDE_WRITES = 1.25
_HALVES = ("stage recall_lexical", "stage recall_dense")


def results_text(results: Results) -> str:
    """A section for each part that was measured."""
    parts = []
    if results.vectors is not None:
        parts.append(vectors_text(results.vectors))
    if results.whole is not None:
        parts.append(whole_text(results.whole))
    if results.live is not None:
        parts.append(live_text(results.live))
    return "\n".join(parts)


def vectors_text(measured: Vectors) -> str:
    """All ways to search vectors: speed and recall, then what they cost; goals of ours, if it is there."""
    ours = measured.sides.get("ours")
    speed = [["", "recall@10", "p50, ms", "p99, ms", "ours / it, p99"]]
    cost = [
        [
            "",
            "memory held, MiB",
            "mapped pages in memory, MiB",
            "files, MiB",
            "build, s of one core",
            "first answer, ms",
            "from the disk, ms",
        ]
    ]
    for key, side in measured.sides.items():
        ratio = "" if ours is None or key == "ours" else spread_text(_p99_ratio(ours, side))
        speed.append(
            [
                side.title,
                spread_text(_of(side, lambda one: one.recall)),
                spread_text(_of(side, lambda one: one.p50_ms)),
                spread_text(_of(side, lambda one: one.p99_ms)),
                ratio,
            ]
        )
        cost.append(
            [
                side.title,
                number(side.memory.anonymous),
                number(side.memory.resident - side.memory.anonymous),
                number(side.files_mib),
                number(side.built.cpu_s),
                spread_text(spread(side.start.warm_ms)),
                spread_text(spread(side.start.cold_ms)),
            ]
        )
    settings = "\n".join(f"- {side.title}: {side.settings}" for side in measured.sides.values())
    rounds = rounds_text(max(len(side.rounds) for side in measured.sides.values()))
    return (
        f"### {measured.vectors:,} vectors of 384 dimensions, a clustered mixture\n\n"
        f"{table(speed)}\n\n{table(cost)}\n\n{_goals(_vector_goals(measured))}"
        f"Each is set up for a recall@10 of {measured.wanted:g} on other questions, if it reaches that; plain usearch "
        f"has its own:\n\n{settings}\n\n"
        f"{measured.conditions} {rounds} of {measured.questions} questions, each side in a process of its own.\n"
    )


def whole_text(measured: Whole) -> str:
    """Whole searches by mode, and the stages of hybrid ones."""
    rows = [["", "p50, ms", "p99, ms"]]
    for name in measured.rounds[0].p50_ms:
        p50 = spread([one.p50_ms[name] for one in measured.rounds])
        p99 = spread([one.p99_ms[name] for one in measured.rounds])
        rows.append([name, spread_text(p50), spread_text(p99)])
    slower = [max(one.p99_ms[half] for half in _HALVES) for one in measured.rounds]
    whole = [one.p99_ms["hybrid"] for one in measured.rounds]
    ratio = ratios(whole, slower)
    goal = _goal("p99 of whole searches / of the slower half", ratio, _SLOWER_THAN_HALF)
    return (
        f"### Whole searches of {measured.passages:,} passages: words beside vectors, fused, the best 50\n\n"
        f"{table(rows)}\n\n{_goals([goal])}"
        f"Opened in {spread_text(spread(measured.open_ms))} ms; {number(measured.memory.anonymous)} MiB held and "
        f"{number(measured.memory.resident - measured.memory.anonymous)} MiB of mapped pages; filled and indexed in "
        f"{number(measured.built.cpu_s)} s of one core. Passages of 60 to 100 made words in Zipf's proportions, "
        "questions of 4 to 10; vectors are drawn apart from them, and questions are not embedded. "
        "Stages are those of hybrid searches; a word and a vector search run at once.\n\n"
        f"{measured.conditions} {rounds_text(len(measured.rounds))} of {measured.questions} questions.\n"
    )


def live_text(measured: LiveMeasured) -> str:
    """Searches with and without writes beside them."""
    quiet = [one.quiet_p99_ms for one in measured.rounds]
    writing = [one.writing_p99_ms for one in measured.rounds]
    ratio = ratios(writing, quiet)
    rows = [
        ["", "alone", "beside writes", "ratio"],
        [
            "p50, ms",
            spread_text(spread([one.quiet_p50_ms for one in measured.rounds])),
            spread_text(spread([one.writing_p50_ms for one in measured.rounds])),
            spread_text(
                ratios([one.writing_p50_ms for one in measured.rounds], [one.quiet_p50_ms for one in measured.rounds])
            ),
        ],
        ["p99, ms", spread_text(spread(quiet)), spread_text(spread(writing)), spread_text(ratio)],
    ]
    return (
        f"### Whole searches of {measured.passages:,} passages beside writes\n\n"
        f"{table(rows)}\n\n{_goals([_goal('p99 beside writes / alone', ratio, _SLOWER_BESIDE_WRITES)])}"
        f"{measured.added_per_s:.0f} passages added and {measured.deleted_per_s:.0f} deleted a second, in documents "
        f"of 20; a write took {number(measured.write_p50_ms)} ms (p50) and {number(measured.write_p99_ms)} ms (p99) "
        "from the store to searchable.\n\n"
        f"{measured.conditions} {rounds_text(len(measured.rounds))}, turn by turn.\n"
    )


def _vector_goals(measured: Vectors) -> list[str]:
    ours, plain, large = (measured.sides.get(key) for key in ("ours", _PLAIN, _LARGE))
    goals = []
    if ours is not None:
        found = _of(ours, lambda one: one.recall)
        goals.append(
            f"recall@10 {spread_text(found)}, goal ≥ {measured.wanted:g}: {_verdict(found.median >= measured.wanted)}"
        )
        if plain is not None:
            goals.append(_goal("p99 / that of usearch i8", _p99_ratio(ours, plain), _SLOWER_THAN_PLAIN))
        if large is not None:
            share = ours.memory.anonymous / large.memory.anonymous
            with_mapped = ours.memory.resident / large.memory.resident
            goals.append(
                _goal("memory held / that of hnswlib", Spread(share, share, share), _MEMORY_SHARE)
                + f" (with the mapped pages, which the kernel takes back when it needs room: {number(with_mapped)})"
            )
        goals.append(_goal("first answer from the disk, ms", spread(ours.start.cold_ms), _START_MS))
    return goals


def _of(side: SideMeasured, figure: Callable[[Round], float]) -> Spread:
    return spread([figure(one) for one in side.rounds])


def _p99_ratio(ours: SideMeasured, other: SideMeasured) -> Spread:
    return ratios([one.p99_ms for one in ours.rounds], [one.p99_ms for one in other.rounds])


def _goal(what: str, value: Spread, most: float) -> str:
    return f"{what}: {spread_text(value)}, goal ≤ {number(most)}: {_verdict(value.median <= most)}"


def _verdict(reached: bool) -> str:
    return "reached" if reached else "not reached"


def _goals(goals: Sequence[str]) -> str:
    return "".join(f"- {goal}\n" for goal in goals) + "\n" if goals else ""
