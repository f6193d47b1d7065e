"""How a long command's output becomes one line, and how it is stopped."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from build_scripts._lib.progress import Reporter, Step, clock, describe, step_of, telling

SCRIPT = Path(__file__).parents[3] / "build_scripts" / "_lib" / "progress.py"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  [87/193] /usr/bin/g++ -DGGML_BUILD -o x.o", Step("compiling", 87, 193)),
        ("Collecting numpy==2.4.6", Step("looking up numpy==2.4.6")),
        (
            "  Downloading https://index/a/llama.tar.gz (76.6 MB)",
            Step("downloading llama.tar.gz (76.6 MB)"),
        ),
        (
            "    Downloading packaging-26.4-py3-none-any.whl (140 kB)",
            Step("downloading packaging-26.4-py3-none-any.whl (140 kB)"),
        ),
        ("  Building wheel for hnswlib (pyproject.toml): started", Step("building hnswlib")),
        ("Installing collected packages: numpy, hnswlib", Step("unpacking 2 packages")),
        ("Installing collected packages: numpy", Step("unpacking 1 package")),
        ("-- The C compiler identification is GNU 12.2.0", None),
        ("[x/193] not a count", None),
        ("", None),
    ],
)
def test_steps_are_read_from_the_output(line: str, step: Step | None) -> None:
    assert step_of(line) == step


def test_the_time_left_is_guessed_once_a_tenth_is_done() -> None:
    assert describe(Step("compiling", 5, 100), 20, 10) == "compiling 5 of 100 (0:20)"
    assert describe(Step("compiling", 50, 100), 110, 100) == "compiling 50 of 100 (1:50, about 1:40 left)"
    assert clock(3725) == "62:05"


def test_a_terminal_gets_one_line_that_is_redrawn_and_left_empty() -> None:
    out = io.StringIO()
    reporter = Reporter(out, terminal=True)
    reporter._shown -= 60  # as if the last line were a minute old
    reporter.take("[3/9] cc")
    assert "\n" not in out.getvalue()
    assert out.getvalue().startswith("\r\x1b[K    compiling 3 of 9")
    reporter.close()
    assert out.getvalue().endswith("\r\x1b[K")


def test_without_a_terminal_lines_come_seldom() -> None:
    out = io.StringIO()
    reporter = Reporter(out, terminal=False)
    for number in range(1, 9):
        reporter.take(f"[{number}/9] cc")
    assert out.getvalue() == ""
    reporter._shown -= 60
    reporter.tick()
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


def test_what_a_person_wants_of_a_failure_is_the_errors() -> None:
    lines = ["[1/2] g++ error.cpp", "x.cpp:1:1: error: no", "note", "WARNING: Location 'x' is ignored", ""]
    assert telling(lines) == ["x.cpp:1:1: error: no"]
    assert telling(["[1/2] g++", "the last words", ""]) == ["the last words"]


def run(log: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--log", str(log), "--", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_status_is_the_commands_and_the_log_has_everything(tmp_path: Path) -> None:
    log = tmp_path / "new" / "log"
    done = run(log, "import sys; print('ERROR: no such package'); print('b', file=sys.stderr); sys.exit(7)")
    assert done.returncode == 7
    assert sorted(log.read_text().splitlines()) == ["ERROR: no such package", "b"]  # two pipes, either first
    assert "ERROR: no such package" in done.stderr
    assert str(log) in done.stderr
    assert run(log, "print('no line end', end='')").returncode == 0
    assert log.read_text() == "no line end"


def test_a_stopped_command_leaves_no_process_behind(tmp_path: Path) -> None:
    # The command starts a child of its own, as pip starts ninja, and says its number.
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    command = [sys.executable, str(SCRIPT), "--log", str(log), "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not (log.exists() and log.read_text().endswith("\n")):
            assert process.poll() is None
            assert time.monotonic() < deadline, "the log is to be readable while the command runs"
            time.sleep(0.02)
        grandchild = int(log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    state = Path(f"/proc/{grandchild}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
