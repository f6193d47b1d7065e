"""Owns the talk with the service manager: what sd_notify(3) and sd_listen_fds(3) say, over plain sockets.

Must not know what is told, or who listens on the sockets. Without a service manager every call does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_FIRST_FD = 3
_LISTEN_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_LONGEST = 800  # characters of a value; a message of more than 4,096 bytes is not read at all


class Notifier:
    """Tells the service manager how the service is.

    Attributes:
        watchdog_s: how often it wants `WATCHDOG=1` at least; None: it does not watch.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        # Not for children: what they might say would count as said by the service.
        name = environ.pop("NOTIFY_SOCKET", "")
        period = environ.pop("WATCHDOG_USEC", "")
        watched = environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.watchdog_s = int(period) / 1e6 if watched and period.isdecimal() and int(period) else None
        self._address = "\0" + name[1:] if name.startswith("@") else name

    @property
    def listening(self) -> bool:
        """Whether there is a service manager to tell."""
        return bool(self._address)

    def tell(self, **fields: str | int) -> bool:
        """Send `FIELD=value` lines in one message; of a value, its first line.

        Returns:
            Whether it was taken. A manager that does not take it now is not waited for: what matters is said again.
        """
        if not self._address:
            return False
        lines = "\n".join(f"{name}={_line(value)}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.setblocking(False)
                to.sendto(lines.encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        return True


def _line(value: str | int) -> str:
    return next(iter(str(value).splitlines()), "")[:_LONGEST]


def listeners(environ: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The listening sockets that the service manager opened for this process; to be taken once."""
    count, owner, _ = (environ.pop(variable, "") for variable in _LISTEN_VARIABLES)
    if owner != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for number in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(number, False)
        found.append(socket.socket(fileno=number))
    return found
