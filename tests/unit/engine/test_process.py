"""Owns the proof of how the engine process is started."""

from __future__ import annotations

import sys

import msgspec
import pytest

from appliance.config import EngineSettings
from appliance.engine.process import engine_arguments, engine_command, main
from appliance.engine.protocol import EngineConfig


def test_from_source_it_is_a_module_and_frozen_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_command() == [sys.executable, "-m", "appliance", "engine"]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert engine_command() == [sys.executable, "engine"]


def test_the_configuration_survives_the_command_line() -> None:
    config = EngineConfig("/models/a b.gguf", "名", 2048, "{{ x }}", "cpu", EngineSettings(threads=3))
    fd, text = engine_arguments(7, config)
    assert (fd, msgspec.json.decode(text, type=EngineConfig)) == ("7", config)


@pytest.mark.parametrize("arguments", [[], ["7"], ["x", "{}"], ["7", "{}"], ["7", "nonsense"]])
def test_started_by_hand_it_says_so(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="not by hand"):
        main(arguments)
