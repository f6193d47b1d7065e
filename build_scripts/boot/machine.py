"""Owns a machine of namespaces: a copy of a Debian, booted, asked, its processes, switched off.

Must not know what is tested on it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PACKAGES = "systemd,systemd-sysv,dbus,ca-certificates"
SUITE = "bookworm"
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child")
BOOT_S = 60.0
POWER_OFF_S = 90.0


class Failed(Exception):
    """Something on the machine is not as it should be."""


def make_base(folder: Path) -> None:
    """Have a fresh Debian in `folder`; does nothing where it is complete.

    Raises:
        subprocess.CalledProcessError: debootstrap failed; it has said why.
    """
    if (folder / "etc/debian_version").exists():
        return
    beside = folder.with_name(folder.name + ".part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(beside)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    beside.rename(folder)


def until(what: str, holds: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until `holds`. Raises `Failed` when that takes too long."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout_s:
            raise Failed(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


class Machine:
    """A Debian in the folder `root`. Has a loopback network alone."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        subprocess.run(["cp", "--archive", "--reflink=auto", str(base), str(root)], check=True)  # noqa: S607

    def boot(self) -> float:
        """Start it; seconds until it is up."""
        script = Path(__file__).with_name("enter.sh")
        command = ["unshare", *NAMESPACES, "bash", str(script), str(self.root)]
        log = self.root.with_name("console.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        until("a first process", lambda: bool(children.read_text().split()), 10)
        self._init = int(children.read_text().split()[0])
        # "degraded": some unit of Debian's own does not run in a container.
        states = ("running", "degraded")
        return until("the boot", lambda: self.run("systemctl", "is-system-running").stdout.strip() in states, BOOT_S)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine to its end."""
        entered = ["nsenter", "--target", str(self._init), "-p", "-m", "-n", "-i", "-u", "-r", "-w", "--", *command]
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "COLUMNS": "200"}
        return subprocess.run(entered, env=clean, capture_output=True, text=True, check=False, timeout=300)

    def must(self, *command: str) -> str:
        """Run a command that must succeed; what it printed. Raises `Failed`."""
        done = self.run(*command)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def processes(self, *arguments: str) -> list[int]:
        """Numbers, on the host, of the machine's processes whose command has these arguments after the program."""
        wanted = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_text().split("\0")
                if tuple(command[1 : 1 + len(arguments)]) == arguments and (folder / "ns/pid").readlink() == wanted:
                    found.append(int(folder.name))
        return found

    def power_off(self) -> None:
        """Switch it off, as somebody who logs in would."""
        assert self._process is not None  # noqa: S101
        self.run("systemctl", "poweroff")
        try:
            self._process.wait(POWER_OFF_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not switch itself off in {POWER_OFF_S:g} s") from None

    def pull_the_plug(self) -> None:
        """End all of its processes at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # the kernel then ends all processes of its namespace
            self._process.wait()


@contextlib.contextmanager
def machine(root: Path, base: Path) -> Iterator[Machine]:
    """A machine that is not booted yet, for the block; nothing is left of its processes afterwards."""
    made = Machine(root, base)
    try:
        yield made
    finally:
        made.pull_the_plug()
