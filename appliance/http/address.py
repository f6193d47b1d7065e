"""Owns the addresses the service listens on: a port and a unix socket, bound before anything else.

Must not know the server that accepts on them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from appliance.config import Settings
from appliance.errors import ApplianceError, BadSetting, DataDirBusy

MAX_SOCKET_PATH_BYTES = 100  # Linux has room for 107, other systems for 103
BACKLOG = 1024


class CannotListen(ApplianceError):
    """An address cannot be bound."""

    code = "cannot_listen"


def socket_path(settings: Settings) -> Path:
    """Where the unix socket of the service over this data directory is.

    In the data directory; when that path is too long for a socket, under a short name of its own in the
    user's runtime folder.

    Raises:
        BadSetting: `server.socket` is too long.
    """
    named = settings.server.socket
    path = Path(named).expanduser().absolute() if named else settings.data_path / "appliance.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    if named:
        raise BadSetting(
            f"server.socket is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}.",
            remedy="A unix socket needs a shorter path.",
            param="server.socket",
        )
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) if runtime else _shared_folder()
    digest = hashlib.sha256(os.fsencode(settings.data_path)).hexdigest()[:16]
    return folder / f"appliance-{digest}.sock"


def _shared_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"appliance-{os.getuid()}"


def bind_port(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        BadSetting: `host` is neither an address nor "localhost"; no name is looked up.
        CannotListen: the port is taken, or not allowed, or the address is not this machine's.
    """
    address = "127.0.0.1" if host.lower() == "localhost" else host.strip("[]")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise BadSetting(
            f"server.host is {host!r}, which is no address.",
            remedy="Use 127.0.0.1 for this machine alone, 0.0.0.0 or :: for all its networks, or one of its addresses.",
            param="server.host",
        ) from None
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        # Ports of connections that ended a moment ago are free; a port that is listened on is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(error, address, port) from error
    listener.setblocking(False)
    return listener


def given_port(given: Sequence[socket.socket]) -> socket.socket | None:
    """The TCP socket among those that a service manager opened and gave."""
    found = next((one for one in given if one.family in (socket.AF_INET, socket.AF_INET6)), None)
    if found is not None:
        found.setblocking(False)
    return found


def is_exposed(listener: socket.socket) -> bool:
    """Whether other machines may reach a listening socket."""
    if listener.family == socket.AF_UNIX:
        return False
    return not ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _cannot_listen(error: OSError, address: str, port: int) -> CannotListen:
    if error.errno == errno.EADDRINUSE:
        reason, remedy = "is in use by another program", "Choose another one: appliance serve --port NUMBER"
    elif error.errno == errno.EACCES:
        reason, remedy = "is reserved for the system", "Choose one above 1023: appliance serve --port NUMBER"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason, remedy = "cannot be listened on: this machine has no such address", "Set server.host to one it has."
    else:
        reason, remedy = f"cannot be listened on: {error.strerror}", ""
    return CannotListen(f"Port {port} on {address} {reason}.", remedy=remedy, param="server.port")


class UnixListener:
    """A listening unix socket that those may connect to who have the right to write its file; the file goes with it.

    Args:
        path: of the file.
        mode: of the file: 0o600 is for this user alone, 0o660 for the members of its group too.

    Raises:
        DataDirBusy: another service answers there.
        CannotListen: the path cannot be used, or others could put a socket of their own in its place.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self._bind()
        except OSError as error:
            self.socket.close()
            raise CannotListen(f"The socket {path} cannot be made: {error.strerror}.") from error
        except ApplianceError:
            self.socket.close()
            raise

    def _bind(self) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Anyone may make this folder before us; the other ones are named by the user.
        if folder == _shared_folder() and folder.lstat().st_uid != os.getuid():
            raise CannotListen(f"The folder {folder} belongs to somebody else.", remedy="Set server.socket.")
        if _anyone_may_replace(folder):
            raise CannotListen(
                f"Anyone may replace files in {folder}, and with that the socket.",
                remedy=f"Set server.socket to a path in a folder of the service's user, or: chmod o-w {folder}",
                param="server.socket",
            )
        self._clear_stale()
        before = os.umask(0o177)  # never, not even for a moment, open to others
        try:
            self.socket.bind(str(self.path))
        finally:
            os.umask(before)
        self.path.chmod(self._mode)  # nobody can connect before it listens
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)
        self._inode = self.path.stat().st_ino

    def _clear_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise CannotListen(f"{self.path} exists and is not a socket.", remedy="Set server.socket to another path.")
        if answers(self.path):
            raise DataDirBusy(
                f"Another service already answers on {self.path}.",
                remedy="Stop it first, or use another data directory.",
            )
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop listening and remove the file, unless it is another's by now."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()


class GivenUnixListener:
    """A unix socket that a service manager opened and gave; who may connect, and its file, are the manager's matter."""

    def __init__(self, listener: socket.socket) -> None:
        self.path = Path(listener.getsockname())
        self.socket = listener
        listener.setblocking(False)

    def close(self) -> None:
        """Stop listening; what comes from now on waits for the next service."""
        self.socket.close()


def given_unix(given: Sequence[socket.socket]) -> GivenUnixListener | None:
    """The unix socket among those that a service manager opened and gave."""
    return next((GivenUnixListener(one) for one in given if one.family == socket.AF_UNIX), None)


def _anyone_may_replace(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def require_own(path: Path) -> None:
    """Refuse to talk to a socket that somebody else may have put there to be told what is meant for the service.

    Raises:
        CannotListen: it lies where anyone may make files, and is neither of this user nor of root.
    """
    made_by = path.stat().st_uid
    if path.parent.stat().st_mode & stat.S_IWOTH and made_by not in (os.getuid(), 0):
        raise CannotListen(
            f"The socket {path} belongs to another user (number {made_by}), in a folder where anyone may make one.",
            remedy="Set server.socket to a path in a folder of the service's user.",
            param="server.socket",
        )


def answers(path: Path) -> bool:
    """Whether somebody accepts connections on the unix socket `path`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except OSError as error:
            # A full backlog means that somebody is there, only busy.
            return error.errno == errno.EAGAIN or isinstance(error, TimeoutError)
        return True
