"""Owns the making of compound files (OLE2) for tests; nothing that is installed writes them.

Must not know what their streams mean.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

Folder: TypeAlias = "Mapping[str, bytes | Folder]"
_SECTOR, _SMALL, _CUTOFF = 512, 64, 4096
_END, _FREE, _TABLE, _NONE = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD, 0xFFFFFFFF


def compound(root: Folder) -> bytes:
    """A compound file of version 3 with these folders and streams."""
    sectors: list[bytes] = []
    chains: list[int] = []
    small: list[bytes] = []
    small_chains: list[int] = []
    entries: list[list[object]] = []  # name, kind, right sibling, first child, first sector, size

    def chained(data: bytes, into: list[bytes], table: list[int], size: int) -> int:
        first = len(into)
        pieces = [data[start : start + size].ljust(size, b"\0") for start in range(0, len(data), size)]
        into += pieces
        table += [*range(first + 1, first + len(pieces)), _END] if pieces else []
        return first if pieces else _END

    def add(name: str, item: bytes | Folder) -> int:
        place = len(entries)
        entries.append([name, 1, _NONE, _NONE, 0, 0])
        if isinstance(item, bytes):
            is_small = len(item) < _CUTOFF
            target = (small, small_chains, _SMALL) if is_small else (sectors, chains, _SECTOR)
            entries[place][1], entries[place][4:] = 2, [chained(item, *target), len(item)]
        else:
            before = None
            for child, inner in item.items():
                number = add(child, inner)
                entries[place if before is None else before][3 if before is None else 2] = number
                before = number
        return place

    add("Root Entry", root)
    whole = b"".join(small)
    entries[0][1], entries[0][4:] = 5, [chained(whole, sectors, chains, _SECTOR), len(whole)]
    small_table = b"".join(struct.pack("<I", item) for item in small_chains)
    first_small = chained(small_table, sectors, chains, _SECTOR)
    directory = b"".join(_entry(*entry) for entry in entries)  # type: ignore[arg-type]
    first_directory = chained(directory, sectors, chains, _SECTOR)
    tables = -(-(len(chains) + 1) // (_SECTOR // 4 - 1))
    places = range(len(sectors), len(sectors) + tables)
    table = struct.pack(f"<{len(chains) + tables}I", *chains, *[_TABLE] * tables).ljust(tables * _SECTOR, b"\xff")
    assert tables <= 109
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0x3E, 3, 0xFFFE, 9, 6, 0, tables, first_directory, 0, _CUTOFF,
        first_small, -(-len(small_table) // _SECTOR), _END, 0,
    )  # fmt: skip
    listed = struct.pack(f"<{tables}I", *places)
    return header + listed.ljust(_SECTOR - len(header), b"\xff") + b"".join(sectors) + table


def _entry(name: str, kind: int, right: int, child: int, sector: int, size: int) -> bytes:
    encoded = name.encode("utf-16-le")
    return struct.pack("<64sHBBIII36xIQ", encoded, len(encoded) + 2, kind, 1, _NONE, right, child, sector, size)
