"""The set-up's decisions, in a small clone whose pip writes down what it is told and whose tools can be left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = "awk bash cat cut df dirname env flock grep mkdir mv nproc readlink rm sed sha256sum".split()  # noqa: SIM905
PACKAGES = ("hnswlib", "llama-cpp-python")

# Python of the environment: pip is replaced by what the set-up can see of it, all else is the real thing.
PIP = r"""#!/bin/bash
if [ "$1 $2" != "-m pip" ]; then exec "@PYTHON@" "$@"; fi
case $3 in
--version) echo "pip @VERSION@ from here" ;;
wheel)
    while [ $# -gt 1 ]; do [ "$1" != --wheel-dir ] || out=$2; shift; done
    echo "wheel $1" >>"@CALLS@"
    : >"$TMPDIR/object.o"
    [ ! -e "@ROOT@/breaks" ] || { echo "ERROR: no room"; exit 1; }
    : >"$out/${1%%==*}.whl" ;;
install) shift 2; printf '%s\n' "$*" >>"@CALLS@" ;;
esac
"""


@dataclass(frozen=True)
class Clone:
    """A clone with an environment in it, a folder of tools, and a home."""

    root: Path
    tools: Path
    home: Path

    @property
    def wheels(self) -> Path:
        return self.home / ".cache" / "appliance" / "wheels"

    @property
    def python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    def tool(self, name: str, script: str) -> None:
        """Put a program into the folder of tools."""
        path = self.tools / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def set_up(self, *extras: str, **environ: str) -> subprocess.CompletedProcess[str]:
        script = f'set -euo pipefail\n. "{self.root}/build_scripts/_lib/setup.sh"\nset_up {" ".join(extras)}\n'
        environ = {"PATH": str(self.tools), "HOME": str(self.home), **environ}
        return subprocess.run(
            ["/bin/bash", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60
        )

    def calls(self) -> list[str]:
        """What pip was told since the last call of this."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path / "a clone", tmp_path / "tools", tmp_path / "home")
    shutil.copytree(ROOT / "build_scripts" / "_lib", made.root / "build_scripts" / "_lib")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, made.root / name)
    made.home.mkdir()
    made.tools.mkdir()
    for name in TOOLS:
        (made.tools / name).symlink_to(shutil.which(name) or pytest.skip(f"{name} is not here"))
    for name in ("cc", "c++"):
        made.tool(name, "exit 1")
    made.python.parent.mkdir(parents=True)
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    [version] = [line.removeprefix("pip==") for line in constraints if line.startswith("pip==")]
    text = PIP.replace("@PYTHON@", sys.executable).replace("@VERSION@", version)
    made.python.write_text(text.replace("@CALLS@", str(made.root / "calls")).replace("@ROOT@", str(made.root)))
    made.python.chmod(0o755)
    (made.python.parent / "pip").write_text(f"#!{made.python}\n")
    return made


def without_environment(clone: Clone) -> Clone:
    shutil.rmtree(clone.root / ".venv")
    return clone


def test_no_python_is_told_with_the_package_to_install(clone: Clone) -> None:
    done = without_environment(clone).set_up("cpu")
    assert done.returncode == 1
    assert "Python 3.11 or later was not found" in done.stderr
    assert "sudo apt install python3 python3-venv" in done.stderr


def test_a_python_that_is_too_old_is_not_taken(clone: Clone) -> None:
    clone.tool("python3", "case $2 in *version_info*) exit 1 ;; esac; exit 0")
    done = without_environment(clone).set_up("cpu")
    assert (done.returncode, "was not found" in done.stderr) == (1, True)
    assert "(/no/such/python is not)" in clone.set_up("cpu", PYTHON="/no/such/python").stderr


def test_all_missing_system_packages_are_named_at_once(clone: Clone) -> None:
    clone.tool("python3", f'case "$*" in *ensurepip*) exit 1 ;; esac; exec "{sys.executable}" "$@"')
    (clone.tools / "c++").unlink()
    done = without_environment(clone).set_up("cpu")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1
    assert f"sudo apt install {version}-venv build-essential" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_compiler_is_needed_where_the_wheels_are(clone: Clone) -> None:
    assert clone.set_up("cpu").returncode == 0
    for name in ("cc", "c++"):
        (clone.tools / name).unlink()
    (clone.root / ".venv" / ".appliance").unlink()
    assert clone.set_up("cpu").returncode == 0
    shutil.rmtree(clone.wheels)
    (clone.root / ".venv" / ".appliance").unlink()
    done = clone.set_up("cpu")
    assert (done.returncode, "build-essential" in done.stderr) == (1, True)


def test_without_a_home_the_cache_folder_is_asked_for(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in ("", str(tmp_path / "file")):
        done = clone.set_up("cpu", HOME=home)
        assert done.returncode == 1
        assert "Set APPLIANCE_CACHE_DIR" in done.stderr
    assert clone.set_up("cpu", HOME="", APPLIANCE_CACHE_DIR=str(tmp_path / "c d")).returncode == 0
    assert len(list((tmp_path / "c d" / "wheels").glob("*/*.whl"))) == 2


def test_a_full_disk_is_told_before_anything_is_done(clone: Clone) -> None:
    clone.tool("df", "printf 'Filesystem 1M-blocks Used Available\\n/dev/x 1000 988 12\\n'")
    done = clone.set_up("cpu")
    assert done.returncode == 1
    assert "has 12 MB of free space" in done.stderr
    assert clone.calls() == []


def test_a_second_run_does_nothing(clone: Clone) -> None:
    assert clone.set_up("cpu", "packs").returncode == 0
    assert [line.split("==")[0] for line in clone.calls()[:2]] == [f"wheel {name}" for name in PACKAGES]
    clone.tool("flock", "exit 1")  # it does not even get that far
    done = clone.set_up("packs", "cpu")
    assert (done.returncode, done.stdout, done.stderr, clone.calls()) == (0, "", "", [])


def test_what_is_installed_comes_from_the_cache_and_the_pins(clone: Clone) -> None:
    assert clone.set_up("cpu", "packs").returncode == 0
    [line] = [line for line in clone.calls() if line.startswith("install")]
    for name in PACKAGES:
        assert f"/{name}.whl" in line
    assert f"--constraint {clone.root}/constraints.txt" in line
    assert line.endswith(f"--editable {clone.root}[cpu,packs]")


def test_a_changed_pin_installs_again_and_keeps_the_other_extras(clone: Clone) -> None:
    assert clone.set_up("cpu", "packs", "dev").returncode == 0
    clone.calls()
    with (clone.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert clone.set_up("cpu", "packs").returncode == 0
    [line] = clone.calls()  # wheels are not built again
    assert line.endswith("[cpu,packs,dev]")
    assert clone.set_up("dev").returncode == 0
    assert clone.calls() == []


def test_one_more_extra_is_installed(clone: Clone) -> None:
    assert clone.set_up("cpu").returncode == 0
    clone.calls()
    assert clone.set_up("cpu", "dev").returncode == 0
    assert [line.rpartition("[")[2] for line in clone.calls()] == ["cpu,dev]"]


def test_a_failed_compile_leaves_no_wheel_and_starts_clean(clone: Clone) -> None:
    (clone.root / "breaks").touch()
    done = clone.set_up("cpu")
    assert done.returncode == 1
    assert "ERROR: no room" in done.stderr
    assert "hnswlib could not be built" in done.stderr
    assert list(clone.wheels.glob("*/*.whl")) == []
    [building] = clone.wheels.glob("hnswlib-*.building")
    (building / "tmp" / "old").touch()
    (building / "out" / "half.whl").touch()

    (clone.root / "breaks").unlink()
    assert clone.set_up("cpu").returncode == 0
    assert sorted(path.name for path in clone.wheels.glob("*/*")) == [f"{name}.whl" for name in PACKAGES]
    assert not list(clone.wheels.glob("*.building"))


def test_an_environment_that_was_moved_is_made_anew(clone: Clone) -> None:
    (clone.python.parent / "pip").write_text("#!/somewhere/else/.venv/bin/python\n")
    clone.tool("python3", f'[ "$2" = venv ] || exec "{sys.executable}" "$@"; echo "$*" >"{clone.root}/made"; exit 1')
    done = clone.set_up("cpu")
    assert done.returncode == 1
    assert (clone.root / "made").read_text() == f"-m venv --clear {clone.root}/.venv\n"


def test_a_second_set_up_waits_for_the_first(clone: Clone) -> None:
    held = os.open(clone.root / "build_scripts" / "_lib" / "setup.sh", os.O_RDONLY)
    try:
        subprocess.run(["flock", str(held)], pass_fds=[held], check=True)
        clone.tool("flock", '[ "$1" = -n ] && exec /usr/bin/flock "$@"; exit 9')  # instead of waiting for ever
        done = clone.set_up("cpu")
    finally:
        os.close(held)
    assert "Waiting for another set-up" in done.stdout
    assert clone.calls() == []


def test_a_python_path_of_ones_own_does_not_get_in(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('not to be imported')")
    done = clone.set_up("cpu", PYTHONPATH=str(tmp_path), PIP_TARGET=str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
