"""Owns the command line: what people type, what they read on a terminal.

Must not know how anything is computed: commands talk to a running service or open the data themselves.
"""

from appliance.cli.root import main

__all__ = ["main"]
