"""reStructuredText, AsciiDoc, JSON, XML, source code and logs: what is found of them, and below which heading."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.documents.formats import parse
from appliance.documents.formats.detect import FORMATS
from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument


def read(name: str, text: str | bytes) -> Parsed:
    return parse(name, text.encode() if isinstance(text, str) else text)


def shown(parsed: Parsed) -> list[str]:
    signs = {"heading": "#", "list_item": "-", "table_row": "|", "code": ">", "paragraph": ""}
    return [f"{signs[b.kind] * max(b.level, 1)} {b.text}".strip() for b in parsed.blocks]


def losses(parsed: Parsed) -> set[str]:
    return {loss.kind for loss in parsed.losses}


RST = """\
Pump manual
===========

:Author: Service

Open the *valve*,
see :ref:`the chapter <safety>`.

.. contents::

Safety
------

.. warning:: Hot surface.

   Wait ten minutes.

1. Stop the pump.
2. Lock it.

   Twice.

================  ======
Part              Nm
================  ======
Main bolt         120
Cover             25
================  ======

+-------+-----+
| 切断  | a   |
|       +-----+
|       | b   |
+-------+-----+

.. code-block:: python

   print("x")

.. seealso:: The chapter on
   :doc:`seals`.

.. include:: /etc/passwd

.. raw:: html

   <b>raw words</b>

.. image:: a.png
   :alt: A drawing

.. a comment

Term
   What it means.
"""


def test_rst() -> None:
    parsed = read("a.rst", RST)
    assert parsed.title == "Pump manual" and parsed.media_type == "text/x-rst"
    found = shown(parsed)
    for expected in (
        "# Pump manual",
        "Open the valve, see the chapter.",
        "Warning: Hot surface.",
        "Wait ten minutes.",
        "- Stop the pump.",
        "- Lock it.",
        "Twice.",
        "| Part | Nm",
        "| Main bolt | 120",
        "| 切断 | a",
        "| 切断 | b",
        '> print("x")',
        "The chapter on seals.",
        "A drawing",
        "- Term",
        "What it means.",
    ):
        assert expected in found, (expected, found)
    assert any(text.lstrip("#") == " Safety" for text in found)
    text = "\n".join(found)
    assert "root:" not in text and "a comment" not in text
    assert losses(parsed) == {"directive_unread", "image_skipped"}
    assert {"seealso", "include", "raw"} <= {loss.detail.split(" × .. ")[-1].split("::")[0] for loss in parsed.losses}


def test_rst_reads_no_other_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a,the secret word,c\n")
    source = "\n\n".join(
        [
            "Visible words.",
            f".. include:: {secret}",
            f".. literalinclude:: {secret}",
            f".. csv-table::\n   :file: {secret}",
            f".. raw:: html\n   :file: {secret}",
            f".. raw:: html\n   :url: {secret.as_uri()}",
        ]
    )
    text = "\n".join(shown(read("a.rst", source)))
    assert "Visible words." in text and "secret word" not in text


ADOC = """\
= Pump manual
Author Name
:torque: 120 Nm

== Safety

Open the *valve*,
slowly. See <<seals,the seals>>.

// not this
* Stop the pump.
** Lock it.

. First, {torque}.

Leak:: The seal is worn.

[cols="2,1"]
|===
| Part | Nm

| Main bolt
| {torque}

| Cover with
two lines | 25
|===

[source,python]
----
print("x")
== no heading
----

////
nor this
////

include::other.adoc[]

image::a.png[A drawing]
"""


def test_asciidoc() -> None:
    parsed = read("a.adoc", ADOC)
    assert parsed.title == "Pump manual"
    found = shown(parsed)
    for expected in (
        "# Pump manual",
        "## Safety",
        "Open the valve, slowly. See the seals.",
        "- Stop the pump.",
        "- Lock it.",
        "- First, 120 Nm.",
        "- Leak",
        "The seal is worn.",
        "| Part | Nm",
        "| Main bolt | 120 Nm",
        "| Cover with two lines | 25",
        '> print("x")\n== no heading',
        "A drawing",
    ):
        assert expected in found, (expected, found)
    assert "not this" not in "\n".join(found) and "nor this" not in "\n".join(found)
    assert losses(parsed) == {"directive_unread", "image_skipped"}


def test_json_records_are_units_with_their_paths() -> None:
    small = {
        "site": {"name": "North", "no": "007"},
        "parts": [{"name": f"P-{i}", "torque": 1.50 + i} for i in range(40)],
    }
    text = json.dumps(small).replace("1.5,", "1.50,").replace('"torque": 1.5}', '"torque": 1.50}')
    found = shown(read("a.json", text))
    assert "| site.name: North | site.no: 007" in found and "# parts" in found
    assert "| name: P-0 | torque: 1.50" in found and "| name: P-39 | torque: 40.5" in found
    long = {"records": [{"title": "Leak", "text": "The seal is worn. " * 100, "limits": {"bar": 3}}]}
    found = shown(read("a.json", json.dumps(long)))
    assert found[:3] == ["# records", "## [0]: Leak", "| title: Leak"]
    assert "| limits.bar: 3" in found and any(line.startswith("The seal is worn. The") for line in found)


def test_json_lines_and_what_is_no_json() -> None:
    parsed = read("a.jsonl", '{"a": "一", "b": [1, 2]}\n\nnot json\n{"a": "二"}\n')
    assert shown(parsed) == ["| a: 一 | b[0]: 1 | b[1]: 2", "not json", "| a: 二"]
    assert [loss.detail for loss in parsed.losses] == ["line 3 is not valid JSON; it is read as plain text"]
    parsed = read("a.json", "{'half': a file")
    assert shown(parsed) == ["{'half': a file"] and losses(parsed) == {"record_unreadable"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=60,
)


def leaves(value: object) -> list[str]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [] if value is None else [json.dumps(value) if isinstance(value, bool | int) else str(value)]


@settings(max_examples=60)
@given(values, st.integers(1, 40))
def test_every_value_of_json_is_kept(value: object, times: int) -> None:
    words = [f"w{place}w" for place, _ in enumerate(leaves(value))]
    rest = iter(words)

    def named(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: named(child) for key, child in inner.items()}
        if isinstance(inner, list):
            return [named(child) for child in inner]
        return None if inner is None else next(rest) + " x" * times

    text = json.dumps(named(value))
    if not words:
        with pytest.raises(UnreadableDocument):
            read("a.json", text)
        return
    found = "\n".join(shown(read("a.json", text)))
    assert all(word in found for word in words)


XML = """<?xml version="1.0" encoding="GB18030"?>
<!DOCTYPE m [<!ENTITY own "expanded"><!ENTITY file SYSTEM "file:///etc/passwd">]>
<m:manual xmlns:m="urn:m"><m:title>水泵</m:title><!-- no -->
<m:part id="7"><name>Bolt</name><torque unit="Nm">120</torque>
</m:part><text>Open <b>the</b> valve. &own; &file;</text>%s</m:manual>"""


def test_xml() -> None:
    parsed = read("a.xml", (XML % "".join(f"<p n='{i}'>entry {i} and more</p>" for i in range(60))).encode("gb18030"))
    assert parsed.title == "水泵" and parsed.encoding == "gb18030"
    found = shown(parsed)
    assert (
        "# manual: 水泵" in found
        and "| part.id: 7 | part.name: Bolt | part.torque.unit: Nm | part.torque: 120" in found
    )
    assert "| p.n: 59 | p: entry 59 and more" in found
    text = "\n".join(found)
    assert "Open the valve." in text
    assert "expanded" not in text and "root:" not in text and " no " not in text
    assert losses(parsed) == {"entity_skipped"}


def test_xml_that_is_no_xml_or_a_bomb() -> None:
    entities = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    bomb = f'<!DOCTYPE w [<!ENTITY l0 "lol">{entities}]><w a="&l9;">&l9;</w>'
    for text in ("<a><b></a>", "no xml", bomb, "<a>" * 5000):
        with pytest.raises(UnreadableDocument, match="damaged"):
            read("a.xml", text)


PYTHON = '''"""Pumps."""
import os


@cached
class Pump:
    """A class of pumps."""

    # opens
    def open(self) -> None:
        def inner():
            pass


async def close():
    return 1
'''
C = """#include <stdio.h>

/* Opens. */
static int open_valve(struct pump *p,
                      int turns)
{
    if (turns) return 1;
}

struct pump { int a; };
"""


def test_source_code_by_its_definitions() -> None:
    found = read("a.py", PYTHON).blocks
    assert [(b.text, b.level) for b in found if b.kind == "heading"] == [
        ("(lines 1–4)", 1), ("Pump (lines 5–8)", 1), ("open (lines 9–14)", 2), ("close (lines 15–17)", 1),
    ]  # fmt: skip
    assert found[3].text.startswith("@cached\nclass Pump:")
    found = read("a.c", C).blocks
    assert [b.text for b in found if b.kind == "heading"] == [
        "(lines 1–2)", "open_valve (lines 3–9)", "pump (lines 10–11)",
    ]  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.sampled_from([*PYTHON.split("\n"), *C.split("\n"), "x" * 400, "函数 f(x)"]), max_size=300))
def test_no_line_of_code_is_lost_and_numbers_are_right(lines: list[str]) -> None:
    text = "\n".join(lines)
    if not text.strip():
        return
    blocks = read("a.rs", text).blocks
    kept = [line for b in blocks if b.kind == "code" for line in b.text.split("\n") if line.strip()]
    assert kept == [line for line in lines if line.strip()]
    for heading, code in zip(blocks[::2], blocks[1::2], strict=True):
        first = int(heading.text.rpartition("(lines ")[2].partition("–")[0])
        assert lines[first - 1 :][: len(lines)][0 if lines[first - 1] else 1 :] or code.text == ""


def test_a_log_is_text() -> None:
    assert read("pump.log", "10:00 start\n10:01 stop").blocks[0].text == "10:00 start\n10:01 stop"


@pytest.mark.parametrize("extension", ["rst", "adoc", "json", "jsonl", "xml", "py", "log", "md", "html"])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32))
def test_damaged_markup_is_read_or_refused(extension: str, seed: int) -> None:
    draw = random.Random(seed)
    source = {"rst": RST, "adoc": ADOC, "xml": XML, "py": PYTHON}.get(extension, RST + ADOC)
    letters = list(source)
    for _ in range(draw.randrange(1, 30)):
        place = draw.randrange(len(letters))
        letters[place : place + draw.randrange(3)] = draw.choice(
            ["", "\n", "|", "=", "..", "  ", "::", "`", "一", "\x00"]
        )
    try:
        parsed = read(f"a.{extension}", "".join(letters).replace("\x00", "*"))
    except UnreadableDocument:
        return
    assert all(block.text.strip() for block in parsed.blocks)


def test_every_format_has_a_reader() -> None:
    from importlib import import_module

    for module in set(FORMATS.values()):
        assert callable(import_module(f"appliance.documents.formats.{module}").parse)
