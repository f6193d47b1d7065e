"""Settings: every source, every wrong input, the printed file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from appliance import config
from appliance.errors import BadSetting

BARE = {"XDG_DATA_HOME": "/data"}


def test_defaults_live_under_the_users_data_folder() -> None:
    settings = config.load(environ=BARE)
    assert settings.data_path == Path("/data/appliance")
    assert settings.models_path == Path("/data/appliance/models")


def test_systemd_names_the_data_directory() -> None:
    assert config.load(environ={"STATE_DIRECTORY": "/var/lib/appliance"}).data_dir == "/var/lib/appliance"


def test_flag_wins_over_variable_wins_over_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1\nhost = 'file'\n[recall]\ntop_k = 3\n")
    environ = {**BARE, "APPLIANCE_SERVER_PORT": "2", "APPLIANCE_RECALL_TOP_K": "4"}
    settings = config.load(file, environ=environ, flags={"server.port": "5"})
    assert (settings.server.port, settings.recall.top_k, settings.server.host) == (5, 4, "file")


def test_every_setting_has_a_variable_and_a_flag() -> None:
    defaults = config.load(environ=BARE)
    printed = tomllib.loads(config.to_toml(defaults))
    for name in config.setting_names():
        table, _, leaf = name.rpartition(".")
        value = (printed[table] if table else printed)[leaf]
        text = ",".join(value) if isinstance(value, list) else str(value)
        by_variable = config.load(environ={**BARE, config.variable_of(name): text})
        assert by_variable == defaults == config.load(environ=BARE, flags={name: text})


def test_short_variables() -> None:
    settings = config.load(environ={"APPLIANCE_DATA_DIR": "/d", "APPLIANCE_PORT": "99"})
    assert (settings.data_dir, settings.server.port) == ("/d", 99)


def test_printed_configuration_reads_back_the_same(tmp_path: Path) -> None:
    settings = config.load(environ=BARE, flags={"server.host": 'quote " and \\ and 中'})
    file = tmp_path / "printed.toml"
    file.write_text(config.to_toml(settings), encoding="utf-8")
    assert config.load(file, environ={}) == settings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[server]\nprot = 1", "Unknown setting server.prot. Did you mean server.port?"),
        ("servers = 1", "Unknown setting servers."),
        ("server = 1", "Expected `object`"),
        ("[server]\nport = 'x'", "Expected `int`"),
        ("[server]\nport = 70000", "<= 65535"),
        ("[server", "not valid TOML"),
    ],
)
def test_wrong_file_is_one_clear_sentence(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(content)
    with pytest.raises(BadSetting, match=r".") as raised:
        config.load(file, environ=BARE)
    assert said in raised.value.text
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"APPLIANCE_SERVER_PROT": "1"}, "Did you mean APPLIANCE_SERVER_PORT?"),
        ({"APPLIANCE_PORT": "x"}, "APPLIANCE_PORT must be of type int, not 'x'."),
        ({"APPLIANCE_CONFIG": "/none.toml"}, "/none.toml does not exist"),
    ],
)
def test_wrong_variable(environ: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting) as raised:
        config.load(environ=environ)
    assert said in raised.value.text


def test_wrong_flag() -> None:
    with pytest.raises(BadSetting, match=r"Did you mean server\.port\?"):
        config.load(environ=BARE, flags={"server.pot": "1"})


def test_no_number_goes_beyond_what_the_machine_can_take() -> None:
    defaults = tomllib.loads(config.to_toml(config.load(environ=BARE)))
    numbers = [
        (name, value)
        for name in config.setting_names()
        if "." in name and not isinstance(value := defaults[name.split(".")[0]][name.split(".")[1]], str | bool)
    ]
    assert len(numbers) > 20
    for name, value in numbers:
        wrong = ["-1", str(10**30)] if isinstance(value, int) else ["-1.0", "inf", "nan", "1e300"]
        for text in wrong:
            with pytest.raises(BadSetting, match=name.split(".")[1]):
                config.load(environ={**BARE, config.variable_of(name): text})


def test_a_list_comes_from_the_file_or_with_commas_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[server]\ncors_origins = ["https://a.example", "http://b.example:8000"]\n')
    from_file = config.load(file, environ={})
    text = "https://a.example, http://b.example:8000,"
    assert from_file == config.load(environ={"APPLIANCE_SERVER_CORS_ORIGINS": text})
    assert from_file == config.load(environ={}, flags={"server.cors_origins": text})
    file.write_text(config.to_toml(from_file))
    assert config.load(file, environ={}) == from_file
    for wrong in ("*", "null", "https://a.example/", "https://*.example", "a.example"):
        with pytest.raises(BadSetting, match="cors_origins"):
            config.load(environ={}, flags={"server.cors_origins": wrong})


@pytest.mark.parametrize("mode", ["0", "999", "rw", "06600", ""])
def test_a_mode_that_is_none(mode: str) -> None:
    with pytest.raises(BadSetting, match="socket_mode"):
        config.load(environ={}, flags={"server.socket_mode": mode})
