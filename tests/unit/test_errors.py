"""The error hierarchy as a whole: whatever is added to it must be tellable."""

from __future__ import annotations

import importlib
import pkgutil
import re

import appliance
from appliance.errors import ApplianceError, Overloaded


def every_error() -> set[type[ApplianceError]]:
    for module in pkgutil.walk_packages(appliance.__path__, "appliance."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type[ApplianceError]] = set()
    todo = [ApplianceError]
    while todo:
        found.add(todo[-1])
        todo += todo.pop().__subclasses__()
    return found


def test_every_error_has_a_code_a_status_and_an_exit_code() -> None:
    for error in every_error():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code), error
        assert 400 <= error.status < 600, error
        assert error.exit_code in (1, 2), error
        assert error.__doc__, error


def test_text_is_message_and_remedy() -> None:
    assert ApplianceError("It broke.", remedy="Mend it.").text == str(ApplianceError("It broke.", remedy="Mend it."))
    assert ApplianceError("It broke.").text == "It broke."
    assert Overloaded("Full.").text == "Full. Try again shortly."
