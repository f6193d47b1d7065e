"""Owns the prefix cache: a radix tree over token ids whose nodes own KV cells of the one context, or a copy outside it.

Must not know llama.cpp, requests or policy. As in SGLang's RadixAttention (arXiv 2312.07104), prefixes are matched
by comparing tokens, never hashes. What is ours: a node's cells belong to a sequence id of its own, so that sharing,
splitting and giving up are range operations; and a tree for each isolation label, so that nothing is shared across.

    in the context ──evict──▶ saved outside ──drop──▶ gone          a node is never nearer than its parent
          ▲──────restore──────────┘
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from appliance.engine.radix import KV, NO_SEQUENCE, InMemory, Node, Saved, common_length

WORTH_SAVING_TOKENS = 8  # a shorter range is not worth a place of its own
WORTH_KEEPING_HITS = 2  # requests that found a range again: it goes to the disk, if there is one
PIN_SHARE = 4  # of all cells, and of all sequence ids, one in so many may be pinned


@dataclass(eq=False, slots=True)
class Lease:
    """A running sequence's hold on the tree. Cells at `[0, shared)` are the tree's, the rest its own."""

    slot: int
    node: Node  # the deepest node on its path; holds position `shared`, or ends there
    shared: int
    cells: int  # that it may need at most, the shared ones included


@dataclass(slots=True)
class PrefixStats:
    """What happened since the start."""

    evicted: int = 0
    evicted_tokens: int = 0
    saved: int = 0
    restored: int = 0
    restored_tokens: int = 0
    lost: int = 0  # saved, but not to be had again


class PrefixCache:
    """All prefixes of one context, and the account of its cells.

    Args:
        kv: the context.
        cells: how many it has.
        sequences: ids that nodes may use; slots of running sequences are others.
        host_bytes: memory for ranges that had to leave the context; 0: none is kept.
        idle_cells: of ranges that nobody uses, so many may stay in the context; those over it go to memory, if there
            is any for them. None: all may stay.
    """

    def __init__(
        self, kv: KV, cells: int, sequences: Sequence[int], host_bytes: int, idle_cells: int | None = None
    ) -> None:
        self._kv = kv
        self.cells = cells
        self._free_ids = list(sequences)[::-1]
        self._most_pinned = len(self._free_ids) // PIN_SHARE
        self._pinned = 0
        self._host_limit = host_bytes
        self._idle_limit = cells if idle_cells is None or not host_bytes else idle_cells
        self.host_bytes = 0
        self.cached_cells = 0  # of nodes in the context
        self._promised = 0  # to leases, beyond what they share
        self._pinned_cells = 0
        self._roots: dict[str, Node] = {}
        self._ticks = itertools.count(1)
        self._holds: dict[int, int] = {}  # id of a saved range → nodes that refer to it
        self._dooms = False  # whether there may be nodes to be forgotten when nobody uses them any more
        self.stats = PrefixStats()

    # ── what there is ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free_cells(self) -> int:
        """Cells that are neither cached nor promised."""
        return self.cells - self.cached_cells - self._promised

    @property
    def pinned_cells(self) -> int:
        """Cells of prefixes that are never given up, in the context or outside it."""
        return self._pinned_cells

    def room(self) -> int:
        """Cells that a new lease may have: free ones, and those of nodes that can be evicted."""
        return self.free_cells + self._idle_cells()

    def quote(self, label: str, tokens: Sequence[int], cells: int) -> tuple[int, int]:
        """What a request would take of `room()`, and how many of its tokens would not be computed."""
        node, length = self._match(label, tokens)
        held = 0
        for step in node.path():
            if step.in_context and not self._evictable(step):
                held = min(step.end, length)
        return cells - held, length

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """All nodes with their label, parents first."""
        for label, root in self._roots.items():
            for node in root.below():
                yield label, node

    def path_tokens(self, node: Node) -> list[int]:
        """All tokens from the root to the node's end."""
        return [token for step in node.path() for token in step.tokens]

    # ── leases ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def acquire(self, label: str, tokens: Sequence[int], cells: int, slot: int) -> Lease | None:
        """Give an empty slot the longest cached prefix of `tokens`, and promise it the rest of `cells`.

        The last token of `tokens` is never taken from the cache: its logits are wanted. None, and nothing changed but
        that others may have left the context, when there is no room.
        """
        node, length = self._match(label, tokens, create=True)
        if length < node.end:  # held in part, the whole node would have to stay
            upper = self._split(node, length)
            node = upper or node.parent or node
            length = node.end
        path = node.path()
        for step in path:
            step.users += 1
        near = next((step.start for step in path if not step.in_context), length)
        if not self._make_room(cells - near):
            for step in path:
                step.users -= 1
            self._prune(node)
            return None
        lease = Lease(slot, path[0], 0, cells)
        self._promised += cells
        tick = next(self._ticks)
        for at, step in enumerate(path):
            if not step.in_context and not self._restore(step):
                for rest in path[at:]:
                    rest.users -= 1
                if step.saved is None:
                    self._forget(step)
                break
            lease.node = step
            self._share(lease, step.end)
            step.used = tick
            step.hits += 1
        return lease

    def advance(self, lease: Lease, tokens: Sequence[int]) -> int:
        """Take what others have computed meanwhile beyond `lease.shared`, where the lease itself has nothing.

        Returns the new length of what is shared.
        """
        self._settle(lease)
        tick = next(self._ticks)
        while lease.shared < len(tokens) - 1:
            node = lease.node
            if lease.shared == node.end:
                child = node.children.get(tokens[lease.shared])
                if child is None or child.sequence == NO_SEQUENCE:
                    break
                child.users += 1
                lease.node = node = child
            common = common_length(node.tokens, lease.shared - node.start, tokens, lease.shared, len(tokens) - 1)
            if common == 0:
                break
            self._share(lease, lease.shared + common)
            node.used = tick
        return lease.shared

    def freed(self, lease: Lease) -> int:
        """Cells that others could have if the lease were released: not those that others share, nor pinned ones."""
        alone = (s for s in lease.node.path() if s.users == 1 and not s.pinned and not s.is_root)
        return lease.cells - lease.shared + sum(max(0, min(s.end, lease.shared) - s.start) for s in alone)

    def extend(self, lease: Lease, tokens: Sequence[int], computed: int) -> None:
        """Make `tokens[:computed]`, whose cells the lease's slot holds, known to the tree.

        Where another computed the same meanwhile, the slot's own cells are given up for the tree's. What cannot be
        kept (no sequence id is left) stays the slot's own.
        """
        self._settle(lease)
        tick = next(self._ticks)
        while lease.shared < computed:
            node, at = lease.node, lease.shared
            if at < node.end:
                common = common_length(node.tokens, at - node.start, tokens, at, computed)
                if common:
                    self._kv.remove(lease.slot, at, at + common)
                    self._share(lease, at + common)
                elif (upper := self._split(node, at)) is None:
                    return
                else:
                    node.users -= 1  # `_split` counts the lease on both parts; it goes on from the upper one
                    lease.node = upper
                continue
            child = node.children.get(tokens[at])
            if child is None:
                if not self._grow(lease, tokens, computed):
                    return
            elif child.sequence == NO_SEQUENCE:
                if not self._refill(child, lease, tokens, computed):
                    return
            else:
                child.users += 1
                lease.node = child
            lease.node.used = tick

    def release(self, lease: Lease) -> None:
        """Free the slot; what the tree knows of it stays cached."""
        self._end(lease)
        self._prune(lease.node)
        self._reap()
        while self._idle_cells() > self._idle_limit:
            self._evict()

    def _end(self, lease: Lease) -> None:
        self._promised -= lease.cells - lease.shared
        for step in lease.node.path():
            step.users -= 1
        self._kv.remove(lease.slot, 0, -1)

    def drop(self, lease: Lease) -> None:
        """Free the slot, and forget what nobody else needs of its path: its KV is not to be trusted."""
        node = lease.node
        self._end(lease)
        self._prune(node)
        while not node.is_root and node.users == 0 and not node.children:
            parent = node.parent or node
            if node.in_context:
                self._leave(node)
            self._forget(node)
            node = parent
        self._reap()

    def pin(self, lease: Lease, length: int) -> None:
        """Never evict the first `length` tokens of the lease, all shared; no effect where the pin budget is spent."""
        if length > lease.shared:
            return
        self._settle(lease)
        node = lease.node
        while node.start >= length and node.parent is not None:
            node = node.parent
        if node.end > length:
            upper = self._split(node, length)
            if upper is None:
                return
            node = upper
        path = [step for step in node.path() if not step.pinned and not step.is_root]
        if self._may_pin(path):
            for step in path:
                self._set_pinned(step)
                step.kept = False  # what was written of it may hold more, and is not known as pinned
                step.doomed = False

    def forget(self) -> None:
        """Forget all but pinned prefixes; what leases use, as soon as none of them does.

        Of a pinned one, what was saved together with what followed it is given up too.
        """
        self._dooms = True
        for _, node in reversed(list(self.nodes())):
            apart = node.saved is None or _is_saved_alone(node)
            if node.pinned and (apart or node.in_context):
                if not apart:
                    self._let_go(node)
                continue
            self._let_go(node)
            node.doomed = True
        self._reap()

    def clear(self) -> None:
        """Forget everything. No lease may be open."""
        for _, node in list(self.nodes()):
            if node.in_context:
                self._leave(node)
            self._let_go(node)
        self._roots.clear()
        self._pinned = self._pinned_cells = 0

    # ── saved ranges from elsewhere ────────────────────────────────────────────────────────────────────────────────

    def adopt(self, label: str, tokens: Sequence[int], saved: Saved, *, pinned: bool) -> bool:
        """Make a saved range known, whose tokens end a path; False where its beginning is not known."""
        node, length = self._match(label, [*tokens, -1], create=True)
        if length >= saved.end:
            return True
        if length < node.end:
            node = self._split(node, length) or node
        if length != saved.start or length != node.end:
            self._prune(node)
            return False
        child = Node(node, saved.start, list(tokens[saved.start : saved.end]), used=next(self._ticks), kept=True)
        node.children[child.tokens[0]] = child
        self._hold(child, saved)
        if pinned and (node.pinned or node.is_root) and self._may_pin([child]):
            self._set_pinned(child)
        return True

    def to_keep(self) -> tuple[str, Node, bytes] | None:
        """A range that is worth having after a restart and was not handed out yet, with its KV.

        Pinned ones and those that were found again, their beginnings first.
        """
        for label, node in self.nodes():
            parent = node.parent
            if not _is_to_be_kept(node) or parent is None or not (parent.kept or parent.is_root):
                continue
            saved = node.saved
            if node.in_context:
                data = self._kv.save(node.sequence)
            elif saved and _is_saved_alone(node) and (read := saved.read()) is not None:
                data = read
            else:
                continue
            node.kept = True
            return label, node, data
        return None

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_pin(self, nodes: Sequence[Node]) -> bool:
        cells = self._pinned_cells + sum(len(node.tokens) for node in nodes)
        return cells * PIN_SHARE <= self.cells and self._pinned + len(nodes) <= self._most_pinned

    def _set_pinned(self, node: Node) -> None:
        node.pinned = True
        self._pinned += 1
        self._pinned_cells += len(node.tokens)

    def _match(self, label: str, tokens: Sequence[int], *, create: bool = False) -> tuple[Node, int]:
        """The deepest node that begins as `tokens` do, and how long that is; the last token is left out."""
        node = self._roots.get(label)
        if node is None:
            node = Node(None, 0, [])
            if create:
                self._roots[label] = node
        length, most = 0, len(tokens) - 1
        while length < most and (child := node.children.get(tokens[length])) is not None:
            common = common_length(child.tokens, 0, tokens, length, most)
            node, length = child, length + common
            if common < len(child.tokens):
                break
        return node, length

    def _nodes(self) -> Iterator[Node]:
        return (node for _, node in self.nodes())

    def _idle_cells(self) -> int:
        return sum(len(node.tokens) for node in self._nodes() if self._evictable(node))

    def _evictable(self, node: Node) -> bool:
        return node.sequence != NO_SEQUENCE and node.users == 0 and not node.pinned

    def _share(self, lease: Lease, end: int) -> None:
        """Give the slot the node's cells from `lease.shared` to `end`."""
        if end > lease.shared:
            self._kv.copy(lease.node.sequence, lease.slot, lease.shared, end)
            self._promised -= end - lease.shared
            lease.shared = end

    def _settle(self, lease: Lease) -> None:
        """Let the lease end at the node that holds its last shared token: nodes may have been split since."""
        while lease.shared <= lease.node.start and lease.node.parent is not None:
            lease.node.users -= 1
            lease.node = lease.node.parent

    def _grow(self, lease: Lease, tokens: Sequence[int], end: int) -> bool:
        """Add a node (or lengthen the lease's own) for what the slot alone holds."""
        node, start = lease.node, lease.shared
        alone = node.users == 1 and not node.children and node.saved is None
        if alone and not node.is_root and not node.pinned:
            node.tokens += tokens[start:end]
            node.kept = False
        else:
            sequence = self._take_id()
            if sequence == NO_SEQUENCE:
                return False
            child = Node(node, start, list(tokens[start:end]), sequence=sequence, users=1)
            node.children[child.tokens[0]] = child
            lease.node = node = child
        self._kv.copy(lease.slot, node.sequence, start, end)
        self._count(lease, end)
        return True

    def _refill(self, child: Node, lease: Lease, tokens: Sequence[int], end: int) -> bool:
        """Put a node that was outside the context into it again, from what the slot computed."""
        start = lease.shared
        common = common_length(child.tokens, 0, tokens, start, end)
        if common < len(child.tokens):
            upper = self._split(child, start + common)
            assert upper is not None, "a node outside the context needs no sequence"  # noqa: S101
            child = upper
        child.users += 1  # it must not be dropped to make room
        sequence = self._take_id()
        if sequence == NO_SEQUENCE:
            child.users -= 1
            return False
        child.sequence = sequence
        lease.node = child
        self._kv.copy(lease.slot, sequence, start, child.end)
        self._count(lease, child.end)
        return True

    def _count(self, lease: Lease, end: int) -> None:
        """Cells `[lease.shared, end)` of the slot have become the tree's."""
        self._promised -= end - lease.shared
        self.cached_cells += end - lease.shared
        lease.shared = end

    def _split(self, node: Node, at: int) -> Node | None:
        """Cut a node in two at a position inside it; returns the new upper part, None if no sequence id is left.

        The lower part stays the same object. Leases that end in the upper part still name the lower one until
        `_settle`; they are counted on both.
        """
        parent = node.parent
        assert parent is not None  # noqa: S101
        sequence = NO_SEQUENCE
        if node.sequence != NO_SEQUENCE:
            for step in node.path():  # none of these may be evicted for the id
                step.users += 1
            sequence = self._take_id()
            for step in node.path():
                step.users -= 1
            if sequence == NO_SEQUENCE:
                return None
        keep = at - node.start
        upper = Node(parent, node.start, node.tokens[:keep], users=node.users, pinned=node.pinned)
        upper.used, upper.hits, upper.kept, upper.sequence = node.used, node.hits, node.kept, sequence
        upper.doomed = node.doomed
        self._pinned += upper.pinned
        parent.children[upper.tokens[0]] = upper
        node.parent, node.start, node.tokens = upper, at, node.tokens[keep:]
        upper.children[node.tokens[0]] = node
        if sequence != NO_SEQUENCE:
            self._kv.copy(node.sequence, sequence, upper.start, at)
            self._kv.remove(node.sequence, upper.start, at)
        if node.saved is not None:
            self._hold(upper, node.saved)
        return upper

    # ── giving up and getting back ─────────────────────────────────────────────────────────────────────────────────

    def _make_room(self, cells: int) -> bool:
        if cells > self.room():
            return False
        while self.free_cells < cells:
            self._evict()
        return True

    def _take_id(self) -> int:
        if not self._free_ids and any(self._evictable(node) for node in self._nodes()):
            self._evict()
        return self._free_ids.pop() if self._free_ids else NO_SEQUENCE

    def _evict(self) -> None:
        """Take the least recently used node that nobody needs out of the context, its children before it."""
        leaves = (
            node
            for node in self._nodes()
            if self._evictable(node) and not any(child.in_context for child in node.children.values())
        )
        node = min(leaves, key=lambda node: node.used)
        worth = len(node.tokens) >= WORTH_SAVING_TOKENS or bool(node.children)
        # A copy that it shares with what it was cut from can't be written to a disk.
        needed = node.saved is None or (_is_to_be_kept(node) and not _is_saved_alone(node))
        if needed and worth and self._host_limit > 0 and not node.doomed:
            data = self._kv.save(node.sequence)
            if self._make_host_room(len(data)):
                self._let_go(node)
                self._hold(node, InMemory(node.start, node.end, data))
                self.stats.saved += 1
        self._leave(node)
        self.stats.evicted += 1
        self.stats.evicted_tokens += len(node.tokens)
        if node.saved is None:
            self._forget(node)

    def _leave(self, node: Node) -> None:
        self._kv.remove(node.sequence, 0, -1)
        self._free_ids.append(node.sequence)
        node.sequence = NO_SEQUENCE
        self.cached_cells -= len(node.tokens)

    def _restore(self, node: Node) -> bool:
        """Bring a node back into the context. Its cells are among those that its lease was promised.

        False: no sequence id is left; or what was saved is of no use, and is given up.
        """
        sequence = self._take_id()
        if sequence == NO_SEQUENCE:
            return False
        data = node.saved.read() if node.saved else None
        if data is None or not self._kv.load(sequence, data):
            self.stats.lost += 1
            self._free_ids.append(sequence)
            self._let_go(node)
            return False
        assert node.saved is not None  # noqa: S101
        self._kv.remove(sequence, 0, node.start)
        self._kv.remove(sequence, node.end, -1)
        node.sequence = sequence
        self.cached_cells += len(node.tokens)
        self.stats.restored += 1
        self.stats.restored_tokens += len(node.tokens)
        return True

    def _make_host_room(self, size: int) -> bool:
        if size > self._host_limit:
            return False
        while self.host_bytes + size > self._host_limit:
            saved = [n for n in self._nodes() if n.saved and n.saved.size and not n.has_kept_children() and not n.users]
            if not saved:
                return False
            oldest = min(saved, key=lambda node: node.used)
            self._let_go(oldest)
            if oldest.sequence == NO_SEQUENCE:
                self._forget(oldest)
        return True

    def _hold(self, node: Node, saved: Saved) -> None:
        node.saved = saved
        count = self._holds.get(id(saved), 0)
        if count == 0:
            self.host_bytes += saved.size
        self._holds[id(saved)] = count + 1

    def _let_go(self, node: Node) -> None:
        saved, node.saved = node.saved, None
        if saved is None:
            return
        self._holds[id(saved)] -= 1
        if self._holds[id(saved)] == 0:
            del self._holds[id(saved)]
            self.host_bytes -= saved.size

    def _forget(self, node: Node) -> None:
        """Drop a node that has no KV any more, and all below it: without its beginning a prefix is worth nothing."""
        for step in list(node.below()):
            assert step.sequence == NO_SEQUENCE and step.users == 0, "KV in use is forgotten"  # noqa: S101
            self._let_go(step)
            if step.pinned:
                self._pinned -= 1
                self._pinned_cells -= len(step.tokens)
        parent = node.parent
        assert parent is not None  # noqa: S101
        del parent.children[node.tokens[0]]
        self._prune(parent)

    def _reap(self) -> None:
        """Forget the doomed that nobody uses."""
        if not self._dooms:
            return
        self._dooms = False
        for _, node in reversed(list(self.nodes())):  # children first
            if not node.doomed:
                continue
            if node.users:
                self._dooms = True
                continue
            for step in node.below():
                if step.in_context:
                    self._leave(step)
            self._forget(node)

    def _prune(self, node: Node) -> None:
        """Drop the tree of a label that has nothing in it."""
        if node.is_root and not node.children and not node.users:
            for label, root in list(self._roots.items()):
                if root is node:
                    del self._roots[label]


def _is_to_be_kept(node: Node) -> bool:
    """Whether it is worth having after a restart, and was not handed out yet."""
    worth = node.pinned or (node.hits >= WORTH_KEEPING_HITS and len(node.tokens) >= WORTH_SAVING_TOKENS)
    return worth and not node.kept and not node.doomed


def _is_saved_alone(node: Node) -> bool:
    """Whether what was saved of it holds nothing else."""
    return node.saved is not None and (node.saved.start, node.saved.end) == (node.start, node.end)
