"""Which questions are the same, and which only look so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from appliance.answer.same import key, normalized, repeatable
from appliance.answer.types import Message, Question
from appliance.engine.protocol import Constraint, Sampling
from appliance.engine.tools import Call, Tool, Toolset
from appliance.store.attributes import parse_filter


def ask(text: str = "Is it on?", collection: str | None = "c", **other: Any) -> Question:
    return replace(Question((Message("user", text),), collection, "id"), **other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the torque?", "what is the torque"),
        ("  What   is\nthe torque ?? ", "What is the torque"),
        ("PUMP failure", "Pump Failure"),
        ("Is it on? Since when?", "is it on since when"),
        ("油气桶盖螺栓的拧紧力矩是多少？", "油气桶盖螺栓的拧紧力矩是多少"),
        ("ＨＸ－２００ 油温", "HX-200 油温"),
        ("Cafe\u0301 hours", "Café hours"),
    ],
)
def test_the_same_question(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)
    assert key(ask(one), b"") == key(ask(other), b"")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What draws 5 mW?", "What draws 5 MW?"),
        ("10 mPa", "10 MPa"),
        ("3.5 bar", "35 bar"),
        ("at -5 °C", "at 5 °C"),
        ("x > 5", "x < 5"),
        ("HX-200", "HX 200"),
        ("Mg content", "mg content"),
        ("is it on", "it is on"),
    ],
)
def test_not_the_same_question(one: str, other: str) -> None:
    # The first word of a sentence may be capitalized; inside of it, capitals of short words tell.
    assert normalized(f"Tell {one}") != normalized(f"Tell {other}")


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    assert normalized(normalized(text)) == normalized(text)


def test_without_documents_every_character_counts() -> None:
    assert key(ask("Say Hi", collection=None), b"") != key(ask("say hi", collection=None), b"")


def test_whatever_changes_the_answer_changes_the_key() -> None:
    other: dict[str, Any] = {
        "messages": (Message("user", "Is it off?"),),
        "collection": "d",
        "top_k": 7,
        "max_tokens": 9,
        "sampling": Sampling(temperature=0.5, seed=1),
        "stop": ("x",),
        "effort": "fast",
        "label": "somebody",
        "filters": parse_filter({"type": "eq", "key": "site", "value": "north"}),
        "recall": 0.99,
    }
    no_change: dict[str, Any] = {"request_id": "other", "priority": "batch", "deadline_ms": 5.0, "cache": "refresh"}
    plain: dict[str, Any] = {"constraint": Constraint("regex", "a"), "n": 2, "tools": Toolset((Tool("now"),))}
    known = {field.name for field in fields(Question)}
    assert known >= {*other, *no_change, *plain}
    keys = [key(ask(), b"")]
    keys += [key(replace(ask(), **{name: value}), b"") for name, value in other.items()]
    keys += [key(ask(), b"another version")]
    keys += [key(ask(collection=None), b"")]
    keys += [key(ask(collection=None, **{name: value}), b"") for name, value in plain.items()]
    assert len(set(keys)) == len(keys)
    assert {key(replace(ask(), **{name: value}), b"") for name, value in no_change.items()} == {key(ask(), b"")}
    # A field that this test does not know may change the answer too.
    assert known == {*other, *no_change, *plain}, "say of the new field whether it changes the answer"


def test_roles_and_borders_of_messages_count() -> None:
    one = replace(ask(), messages=(Message("user", "a b"), Message("assistant", "c"), Message("user", "d")))
    other = replace(ask(), messages=(Message("user", "a"), Message("assistant", "b c"), Message("user", "d")))
    assert key(one, b"") != key(other, b"")


def test_calls_in_messages_count() -> None:
    calls = [(), (Call("a", "{}"),), (Call("a", "{ }"),), (Call("b", "{}"),), (Call("a", "{}"), Call("a", "{}"))]
    keys = {key(replace(ask(), messages=(Message("assistant", "", made), Message("tool", "x"))), b"") for made in calls}
    assert len(keys) == len(calls)


def test_what_is_drawn_at_random_is_not_repeatable() -> None:
    assert repeatable(ask(sampling=Sampling(temperature=0.0)))
    assert repeatable(ask(sampling=Sampling(temperature=0.8, seed=3)))
    assert not repeatable(ask(sampling=Sampling(temperature=0.8)))
