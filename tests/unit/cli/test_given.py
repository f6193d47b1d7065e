"""What the command line hands on: Unicode, whatever bytes were typed."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from appliance.cli.given import TEXT, Text
from appliance.cli.root import HIDDEN, root

# May hold bytes that are no text: paths, and what becomes one. The settings check the others.
PATHS = {"paths", "data_dir", "overrides", "host", "port"}


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    for parameter in command.params:
        yield f"{path} {parameter.name}", parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if name not in HIDDEN and (inner := command.get_command(context, name)):
                yield from parameters(inner, f"{path} {name}")


def test_every_text_of_a_command_is_made_unicode() -> None:
    found = dict(parameters(root, "appliance"))
    texts = {where for where, parameter in found.items() if isinstance(parameter.type, Text)}
    raw = {
        where for where, parameter in found.items() if parameter.type is click.STRING and parameter.name not in PATHS
    }
    assert not raw
    assert {"appliance ask question", "appliance search query", "appliance ingest collection"} <= texts


def test_every_command_that_says_something_says_it_as_json_too() -> None:
    found = dict(parameters(root, "appliance"))
    commands = {where.rsplit(" ", 1)[0] for where in found} - {"appliance", "appliance serve"}
    assert {command for command in commands if f"{command} as_json" not in found} == set()
    assert "appliance documents delete" in commands


@pytest.mark.parametrize(
    ("typed", "given"), [("泵 é", "泵 é"), ("a\udcff b", "a\ufffd b"), ("\udce6\udcb3\udcb5", "泵"), ("", "")]
)
def test_bytes_that_are_no_text_are_replaced(typed: str, given: str) -> None:
    assert TEXT.convert(typed, None, None) == given
