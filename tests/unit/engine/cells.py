"""A stand-in for the KV cells of a llama.cpp context: each cell holds what its KV depends on."""

from __future__ import annotations

from dataclasses import dataclass, field

Cell = tuple[str, tuple[int, ...]]  # label and all tokens up to and including the cell's own: what its KV depends on


@dataclass
class Cells:
    """A context: sequence → position → the id of a physical cell; and what each cell holds."""

    total: int
    seen: dict[int, dict[int, int]] = field(default_factory=dict)
    held: dict[int, Cell] = field(default_factory=dict)
    made: int = 0
    refuse: bool = False

    def of(self, sequence: int) -> dict[int, int]:
        return self.seen.setdefault(sequence, {})

    def used_cells(self) -> int:
        """Cells that some sequence sees."""
        return len({cell for cells in self.seen.values() for cell in cells.values()})

    def compute(self, sequence: int, position: int, cell: Cell) -> None:
        """What a decode does. There must be room, and no gap before."""
        assert self.used_cells() < self.total, "the context is full although the cells were promised"
        assert position not in self.of(sequence) and (position == 0 or position - 1 in self.of(sequence))
        self.made += 1
        self.held[self.made] = cell
        self.of(sequence)[position] = self.made

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for position in range(start, end):
            assert position not in self.of(target), "a sequence would see two cells at one position"
            self.of(target)[position] = self.of(source)[position]

    def remove(self, sequence: int, start: int, end: int) -> None:
        for position in [p for p in self.of(sequence) if p >= start and (end < 0 or p < end)]:
            del self.of(sequence)[position]

    def save(self, sequence: int) -> bytes:
        return repr({position: self.held[cell] for position, cell in self.of(sequence).items()}).encode()

    def load(self, sequence: int, data: bytes) -> bool:
        assert not self.of(sequence), "loaded into a sequence that is not empty"
        wanted: dict[int, Cell] = eval(data)  # noqa: S307  # of `save`
        if self.refuse or self.used_cells() + len(wanted) > self.total:
            return False
        for position, cell in wanted.items():
            self.made += 1
            self.held[self.made] = cell
            self.of(sequence)[position] = self.made
        return True
