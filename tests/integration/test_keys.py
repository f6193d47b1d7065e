"""`appliance keys` on the data directory itself, where no service runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance.cli.root import root
from appliance.errors import ApplianceError
from appliance.packs import ResolvedPack
from appliance.store.db import STORE_FILE
from appliance.store.keys import any_active, split
from tests.conftest import shared_models_dir


class Command:
    """The command line over one data directory, in this process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, *arguments: str) -> Result:
        before = ["--data-dir", str(self.data_dir), "--set", f"models_dir={shared_models_dir()}"]
        return CliRunner().invoke(root, [*before, "keys", *arguments])

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def keys(pocket: ResolvedPack, tmp_path: Path) -> Command:
    return Command(tmp_path / "data")


def test_a_key_is_shown_once_listed_and_revoked(keys: Command) -> None:
    made = keys(
        "create", "--name", "web", "--scope", "query", "--rate", "60/min", "--concurrency", "4", "--expires", "90d"
    )
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    parts = split(secret)
    assert parts is not None
    assert "not shown again" in made.stderr
    (listed,) = keys.json("list")
    assert (listed["id"], listed["name"], listed["scopes"]) == (parts[0], "web", ["query"])
    assert (listed["rate_per_min"], listed["concurrency"]) == (60, 4)
    ends = datetime.fromisoformat(listed["expires_at"])
    assert abs(ends - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=5)
    shown = keys("list").output
    assert "web" in shown and "active" in shown and parts[1] not in shown
    assert any_active(keys.data_dir / STORE_FILE)
    assert keys.json("revoke", "web")["revoked_at"] is not None
    assert not any_active(keys.data_dir / STORE_FILE)
    again = keys("revoke", "web")
    assert isinstance(again.exception, ApplianceError)
    assert "keys list" in again.exception.text


def test_a_name_that_is_another_keys_id_ends_the_key_of_that_name(keys: Command) -> None:
    first = keys.json("create", "--name", "a", "--scope", "ingest", "--scope", "query")["key"]
    second = keys.json("create", "--name", first["id"], "--scope", "admin")["key"]
    assert first["scopes"] == ["ingest", "query"]
    assert keys.json("revoke", second["id"])["id"] == second["id"]
    assert keys.json("revoke", first["id"])["id"] == first["id"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scope", "query"],
        ["--name", "a"],
        ["--name", "a", "--scope", "root"],
        ["--name", "a", "--scope", "query", "--rate", "60"],
        ["--name", "a", "--scope", "query", "--rate", "0/min"],
        ["--name", "a", "--scope", "query", "--rate", "1000001/min"],
        ["--name", "a", "--scope", "query", "--concurrency", "0"],
    ],
)
def test_bad_usage(tmp_path: Path, arguments: list[str]) -> None:
    assert Command(tmp_path / "data")("create", *arguments).exit_code == 2
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("when", ["2020-01-01", "9999999d"])
def test_an_end_that_cannot_be(keys: Command, when: str) -> None:
    failed = keys("create", "--name", "a", "--scope", "query", "--expires", when)
    assert isinstance(failed.exception, ApplianceError), failed.output
    assert failed.exception.exit_code == 2
    assert keys.json("list") == []
