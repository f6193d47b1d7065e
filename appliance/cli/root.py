"""Owns the `appliance` command: its global flags, its commands, how an error ends it.

Must not know what the commands do; each is imported when it is called, so that `--version` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from appliance import __version__, config
from appliance.errors import ApplianceError, BadSetting

# name → (module, attribute, one-line help); hidden commands are the entry points of child processes.
COMMANDS = {
    "serve": ("appliance.cli.serve_cmd", "serve", "Run the service."),
    "ingest": ("appliance.cli.ingest_cmd", "ingest", "Add files and folders to a collection."),
    "ask": ("appliance.cli.ask_cmd", "ask", "Answer a question with numbered citations."),
    "search": ("appliance.cli.ask_cmd", "search", "List the passages that answer a query best."),
    "collections": ("appliance.cli.stored_cmd", "collections", "List, show or delete collections."),
    "documents": ("appliance.cli.stored_cmd", "documents", "List, show or delete documents."),
    "jobs": ("appliance.cli.jobs_cmd", "jobs", "Show documents on their way in, cancel or retry them."),
    "cache": ("appliance.cli.cache_cmd", "cache", "Show or delete what is kept of earlier answers."),
    "keys": ("appliance.cli.keys_cmd", "keys", "Make, list and revoke API keys."),
    "models": ("appliance.cli.models_cmd", "models", "List, fetch, verify and choose model packs."),
    "traces": ("appliance.cli.traces_cmd", "traces", "Show where the time of requests went."),
    "metrics": ("appliance.cli.traces_cmd", "metrics", "Print the dashboard of the service's figures."),
    "engine": ("appliance.cli.child_cmd", "engine", "The generation engine's process."),
    "parse-worker": ("appliance.cli.child_cmd", "parse_worker", "The process that reads documents."),
}
HIDDEN = frozenset({"engine", "parse-worker"})


class LazyGroup(click.Group):
    """Imports a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names that `--help` shows."""
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="appliance", message="%(prog)s %(version)s")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The TOML file with the settings.")
@click.option("--data-dir", help="Where documents, indexes and models are kept.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override any setting, e.g. server.port=9000.",
)
@click.pass_context
def root(ctx: click.Context, config_file: Path | None, data_dir: str | None, overrides: tuple[str, ...]) -> None:
    """Answers questions about your documents, with citations, on this machine alone."""
    flags = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise BadSetting(f"--set takes NAME=VALUE, not {override!r}.", remedy="Example: --set server.port=9000")
        flags[name.strip()] = value.strip()
    if data_dir is not None:
        flags["data_dir"] = data_dir
    ctx.obj = Invocation(config_file, flags)


class Invocation:
    """The global flags; settings are read when a command asks for them."""

    def __init__(self, config_file: Path | None, flags: Mapping[str, str]) -> None:
        self._config_file = config_file
        self._flags = dict(flags)

    def settings(self, **flags: str | None) -> config.Settings:
        """The settings with the global flags and these (dots written as `__`), which win."""
        own = {name.replace("__", "."): text for name, text in flags.items() if text is not None}
        return config.load(self._config_file, flags={**self._flags, **own})


def main() -> None:
    """Run the command line; the one place where an error becomes a line and an exit code."""
    try:
        code = root.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        _end("Interrupted.", 130)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _end(error.format_message(), 1)
    except ApplianceError as error:
        _end(f"Error: {error.text}", error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe left (`appliance search … | head`): not a fault. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _end(line: str, code: int) -> None:
    click.echo(line, err=True)
    sys.exit(code)
