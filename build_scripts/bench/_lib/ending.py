"""Owns how a benchmark's command ends: with nothing to say, or with one line that says what is wrong.

Must not know what was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from appliance.errors import ApplianceError


def exit_code(run: Callable[[], None]) -> int:
    """Run a command; its exit code."""
    try:
        run()
    except ApplianceError as error:
        print(f"Error: {error.text}", file=sys.stderr)
        return error.exit_code
    return 0
