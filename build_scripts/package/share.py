"""Owns what stands beside the program: man page, completions, units, the first configuration.

Must not know where an installation puts them.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from appliance.cli.root import COMMANDS, HIDDEN

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ("bash", "zsh", "fish")
UNITS = ("appliance.service", "appliance.socket", "gpu.conf.example", "lan.conf.example")


def man_page(version: str, epoch_s: int) -> str:
    """The manual's page, with every command that people call."""
    day = datetime.fromtimestamp(epoch_s, UTC).date().isoformat()
    listed = "".join(f".TP\n.B {name}\n{COMMANDS[name][2]}\n" for name in COMMANDS if name not in HIDDEN)
    return f"""\
.TH APPLIANCE 1 {day} "appliance {version}"
.SH NAME
appliance \\- answers from your documents, on this machine
.SH SYNOPSIS
.B appliance
[\\-\\-config FILE] [\\-\\-data\\-dir DIRECTORY] [\\-\\-set NAME=VALUE] COMMAND [ARGUMENTS]
.SH DESCRIPTION
Reads documents and answers questions about them with numbered citations, without a network.
While the service runs, the commands talk to it over its unix socket; only root and members of the group
.B appliance
may. Every command has
.BR \\-\\-help .
.SH COMMANDS
{listed}.SH FILES
.TP
.I /etc/appliance/appliance.toml
settings
.TP
.I /var/lib/appliance
documents, indexes, models
.SH SEE ALSO
.BR systemctl (1),
.BR journalctl (1)
"""


def write(tree: Path, program: Path, version: str, epoch_s: int) -> None:
    """Write `share/` of the tree.

    Raises:
        subprocess.CalledProcessError: the program does not give its completions.
    """
    share = tree / "share"
    for folder in ("systemd", "man", "completions"):
        (share / folder).mkdir(parents=True)
    for unit in UNITS:
        shutil.copyfile(ROOT / "systemd" / unit, share / "systemd" / unit)
    shutil.copyfile(Path(__file__).parent / "debian" / "appliance.toml", share / "appliance.toml")
    page = gzip.compress(man_page(version, epoch_s).encode(), mtime=0)
    (share / "man" / "appliance.1.gz").write_bytes(page)
    for shell in SHELLS:
        asked = os.environ | {"_APPLIANCE_COMPLETE": f"{shell}_source"}
        done = subprocess.run([str(program)], env=asked, check=True, stdout=subprocess.PIPE)
        (share / "completions" / f"appliance.{shell}").write_bytes(done.stdout)
