"""Owns what keeps a parse worker off the network: a filter of system calls, and a hook inside Python.

Must not know documents. Neither can be taken back, and programs that the worker starts inherit the filter.

The filter needs no privilege and nothing of the system but Linux on a processor that it knows; elsewhere the hook alone
refuses what Python code asks for. A network namespace would do the same, but may not be made in most containers, and
asking for one ends a process outright where systemd restricts system calls.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # classic BPF, 32 bits wide, absolute
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in the kernel's `seccomp_data`
_OTHER_ABI = 0x40000000  # numbers from here on are x32's names of the same calls
_IO_URING_SETUP = 425  # everywhere; makes sockets, too
# Machine → the kernel's name of the architecture, number of `socket`.
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198), "riscv64": (0xC00000F3, 198)}
_HARMLESS = frozenset({"socket.gethostname"})


def forbid_network() -> bool:
    """Have every new socket of this process and its children refused with `EPERM`; False if only Python's are."""
    filtered = _filter()
    sys.addaudithook(_refuse)
    return filtered


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event.startswith("socket.") and event not in _HARMLESS:
        raise PermissionError(errno.EPERM, "the reading of a document has no network")


def _filter() -> bool:
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    architecture, socket = _MACHINES[platform.machine()]
    # Jumps are counted from the next instruction on: all that are taken lead to the last but one, or to the last.
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 5, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 3, 0, _OTHER_ABI),
        (_EQUAL, 2, 0, socket),
        (_EQUAL, 1, 0, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    described = struct.pack("@HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(0)] * 3
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *arguments):
        return False
    return not libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), described, *arguments[:2])
