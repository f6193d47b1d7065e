"""Owns the vectors of one collection: hot ones in memory, cold segments on the disk, and what moves between them.

Must not know text, collections or the store.

    add ─▶ hot (open) ─ full ─▶ hot (frozen) ─ sealed ─▶ segment ─ merged ─▶ larger segment
    expect ─▶ pending, read through `fetch` in every search ─ read ─▶ hot

All of it is one immutable `View`; a change makes another and swaps it in, so a search keeps the one it began with and
waits for nothing. Writers share a lock that is held for short; the slow work (`maintain`) is done on the side and takes
the lock to swap its result in. What was removed meanwhile is removed from the result.

On its own, without the appliance:

    tier = TieredVectors(Path("index"), dim=384)
    tier.add(ids, vectors)           # (n,) int64, (n, 384) float32 of unit length
    tier.settle()                    # seal and merge now; or call maintain() from a thread of yours
    ids, cosines = tier.search(vector, 10, target=0.95)
    tier.close()                     # saves; a crash before loses what was added since the last seal
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from appliance.retrieval.dense import files, state
from appliance.retrieval.dense.hot import Hot
from appliance.retrieval.dense.merge import Merge
from appliance.retrieval.dense.policy import Limits, SegmentSize, segments_to_merge
from appliance.retrieval.dense.segment import Cancelled, Segment, write_segment
from appliance.retrieval.dense.types import DEFAULT_TARGET, Asked, Floats, Hits, Ids
from appliance.retrieval.dense.vectors import Halves, check_vectors
from appliance.retrieval.dense.view import READ_AT_ONCE, Fetch, View

log = logging.getLogger(__name__)

_FROZEN = 4  # full hot tiers that may wait to be sealed; then whoever adds seals them


class TieredVectors:
    """A `DenseTier` of any size. Searches run in many threads beside one writer and one that maintains."""

    def __init__(
        self,
        folder: Path,
        dim: int,
        *,
        label: str = "",
        newest: int | None = None,
        fetch: Fetch | None = None,
        limits: Limits | None = None,
        threads: int = 1,
    ) -> None:
        """Open what is in `folder`, in well under a second; what of it is not whole is left out.

        Args:
            folder: where the files are; made if need be.
            dim: length of the vectors.
            label: what of another label is in the folder is not taken.
            newest: generation of the store; what is of a later one is not taken. None: all is.
            fetch: reads stored vectors `(n, dim)` float16 for `expect`; rows of NaN for those that are gone.
            limits: sizes at which what is done.
            threads: of the construction of segments; with one the same vectors make the same segment.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder = folder
        self._dim = dim
        self._label = label
        self._limits = limits or Limits()
        self._threads = threads
        self._lock = threading.RLock()  # held by whoever makes another view
        self._upkeep = threading.Lock()  # held by whoever does slow work or writes a manifest
        self._closing = False
        self._overtaken = False
        self.damaged = False
        """A part was found damaged and left out after opening; compare `ids` with what they should be."""
        folder.mkdir(parents=True, exist_ok=True)
        loaded = state.load(folder, label, dim, newest)
        self._number = loaded.number
        self.generation = loaded.generation
        """Of the store, as the next manifest will name it; the owner sets it."""
        self._unverified = list(loaded.unverified)
        self._view = View(loaded.segments, (Hot.empty(dim),), np.empty(0, np.int64), fetch)
        self._append(*loaded.hot)  # several full ones may have been saved as one
        self._changed = False  # since the last manifest
        if loaded.foreign:
            # At once: if the store came to the generation of what is there, it would be taken for its own.
            self._publish(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def ids(self) -> Ids:
        """Ids that are alive, sorted."""
        return self._view.ids()

    def among(self, ids: Ids) -> Ids:
        """Those of `ids` that are there, in no order."""
        return self._view.among(ids)

    def view(self) -> View:
        """What is in it now; it stays searchable as it is, whatever happens to the tier."""
        return self._view

    def search(
        self,
        vector: Floats,
        k: int,
        *,
        target: float = DEFAULT_TARGET,
        within: Ids | None = None,
        notes: list[Asked] | None = None,
    ) -> Hits:
        """See `DenseView`.

        Raises:
            ValueError: `target` is none of `TARGETS`.
        """
        return self._view.search(vector, k, target=target, within=within, notes=notes)

    def cosines(self, vector: Floats, ids: Ids) -> Floats:
        """Exact cosine of each id `(n,)`, NaN where it is not there."""
        return self._view.cosines(vector, ids)

    def add(self, ids: Ids, vectors: Floats) -> None:
        """Add unit `vectors` `(n, dim)` under new `ids` `(n,)`; searchable on return.

        When vectors come faster than segments are built, this builds them, and takes as long.

        Raises:
            ValueError: an id is there already, or a vector is not finite or not of unit length; nothing was added.
            OSError: it had to write a segment, and could not; the vectors were added.
        """
        ids = np.asarray(ids, np.int64)
        check_vectors(vectors)
        with self._lock:
            if len(np.unique(ids)) < len(ids) or len(self.among(ids)):
                raise ValueError("a vector of that id is already there")
            self._append(ids, np.asarray(vectors, np.float16))
        while len(self._view.hots) > _FROZEN + 1 and self.maintain():
            pass

    def expect(self, ids: Ids) -> None:
        """Add ids whose vectors `fetch` reads: in every search, until `maintain` has read them for good."""
        with self._lock:
            new = np.setdiff1d(ids, self.among(ids))
            self._swap(replace(self._view, pending=np.union1d(self._view.pending, new)))

    def remove(self, ids: Ids) -> None:
        """Remove ids; those that are not there are passed over. Who searches still finds them until it is done."""
        wanted = np.unique(np.asarray(ids, np.int64))
        with self._lock:
            there = self._view.among(wanted)
            if len(there):
                self._swap(self._view.without(there))

    def maintain(self, *, quiet: bool = False) -> bool:
        """Do the next piece of slow work, if there is any; whether there was. Searches go on beside it.

        When nothing has changed for a while, `quiet` finds more to do: it makes few segments of many.

        Raises:
            OSError: the disk is full or not writable; nothing is lost, and the work is still to be done.
        """
        with self._upkeep:
            if self._closing or self._overtaken:
                return False
            view = self._view
            try:
                if self._unverified:
                    self._verify(self._unverified.pop())
                elif len(view.hots) > _FROZEN or (len(view.hots) > 1 and not len(view.pending)):
                    self._seal()
                elif len(view.pending):
                    self._read_pending()
                elif view.hots[-1].count - view.hots[-1].walked > self._limits.exact:
                    self._extend_graph()
                else:
                    return self._merge(quiet)
            except Cancelled:
                return False
            except files.Overtaken:
                log.warning("another process wrote a newer index; this one is not written any more")
                self._overtaken = True
                return False
            return True

    def settle(self) -> None:
        """Do all slow work now, that of a quiet time too, and seal what is hot."""
        with self._lock:
            if self._view.hots[-1].count:
                self._swap(replace(self._view, hots=(*self._view.hots, Hot.empty(self._dim))))
        while self.maintain(quiet=True):
            pass

    def verify(self) -> list[str]:
        """Read every file from end to end; what is not as it was written, a sentence each."""
        return [f"{one.folder.name} is damaged" for one in self._view.segments if not one.verify()]

    def close(self) -> None:
        """End the slow work and save what changed since it was last saved.

        Raises:
            OSError: the disk is full or not writable; the owner has to add again what is not in the files.
        """
        self._closing = True
        with self._upkeep, self._lock:
            if self._changed and not self._overtaken:
                try:
                    self._publish(self._view, hot=True)
                except files.Overtaken:
                    self._overtaken = True

    def _wanted(self) -> bool:
        return not self._closing

    def _swap(self, view: View) -> None:
        """Another view; the lock is held."""
        self._view = view
        self._changed = True

    def _append(self, ids: Ids, vectors: Halves, pending: Ids | None = None) -> None:
        hots = list(self._view.hots)
        begin = 0
        while begin < len(ids):
            end = min(len(ids), begin + self._limits.seal - hots[-1].count)
            hots[-1] = hots[-1].with_added(ids[begin:end], vectors[begin:end])
            if hots[-1].count >= self._limits.seal:
                hots.append(Hot.empty(self._dim))
            begin = end
        self._swap(replace(self._view, hots=tuple(hots), pending=self._view.pending if pending is None else pending))

    # Slow work. `_upkeep` is held; `_lock` is taken to swap the result in.

    def _verify(self, segment: Segment) -> None:
        if not segment.verify():
            log.warning("the index part %s is damaged and will be built again", segment.folder.name)
            with self._lock:
                kept = tuple(one for one in self._view.segments if one.series is not segment.series)
                self._swap(replace(self._view, segments=kept))
                self.damaged = True

    def _read_pending(self) -> None:
        ids = self._view.pending[:READ_AT_ONCE]
        vectors = self._view.read(ids)
        with self._lock:
            there = np.isin(ids, self._view.pending) & ~np.isnan(vectors[:, 0])
            self._append(ids[there], vectors[there], np.setdiff1d(self._view.pending, ids))

    def _extend_graph(self) -> None:
        hot = self._view.hots[-1]
        made = hot.graph_over(self._wanted)
        if made is None:
            return
        with self._lock:
            hots = list(self._view.hots)
            for place, one in enumerate(hots):  # more may have been added, or it was frozen
                if one.series is hot.series:
                    hots[place] = one.with_graph(made[0], hot.count, made[1])
            self._swap(replace(self._view, hots=tuple(hots)))

    def _seal(self) -> None:
        self._rewrite((), self._view.hots[:-1])

    def _merge(self, quiet: bool) -> bool:
        segments = self._view.segments
        sizes = [SegmentSize(one.size, one.alive) for one in segments]
        chosen = segments_to_merge(sizes, self._limits, quiet=quiet)
        if chosen:
            self._rewrite([segments[place] for place in chosen], ())
        return bool(chosen)

    def _rewrite(self, segments: Sequence[Segment], hots: Sequence[Hot]) -> None:
        """Make one segment of what is alive in these parts, and put it in their place."""
        parts: tuple[Segment | Hot, ...] = (*segments, *hots)
        merge = Merge(parts)
        new: list[Segment] = []
        if len(merge.ids):
            path = write_segment(self._folder, merge.ids, merge.blocks, self._dim, self._wanted, self._threads)
            new = [Segment(path, self._dim)]
        with self._lock:
            view = self._view
            now = {part.series: part for part in view.parts}
            new = [segment.without(merge.died_since(now)) for segment in new]
            replaced = {part.series for part in parts}
            kept = replace(
                view,
                segments=(*(one for one in view.segments if one.series not in replaced), *new),
                hots=tuple(one for one in view.hots if one.series not in replaced),
            )
            try:
                self._publish(kept)
            except (OSError, files.Overtaken):
                for segment in new:
                    shutil.rmtree(segment.folder, ignore_errors=True)
                raise
            self._swap(kept)

    def _publish(self, view: View, *, hot: bool = False) -> None:
        """Write a manifest; the files of its segments are there."""
        hots = view.hots if hot else ()
        state.save(self._folder, self._number + 1, self._label, self._dim, self.generation, view.segments, hots)
        self._number += 1
        self._changed = not hot
