"""Owns the reading of one HTTP answer that is a stream of server-sent events.

Must not know what the events say. By hand rather than by an HTTP client: a client takes 0.2 ms or more for each event,
on cores that the measured process needs too, and the peer would pay for what ours does not have.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"([0-9a-fA-F]+)[^\r\n]*\r\n")


class EventReader:
    """Turns the bytes of an HTTP/1.1 answer into the data of its events; one event may come in any pieces."""

    def __init__(self) -> None:
        self.status = 0  # once it is known
        self.body = bytearray()  # what is not yet an event; of another answer than 200, all of it
        self.ended = False
        self._raw = bytearray()
        self._chunked = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return the data of the events that are whole now."""
        self._raw += data
        if not self.status and not self._read_head():
            return []
        self._read_body()
        if self.status != 200:
            return []
        *events, rest = bytes(self.body).split(b"\n\n")
        self.body[:] = rest
        return [event[6:] for event in events if event.startswith(b"data: ")]

    def _read_head(self) -> bool:
        head, found, rest = bytes(self._raw).partition(b"\r\n\r\n")
        if not found:
            return False
        self.status = int(head.split(b" ", 2)[1])
        self._chunked = b"transfer-encoding: chunked" in head.lower()
        self._raw[:] = rest
        return True

    def _read_body(self) -> None:
        if not self._chunked:
            self.body += self._raw
            self._raw.clear()
        while self._chunked and (size := _SIZE.match(self._raw)):
            begin, length = size.end(), int(size[1], 16)
            if len(self._raw) < begin + length + 2:
                return
            self.body += self._raw[begin : begin + length]
            del self._raw[: begin + length + 2]
            self.ended = self.ended or not length
