"""Owns the Debian package: where its files lie, its control data, what is a configuration file.

Must not know how the program was frozen. The maintainer's scripts are in `debian/`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from build_scripts.package.tree import settle, size_of

HERE = Path(__file__).parent / "debian"
LIBRARY = Path("usr/lib/appliance")
DOCUMENTATION = "usr/share/doc/appliance"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONFIGURATION = "/etc/appliance/appliance.toml"
SCRIPTS = ("postinst", "prerm", "postrm")
# What stands in share/ beside the program, and where it goes in the package.
PLACES = (
    ("systemd/appliance.service", "lib/systemd/system/appliance.service"),
    ("systemd/appliance.socket", "lib/systemd/system/appliance.socket"),
    ("systemd/gpu.conf.example", f"{DOCUMENTATION}/gpu.conf.example"),
    ("systemd/lan.conf.example", f"{DOCUMENTATION}/lan.conf.example"),
    ("appliance.toml", CONFIGURATION.lstrip("/")),
    ("man/appliance.1.gz", "usr/share/man/man1/appliance.1.gz"),
    ("completions/appliance.bash", "usr/share/bash-completion/completions/appliance"),
    ("completions/appliance.zsh", "usr/share/zsh/vendor-completions/_appliance"),
    ("completions/appliance.fish", "usr/share/fish/vendor_completions.d/appliance.fish"),
    ("LICENSES.txt", f"{DOCUMENTATION}/copyright"),
    ("sbom.cdx.json", f"{DOCUMENTATION}/sbom.cdx.json"),
)


@dataclass(frozen=True)
class Package:
    """A package by its name ("appliance" or "appliance-cuda") and version."""

    name: str
    version: str

    @property
    def architecture(self) -> str:
        """Debian's name of this machine's architecture; the kernel's where Debian has none."""
        return ARCHITECTURES.get(platform.machine(), platform.machine())

    @property
    def file_name(self) -> str:
        """Name of its files, without what they end in."""
        return f"{self.name}_{self.version}_{self.architecture}"


def control(package: Package, size_bytes: int, libc: str) -> str:
    """The control file; `libc` is the version that the program was linked on."""
    other = "appliance" if package.name != "appliance" else "appliance-cuda"
    return f"""\
Package: {package.name}
Version: {package.version}
Architecture: {package.architecture}
Maintainer: The appliance's makers <appliance@localhost>
Installed-Size: {-(-size_bytes // 1024)}
Depends: libc6 (>= {libc}), adduser, init-system-helpers
Conflicts: {other}
Replaces: {other}
Section: misc
Priority: optional
Description: answers from your documents, on this machine
 Reads manuals, procedures and tables in English and Chinese, and answers
 questions about them with numbered citations. Search, reranking and text
 generation run on this machine; it needs no network. Programs talk to it over
 HTTP as they talk to OpenAI. Models are imported after the installation.
"""


def make(package: Package, tree: Path, work: Path, archive: Path, epoch_s: int) -> None:
    """Write the package of the program in `tree`.

    Raises:
        subprocess.CalledProcessError: dpkg-deb failed; it has said why.
    """
    root = work / "deb"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(tree, root / LIBRARY, symlinks=True, ignore=shutil.ignore_patterns("share"))
    for inside, place in PLACES:
        target = root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / "share" / inside, target)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/appliance").symlink_to("../lib/appliance/appliance")
    size_bytes = size_of(root)
    meta = root / "DEBIAN"
    meta.mkdir()
    (meta / "control").write_text(control(package, size_bytes, platform.libc_ver()[1]))
    (meta / "conffiles").write_text(CONFIGURATION + "\n")
    for name in SCRIPTS:
        shutil.copyfile(HERE / name, meta / name)
        (meta / name).chmod(0o755)
    settle(root, epoch_s)
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z10", "--build", str(root), str(archive)]
    steady = {"SOURCE_DATE_EPOCH": str(epoch_s)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | steady)
