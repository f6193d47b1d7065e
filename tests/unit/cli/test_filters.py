"""Filters and attributes as they are typed."""

from __future__ import annotations

import click
import pytest

from appliance.cli.filters import attributes_of, filter_of, target_of
from appliance.errors import BadRequest
from appliance.store.attributes import Comparison, Compound, Filter


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["year>=2020"], Comparison("gte", "year", 2020)),
        (["lang = de"], Comparison("eq", "lang", "de")),
        (["part=HX-200=b"], Comparison("eq", "part", "HX-200=b")),
        (["draft!=true"], Comparison("ne", "draft", True)),
        (['year="2020"'], Comparison("eq", "year", "2020")),
        (['{"type": "in", "key": "a", "value": [1, 2]}'], Comparison("in", "a", (1, 2))),
        (["a<1", "b>2.5"], Compound("and", (Comparison("lt", "a", 1), Comparison("gt", "b", 2.5)))),
        ([], None),
    ],
)
def test_filters(typed: list[str], meant: Filter | None) -> None:
    assert filter_of(typed) == meant


@pytest.mark.parametrize("typed", ["year", "{", "=5", '{"type": "eq"}', "draft>true"])
def test_what_is_no_filter_is_refused(typed: str) -> None:
    with pytest.raises((BadRequest, click.BadParameter)):
        filter_of([typed])


def test_attributes_and_targets() -> None:
    pairs = {"year": 2024, "lang": "de", "draft": False, "note": ""}
    assert attributes_of(["year=2024", "lang=de", "draft=false", "note="]) == pairs
    assert attributes_of([]) is None
    with pytest.raises(click.BadParameter):
        attributes_of(["year"])
    assert [target_of(text) for text in ("0.9", "exact", "default", None)] == [0.9, "exact", None, None]
