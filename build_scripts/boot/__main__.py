"""Owns what the package must do on a real system, step by step.

Must not know how a machine is booted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance import __version__, samples
from appliance.store.db import STORE_FILE
from build_scripts.boot.machine import Failed, Machine, machine, make_base, until
from build_scripts.package.deb import Package

ROOT = Path(__file__).resolve().parents[2]
UNIT = "appliance.service"
DROP_IN = "run/systemd/system/appliance.service.d/watchdog.conf"
CONFIGURATION = "etc/appliance/appliance.toml"
DATA = "var/lib/appliance"
READY_LIMIT_S = 3.0  # with the pocket models, on an idle machine
START_S = 60.0
WATCHDOG_S = 6


class Trial:
    """The steps, in their order; each leaves the machine for the next."""

    def __init__(self, node: Machine, previous: str) -> None:
        self.node = node
        self.previous = previous
        self.notes: list[str] = []
        questions = [one for one in samples.questions() if one.answerable and one.lang == "en"]
        self._questions = iter(questions)

    def install(self) -> None:
        self.node.must("dpkg", "--install", self.previous)
        self._is("inactive")  # there are no models yet, and that is no fault
        if self.node.must("systemctl", "is-enabled", UNIT).strip() != "enabled":
            raise Failed("it would not start with the machine")

    def start(self) -> None:
        self.node.must("appliance", "models", "import", "/root/models", "pocket")
        began = time.monotonic()
        self.node.must("systemctl", "start", UNIT)  # returns when it says READY
        ready_s = time.monotonic() - began
        self.notes.append(f"ready in {ready_s:.1f} s (to be ≤ {READY_LIMIT_S:g} s on an idle machine)")
        self._is("active")
        self._says("Ready for questions")

    def hardening(self) -> None:
        level = self.node.must("systemd-analyze", "security", UNIT).splitlines()[-1]
        exposure = float(level.split(":")[1].split()[0])
        if exposure > 2.0:
            raise Failed(level)
        self.notes.append(f"exposure {exposure}")
        (service,) = self.node.processes("serve")
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{service}/status").read_text().splitlines())
        if status["Uid"].split()[0] == "0" or int(status["CapEff"], 16) or status["Seccomp"] != "2":
            raise Failed(f"it has rights it should not have: {status['Uid']}, {status['CapEff']}, {status['Seccomp']}")
        order = [self._oom_score(*arguments) for arguments in (("engine",), ("serve",))]
        if order != sorted(order, reverse=True):
            raise Failed(f"where memory ends, the service is ended before its engine: {order}")

    def documents(self) -> None:
        done = self.node.must("appliance", "ingest", "/root/samples", "--json")
        states = {outcome["status"] for outcome in json.loads(done)["outcomes"]}
        if states != {"added"}:
            raise Failed(f"not all sample manuals were added: {done}")
        self._answers()

    def engine_killed(self) -> None:
        (before,) = self.node.processes("engine")
        os.kill(before, signal.SIGKILL)
        self._answers()
        until("another engine", lambda: self.node.processes("engine") not in ([], [before]), START_S)
        self._says("Ready for questions")
        if self._shown("NRestarts") != "0":
            raise Failed("the service went down with its engine")

    def service_killed(self) -> None:
        (before,) = self.node.processes("serve")
        engines = self.node.processes("engine")
        os.kill(before, signal.SIGKILL)
        until("the engine's end", lambda: not set(engines) & set(self.node.processes("engine")), 10)
        self._restarted(before)
        self._answers()

    def watchdog(self) -> None:
        self._write(DROP_IN, f"[Service]\nWatchdogSec={WATCHDOG_S}s\n")
        self.node.must("systemctl", "daemon-reload")
        self.node.must("systemctl", "restart", UNIT)
        (before,) = self.node.processes("serve")
        time.sleep(2 * WATCHDOG_S)
        if self.node.processes("serve") != [before]:
            raise Failed("the watchdog ends a service that is well")
        os.kill(before, signal.SIGSTOP)
        self._restarted(before)
        if "Watchdog timeout" not in self._log():
            raise Failed("it was restarted, but not by the watchdog")
        self._answers()
        self.node.must("rm", f"/{DROP_IN}")
        self.node.must("systemctl", "daemon-reload")

    def reload(self) -> None:
        (before,) = self.node.processes("serve")
        kept = self.node.must("cat", f"/{CONFIGURATION}")
        self._write(CONFIGURATION, kept + "\n[answer]\npassages = 2\n")
        self.node.must("systemctl", "reload", UNIT)
        until("the status", lambda: "answer.passages" in self._shown("StatusText"), 10)
        self._write(CONFIGURATION, kept + "\n[answer]\npasages = 2\n")
        self.node.must("systemctl", "reload", UNIT)
        until("the status", lambda: "Did you mean answer.passages?" in self._shown("StatusText"), 10)
        self._write(CONFIGURATION, kept + "\n# kept\n")
        self.node.must("systemctl", "reload", UNIT)
        until("the status", lambda: self._shown("StatusText") == "Ready for questions", 10)
        self._is("active")
        if self.node.processes("serve") != [before]:
            raise Failed("a reload is no restart")

    def upgrade(self) -> None:
        found = self._found()
        self.node.must("dpkg", "--force-confdef", "--force-confold", "--install", "/root/appliance.deb")
        self._is("active")
        if "# kept" not in self.node.must("cat", f"/{CONFIGURATION}"):
            raise Failed("the upgrade changed the settings")
        if self._found() != found:
            raise Failed("the same search finds something else after the upgrade")

    def reboot(self) -> None:
        self._answers()
        before = self._log().count("was killed by signal 15")  # by an older unit
        self.node.must("systemctl", "stop", UNIT)
        if self._log().count("was killed by signal 15") > before:
            raise Failed("the stop ended the engine before the answers under way")
        self.node.power_off()
        self.notes.append(f"booted again in {self.node.boot():.1f} s")
        until("the service", lambda: self._shown("ActiveState") == "active", START_S)
        reply = self._answers()
        if not reply["appliance"]["tokens"]["cached"]:
            raise Failed("nothing of the prompt's beginning was kept over the reboot")

    def power_cut(self) -> None:
        found = self._found()
        self.node.pull_the_plug()
        self.node.boot()
        until("the service", lambda: self._shown("ActiveState") == "active", START_S)
        if self._found() != found:
            raise Failed("the same search finds something else after the power cut")

    def remove_and_purge(self) -> None:
        self.node.must("dpkg", "--remove", "appliance")
        if self.node.processes("serve") or self.node.run("test", "-e", "/usr/bin/appliance").returncode == 0:
            raise Failed("it was removed, and is still there")
        self.node.must("test", "-e", f"/{DATA}/{STORE_FILE}")
        self.node.must("dpkg", "--install", "/root/appliance.deb")
        self._is("active")
        self._answers()
        self.node.must("dpkg", "--purge", "appliance")
        for path in (DATA, CONFIGURATION, "run/appliance", "usr/lib/appliance"):
            if self.node.run("test", "-e", f"/{path}").returncode == 0:
                raise Failed(f"/{path} is left after the purge")
        if self.node.run("getent", "passwd", "appliance").returncode == 0:
            raise Failed("the user is left after the purge")

    def _answers(self) -> dict[str, Any]:
        question = next(self._questions)
        reply: dict[str, Any] = json.loads(self.node.must("appliance", "ask", question.question, "--json"))
        sources = reply["appliance"]["sources"]
        if question.document not in [source["document"] for source in sources]:
            raise Failed(f"{question.question}: {sources}")
        return reply

    def _found(self) -> list[tuple[str, str]]:
        passages = json.loads(self.node.must("appliance", "search", "bolt torque", "--json"))["passages"]
        return [(passage["document"], passage["text"]) for passage in passages]

    def _write(self, path: str, text: str) -> None:
        self.node.must("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", f"/{path}", text)

    def _log(self) -> str:
        return self.node.must("journalctl", "--unit", UNIT, "--no-pager")

    def _shown(self, name: str) -> str:
        return self.node.must("systemctl", "show", "--value", "--property", name, UNIT).strip()

    def _is(self, state: str) -> None:
        if (found := self._shown("ActiveState")) != state:
            raise Failed(f"it is {found}, not {state}: {self._shown('StatusText')}")

    def _says(self, text: str) -> None:
        until(f'the status "{text}"', lambda: text in self._shown("StatusText"), START_S)

    def _restarted(self, before: int) -> None:
        until("the restart", lambda: self.node.processes("serve") not in ([], [before]), START_S)
        until("readiness", lambda: self._shown("ActiveState") == "active", START_S)

    def _oom_score(self, *arguments: str) -> int:
        (process,) = self.node.processes(*arguments)
        return int(Path(f"/proc/{process}/oom_score_adj").read_text())


STEPS: tuple[Callable[[Trial], None], ...] = (
    Trial.install,
    Trial.start,
    Trial.hardening,
    Trial.documents,
    Trial.engine_killed,
    Trial.service_killed,
    Trial.watchdog,
    Trial.reload,
    Trial.upgrade,
    Trial.reboot,
    Trial.power_cut,
    Trial.remove_and_purge,
)


def main(arguments: list[str]) -> int:
    """Go through all steps; the exit code."""
    cache = Path(os.environ.get("APPLIANCE_CACHE_DIR") or Path("~/.cache/appliance").expanduser())
    built = ROOT / "dist" / f"{Package('appliance', __version__).file_name}.deb"
    parser = argparse.ArgumentParser(prog="boot_test")
    parser.add_argument("package", nargs="?", type=Path, default=built)
    parser.add_argument("--previous", type=Path, help="an older package to upgrade from; else the package itself")
    parser.add_argument("--base", type=Path, default=cache / "debian", help="where a fresh Debian is kept")
    parser.add_argument("--models", type=Path, default=cache / "models", help="a folder with the pocket models")
    options = parser.parse_args(arguments)
    missing = [tool for tool in ("debootstrap", "unshare", "nsenter", "ip") if not shutil.which(tool)]
    if os.geteuid() or missing:
        print(f"Error: needs root{f' and {missing}' if missing else ''}.", file=sys.stderr)
        return 2
    if not options.package.is_file():
        print(f"Error: {options.package} is not there: build_scripts/build makes it.", file=sys.stderr)
        return 2
    make_base(options.base)
    with tempfile.TemporaryDirectory(prefix="appliance-boot-") as scratch:
        return _go_through(Path(scratch), options)


def _go_through(scratch: Path, options: argparse.Namespace) -> int:
    with machine(scratch / "root", options.base) as node:
        home = node.root / "root"
        shutil.copyfile(options.package, home / "appliance.deb")
        shutil.copyfile(options.previous or options.package, home / "previous.deb")
        shutil.copytree(options.models / "pocket", home / "models" / "pocket")
        (home / "samples").mkdir()
        for manual in samples.manuals():
            shutil.copy(manual, home / "samples")
        trial = Trial(node, "/root/previous.deb")
        print(f"{'booted':>18}  {node.boot():.1f} s", flush=True)
        for step in STEPS:
            began = time.monotonic()
            trial.notes.clear()
            try:
                step(trial)
            except (Failed, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                print(f"{step.__name__:>18}  FAILED: {error!r}\n", file=sys.stderr)
                print(node.run("journalctl", "--no-pager", "--lines=60", "--unit", UNIT).stdout, file=sys.stderr)
                return 1
            notes = "".join(f", {note}" for note in trial.notes)
            print(f"{step.__name__:>18}  {time.monotonic() - began:.1f} s{notes}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
