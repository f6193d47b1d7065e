"""What the frozen program and its package are made of, without making them: lists, control data, unit, archives."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import appliance
from appliance import __version__
from appliance.cli.root import COMMANDS
from build_scripts.package import contents, deb, entry, parts, share, tree

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [*contents.WHOLE, *contents.MODULES, *contents.DATA, *contents.LIBRARIES])
def test_the_lists_name_what_there_is(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("package", contents.DATA)
def test_packages_with_data_have_data(package: str) -> None:
    assert any(path.suffix not in (".py", ".pyc", ".pyi", ".so") for path in _files(package))


@pytest.mark.parametrize("package", contents.LIBRARIES)
def test_packages_with_libraries_have_libraries(package: str) -> None:
    assert any(path.suffix == ".so" for path in _files(package))


def _files(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations, "a single module has no data"
    return [path for path in Path(next(iter(spec.submodule_search_locations))).rglob("*") if path.is_file()]


@pytest.mark.parametrize("package", contents.METADATA)
def test_metadata_is_of_installed_packages(package: str) -> None:
    assert distribution(package).version


def test_what_the_program_imports_by_a_fixed_name_is_listed() -> None:
    """PyInstaller follows `import`, also in functions, but no `import_module("…")`."""
    seen = set()
    for file in Path(appliance.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    seen.add(argument.value)
    assert seen, "the search finds nothing any more"
    assert seen <= set(contents.MODULES)
    assert all(module.startswith("appliance.") for module, _, _ in COMMANDS.values()), "collected as a whole"


def test_nothing_that_the_program_names_is_left_out() -> None:
    lines = [line for line in distribution("appliance").requires or () if "extra" not in line]
    needed = {parts.normal(line.partition("==")[0]) for line in lines}
    assert needed
    assert not {parts.normal(name) for name in contents.EXCLUDED} & needed


def test_compiled_companions_are_found_by_their_packages() -> None:
    (companion,) = contents.companions("chardet")
    assert importlib.util.find_spec(companion) is not None
    assert contents.companions("click") == []


CPUINFO = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu {flags}\n"


@pytest.mark.parametrize(
    ("cpuinfo", "lacking"),
    [
        (CPUINFO.format(flags=" ".join(entry.NEEDED)), []),
        (CPUINFO.format(flags=" ".join(entry.NEEDED[:-1])), [entry.NEEDED[-1]]),
        (CPUINFO.format(flags=""), sorted(entry.NEEDED)),
        ("processor: 0\nFeatures : fp asimd\n", []),
        ("", []),
    ],
)
def test_a_processor_that_lacks_what_is_needed_is_told_apart(cpuinfo: str, lacking: list[str]) -> None:
    assert entry.lacking(cpuinfo) == lacking


def test_runtime_packages_are_what_is_installed_with_the_program() -> None:
    names = {parts.normal(package.name) for package in parts.runtime_packages("cpu")}
    assert {"appliance", "onnxruntime", "llama-cpp-python", "msgspec", "markupsafe"} <= names
    assert not {"pytest", "mypy", "pyinstaller", "onnx", "sentencepiece", "faiss-cpu"} & names


def test_every_part_has_a_licence_and_a_version() -> None:
    packages = parts.runtime_packages("cpu")
    others = parts.other_parts({"libc.so.6": Path("/lib/none/libc.so.6")})
    text = parts.licences(packages, others)
    for package in packages:
        stated = text.partition(f"\n==== {package.name} {package.version}: ")[2].partition("\n")[0]
        assert stated, package.name
    assert "\n==== CPython 3." in text
    choices = [line.partition(": ")[2].split(" / ") for line in text.splitlines() if line.startswith("==== ")]
    # docutils names three licences; what is under the GPL is an Emacs mode, which its wheel does not hold.
    assert [words for words in choices if all("GPL" in word and "LGPL" not in word for word in words)] == []


@pytest.mark.parametrize("name", ["appliance", "appliance-cuda"])
def test_the_control_file_has_what_dpkg_needs(name: str) -> None:
    text = deb.control(deb.Package(name, "1.2.3"), 1025, "2.36")
    fields = dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith(" "))
    assert fields["Package"] == name
    assert fields["Installed-Size"] == "2"
    assert fields["Conflicts"] != name
    assert text.endswith(".\n")


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_the_maintainers_scripts_are_sound(script: str) -> None:
    text = (deb.HERE / script).read_text()
    assert text.startswith("#!/bin/sh\nset -e\n")
    subprocess.run(["sh", "-n", str(deb.HERE / script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(deb.HERE / script)], check=True)


def test_removal_keeps_what_purge_deletes() -> None:
    before, _, purge = (deb.HERE / "postrm").read_text().partition('"$1" = purge')
    assert "rm -rf" not in before + (deb.HERE / "prerm").read_text()
    assert "/var/lib/appliance" in purge


def test_everything_that_the_package_places_is_written() -> None:
    written = {f"systemd/{unit}" for unit in share.UNITS} | {f"completions/appliance.{shell}" for shell in share.SHELLS}
    written |= {"appliance.toml", "man/appliance.1.gz", "LICENSES.txt", "sbom.cdx.json"}
    assert {inside for inside, _ in deb.PLACES} == written
    assert all((ROOT / "systemd" / unit).is_file() for unit in share.UNITS)


def test_the_first_configuration_is_one(tmp_path: Path) -> None:
    from appliance import config

    settings = config.load(deb.HERE / "appliance.toml", environ={})
    assert settings.data_dir == "/var/lib/appliance"
    unit = (ROOT / "systemd" / "appliance.socket").read_text()
    assert f"ListenStream={settings.server.socket}\n" in unit
    assert f"ListenStream={settings.server.host}:{settings.server.port}\n" in unit


def test_the_man_page_names_every_command() -> None:
    page = share.man_page(__version__, 0)
    assert all(f".B {name}\n" in page for name in COMMANDS if name not in ("engine", "parse-worker"))
    assert "1970-01-01" in page
    if shutil.which("man"):
        done = subprocess.run(["man", "--warnings", "-l", "-"], input=page, capture_output=True, text=True, check=True)
        assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_unit_is_hardened() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20"]
    done = subprocess.run(
        [*command, str(ROOT / "systemd" / "appliance.service")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_stop_is_told_to_the_service_alone() -> None:
    """The engine ends after the answers under way; told at the same moment, it would cut them."""
    assert "\nKillMode=mixed\n" in (ROOT / "systemd" / "appliance.service").read_text()


def test_a_tree_is_the_same_from_every_build(tmp_path: Path) -> None:
    sums = []
    archives = []
    for number, mask in enumerate((0o022, 0o077)):
        folder = tmp_path / str(number) / "program"
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "a.so").write_bytes(b"a" * 1000)
        (folder / "lib" / "link.so").symlink_to("a.so")
        (folder / "run").write_text("#!/bin/sh\n")
        (folder / "run").chmod(0o755 & ~mask)
        (folder / "lib" / "a.so").chmod(0o644 & ~mask)
        tree.settle(folder, 1_700_000_000)
        sums.append(tree.sums_of(folder))
        archive = tmp_path / f"{number}.tar"
        tree.write_tar(folder, archive, 1_700_000_000)
        archives.append(archive.read_bytes())
    assert sums[0] == sums[1]
    assert archives[0] == archives[1]
    assert tree.size_of(tmp_path / "0" / "program") == 1000 + len("#!/bin/sh\n")
    with tarfile.open(tmp_path / "0.tar") as tar:
        modes = {entry.name: (oct(entry.mode), entry.uid, entry.mtime) for entry in tar if not entry.issym()}
    assert modes["program/run"] == ("0o755", 0, 1_700_000_000)
    assert modes["program/lib/a.so"] == ("0o644", 0, 1_700_000_000)


def test_sums_are_checked_by_sha256sum(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "名 name").write_text("x")
    (tmp_path / "sums").write_text(tree.sums_of(folder))
    subprocess.run(["sha256sum", "--check", "--strict", "../sums"], cwd=folder, check=True, capture_output=True)
