"""The order of passages in prompts: stable, and with what is asked for often in front."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from appliance.answer.layout import HALF_LIFE, Layout

Key = tuple[int, int]


def arrange(layout: Layout, *numbers: int) -> list[int]:
    return [number for _, number in layout.arrange([(0, number) for number in numbers], lambda key: key)]


def shared(layout: Layout | None, questions: int, seed: int) -> float:
    """The share of passages that an earlier prompt with the same beginning had; None: in the order they were found."""
    rng = random.Random(seed)
    popular = rng.sample(range(40), 40)
    tree: dict[int, dict] = {}  # type: ignore[type-arg]
    found = 0
    for _ in range(questions):
        drawn: dict[int, None] = {}
        while len(drawn) < 5:
            drawn[rng.choices(popular, [1 / rank for rank in range(1, 41)])[0]] = None
        node = tree
        for number in arrange(layout, *drawn) if layout else list(drawn):
            found += number in node
            node = node.setdefault(number, {})
    return found / (5 * questions)


def test_nothing_is_known_at_first_so_passages_stand_by_place() -> None:
    assert arrange(Layout(), 3, 1, 2) == [1, 2, 3]


def test_what_is_used_often_stands_first() -> None:
    layout = Layout()
    for _ in range(3):
        arrange(layout, 9)
    assert arrange(layout, 1, 9, 5) == [9, 1, 5]


def test_a_few_more_uses_change_no_order() -> None:
    layout = Layout()
    for _ in range(4):
        arrange(layout, 1, 2)
    for _ in range(3):
        arrange(layout, 2)  # 7 uses against 4: the same power of two
    assert arrange(layout, 2, 1) == [1, 2]


def test_by_place_alone_nothing_depends_on_what_was_asked_before() -> None:
    layout = Layout(by_use=False)
    for _ in range(10):
        arrange(layout, 9)
    assert arrange(layout, 9, 1) == [1, 9]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True, max_size=6), max_size=40))
def test_every_passage_is_there_once_and_the_order_of_finding_is_no_matter(prompts: list[list[Key]]) -> None:
    one, other = Layout(), Layout()
    for passages in prompts:
        placed = one.arrange(passages, lambda key: key)
        assert sorted(placed) == sorted(passages)
        assert placed == other.arrange(reversed(passages), lambda key: key)


def test_more_is_shared_than_by_place_or_by_relevance() -> None:
    by_use = sum(shared(Layout(), 200, seed) for seed in range(10))
    by_place = sum(shared(Layout(by_use=False), 200, seed) for seed in range(10))
    by_relevance = sum(shared(None, 200, seed) for seed in range(10))
    assert by_use > 1.2 * by_place > 1.2 * by_relevance


def test_popularity_fades_and_what_nobody_asks_for_is_forgotten() -> None:
    layout = Layout()
    for _ in range(100):
        arrange(layout, 9)
    for number in range(10 * HALF_LIFE):
        arrange(layout, 1, 100 + number)
    assert arrange(layout, 1, 9) == [1, 9]
    assert len(layout._uses) < 3 * HALF_LIFE
