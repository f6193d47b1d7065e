"""The README tells the truth: its commands parse, its routes exist, and every command is in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from appliance import config
from appliance.cli.root import COMMANDS, HIDDEN, root
from appliance.http.app import create_app
from tests.unit.http.backend import ScriptedBackend

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
CALLS = [
    shlex.split(line, comments=True)
    for line in SHELL.splitlines()
    if line.startswith((".venv/bin/appliance", "appliance"))
] + [shlex.split(call) for call in re.findall(r"`(appliance [^`]*)`", README)]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_every_command_in_the_readme_parses(call: list[str]) -> None:
    command: click.Command = root
    context = click.Context(root)
    arguments = call[1:]
    while True:
        # Parsing alone: nothing is run. A group leaves its sub-command in the rest.
        context = command.make_context(command.name, arguments, parent=context, resilient_parsing=False)
        rest = [*context._protected_args, *context.args] if isinstance(command, click.Group) else []
        if not rest:
            break
        assert isinstance(command, click.Group)
        found = command.get_command(context, rest[0])
        assert found is not None, rest[0]
        command, arguments = found, rest[1:]


def test_every_command_is_in_the_readme() -> None:
    for name in COMMANDS.keys() - HIDDEN:
        assert re.search(rf"appliance (--set \S+ )?{name}\b", README), name


def test_every_script_in_the_readme_exists() -> None:
    for script in re.findall(r"build_scripts/\w+", README):
        assert (PROJECT / script).exists(), script


def test_every_setting_and_variable_in_the_readme_exists() -> None:
    names = set(config.setting_names())
    variables = {config.variable_of(name) for name in names} | config.ALIASES.keys() | config.NOT_SETTINGS
    for variable in re.findall(r"APPLIANCE_[A-Z_]+", README):
        assert variable in variables
    for name in re.findall(r"--set ([\w.]+)=", README):
        assert name in names


def test_every_route_is_in_the_readme_and_the_other_way_round() -> None:
    app = create_app(ScriptedBackend())  # routes alone; no request is made
    served = {
        (method, re.sub(r"\{[^}]*\}", "X", route.path).rstrip("/") or "/")
        for route in app.routes
        for method in getattr(route, "methods", ())
        # Litestar serves its description under its own name as well.
        if method not in ("OPTIONS", "HEAD") and not route.path.startswith("/openapi.json/")
    }
    told = {
        (method, re.sub(r"/(NAME|ID)\b", "/X", path.partition("?")[0]))
        for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) ([^` ]+)`", README)
    }
    assert told == served
