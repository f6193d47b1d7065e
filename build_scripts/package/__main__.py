"""Owns the order of a build, and what it tells: frozen program, lists, archives, sizes and times.

Must not know how any of it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from appliance import __version__
from build_scripts.package import deb, parts, share, tree
from build_scripts.package.freeze import freeze, start_s

ROOT = Path(__file__).resolve().parents[2]
SIZE_LIMIT_MB = 350  # without models, on a CPU
START_LIMIT_S = 0.5


def main(arguments: list[str]) -> int:
    """Make everything from the environment that this runs in; the exit code."""
    parser = argparse.ArgumentParser(prog="build")
    parser.add_argument("--extra", choices=("cpu", "gpu"), default="cpu")
    extra = parser.parse_args(arguments).extra
    epoch_s = int(os.environ["SOURCE_DATE_EPOCH"])
    work, out = ROOT / "build", ROOT / "dist"
    out.mkdir(exist_ok=True)
    package = deb.Package("appliance-cuda" if extra == "gpu" else "appliance", __version__)

    folder, origins = freeze(ROOT, work, epoch_s)
    share.write(folder, folder / "appliance", __version__, epoch_s)
    packages, others = parts.runtime_packages(extra), parts.other_parts(origins)
    (folder / "share" / "sbom.cdx.json").write_text(parts.bill_of_materials(packages, others))
    texts = (ROOT / "LICENSE").read_text() + "\n\n" + parts.licences(packages, others)
    (folder / "share" / "LICENSES.txt").write_text(texts)
    tree.settle(folder, epoch_s)

    named = folder.rename(folder.with_name(package.file_name))
    archives = [out / f"{package.file_name}.tar.zst", out / f"{package.file_name}.deb"]
    sums = out / f"{package.file_name}.sha256"
    sums.write_text(tree.sums_of(named))
    tree.pack(named, archives[0], epoch_s)
    deb.make(package, named, work, archives[1], epoch_s)

    size_mb = tree.size_of(named) / 1e6
    version_s = start_s(named / "appliance")
    figures = {
        "files": len(tree.files_of(named)),
        "packages": len(packages) + len(others),
        "unpacked_mb": round(size_mb, 1),
        "version_s": round(version_s, 3),
        **{f"{archive.name}_mb": round(archive.stat().st_size / 1e6, 1) for archive in archives},
    }
    (out / f"{package.file_name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    for name, figure in figures.items():
        print(f"{name:>40}  {figure}")
    failed = []
    if extra == "cpu" and size_mb > SIZE_LIMIT_MB:
        failed.append(f"The program is larger than {SIZE_LIMIT_MB} MB.")
    if version_s > START_LIMIT_S:
        failed.append(f"appliance --version takes longer than {START_LIMIT_S} s.")
    print("".join(f"Error: {line}\n" for line in failed), end="", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
