"""Owns the command `python -m build_scripts.make_samples [--out FOLDER] [--cjk-font FILE]`.

Must not know how a format is written: `pdf` and `docx_file` do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import docx_file, markup, pdf

HERE = Path(__file__).parent
CONTENT = HERE / "content"
SHIPPED = HERE.parent.parent / "appliance" / "samples"
CJK_FONT = Path("/usr/share/fonts/truetype/wqy/wqy-microhei.ttc")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make_samples", description="Build the sample manuals.")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder for the built files")
    parser.add_argument("--cjk-font", type=Path, default=CJK_FONT, help="font of the Chinese manual")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    files = {
        "hx-200-pump-manual.pdf": pdf.build(*markup.load(CONTENT / "hx-200.txt"), pdf.latin()),
        "dg-45-generator-field-guide.docx": docx_file.build(*markup.load(CONTENT / "dg-45.txt")),
    }
    if options.cjk_font.is_file():
        face = pdf.cjk(options.cjk_font)
        files["kc-75-compressor-manual-zh.pdf"] = pdf.build(*markup.load(CONTENT / "kc-75.txt"), face)
    else:
        sys.stderr.write(
            f"No font at {options.cjk_font}; the Chinese manual is left as it is. "
            "Install the package fonts-wqy-microhei or name a font with --cjk-font.\n"
        )
    for name, data in files.items():
        (options.out / name).write_bytes(data)
        sys.stdout.write(f"{name}: {len(data)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
