"""The prefix cache against a plain model of KV cells: a slot sees its own prefix, always, and no cell is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.engine.prefix import Lease, PrefixCache
from appliance.engine.radix import NO_SEQUENCE, InMemory
from tests.unit.engine.cells import Cells

SLOTS, IDS, TOTAL = 3, 7, 60
labels = st.sampled_from(["", "b"])
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=25)


@dataclass
class Request:
    label: str
    tokens: list[int]
    cells: int
    lease: Lease
    computed: int


class Machine(RuleBasedStateMachine):
    """Requests that come, compute in pieces, share, grow and go, in any order."""

    @initialize(
        host=st.sampled_from([0, 900, 100_000]), ids=st.sampled_from([2, IDS]), idle=st.sampled_from([None, 0, 10])
    )
    def begin(self, host: int, ids: int, idle: int | None) -> None:
        self.kv = Cells(TOTAL)
        self.cache = PrefixCache(self.kv, TOTAL, range(SLOTS, SLOTS + ids), host, idle)
        self.free = list(range(SLOTS))
        self.running: list[Request] = []

    @precondition(lambda self: self.free)
    @rule(label=labels, tokens=prompts, answer=st.integers(1, 12), refuse=st.booleans())
    def admit(self, label: str, tokens: list[int], answer: int, refuse: bool) -> None:
        cells = len(tokens) + answer
        need, cached = self.cache.quote(label, tokens, cells)
        room = self.cache.room()
        self.kv.refuse = refuse
        lease = self.cache.acquire(label, tokens, cells, self.free[-1])
        self.kv.refuse = False
        if lease is None:
            assert need > room or self.running, "refused although there was room, and nobody to wait for"
            assert not self.kv.of(self.free[-1])
            return
        assert lease.shared <= cached < len(tokens)
        self.free.pop()
        self.running.append(Request(label, list(tokens), cells, lease, lease.shared))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 8), known=st.booleans())
    def compute(self, data: st.DataObject, count: int, known: bool) -> None:
        request = data.draw(st.sampled_from(self.running))
        for _ in range(count):
            if request.computed == len(request.tokens):
                if len(request.tokens) == request.cells:
                    break
                request.tokens.append(data.draw(st.integers(0, 2)))
            at = request.computed
            cell = (request.label, tuple(request.tokens[: at + 1]))
            self.kv.compute(request.lease.slot, at, cell)
            request.computed += 1
        if known:
            self.cache.extend(request.lease, request.tokens, request.computed)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        if request.lease.shared == request.computed:
            request.computed = self.cache.advance(request.lease, request.tokens)
            assert request.computed == request.lease.shared

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.floats(0, 1))
    def pin(self, data: st.DataObject, share: float) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.cache.pin(request.lease, int(request.lease.shared * share))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["keep", "forget", "condemn"]))
    def end(self, data: st.DataObject, how: str) -> None:
        request = data.draw(st.sampled_from(self.running))
        if how == "condemn":
            self.cache.drop(request.lease)
        else:
            if how == "keep":
                self.cache.extend(request.lease, request.tokens, request.computed)
            self.cache.release(request.lease)
        self.running.remove(request)
        self.free.append(request.lease.slot)
        assert not self.kv.of(request.lease.slot)

    @rule()
    def forget(self) -> None:
        """Documents are gone: of what is there now, only what is pinned, or still used, may be left."""
        used = {(node.sequence, node.end) for _, node in self.cache.nodes() if node.users}
        self.cache.forget()
        for _, node in self.cache.nodes():
            assert node.pinned or (node.doomed and (node.sequence, node.end) in used)
            if node.saved is not None:
                assert node.pinned and (node.saved.start, node.saved.end) == (node.start, node.end)

    @invariant()
    def what_is_doomed_goes_with_its_last_user(self) -> None:
        for _, node in self.cache.nodes():
            assert node.users or not node.doomed
            assert not (node.doomed and (node.pinned or node.saved))

    @invariant()
    def what_is_freed_is_never_more_than_it_holds(self) -> None:
        for request in self.running:
            assert 0 <= self.cache.freed(request.lease) <= request.cells

    @invariant()
    def each_slot_sees_its_own_prefix(self) -> None:
        for request in self.running:
            seen = {position: self.kv.held[cell] for position, cell in self.kv.of(request.lease.slot).items()}
            expected = {at: (request.label, tuple(request.tokens[: at + 1])) for at in range(request.computed)}
            assert seen == expected

    @invariant()
    def each_node_holds_its_range_and_nothing_else(self) -> None:
        nodes = list(self.cache.nodes())
        for label, node in nodes:
            path = self.cache.path_tokens(node)
            assert node.tokens and len(path) == node.end
            assert node.sequence != NO_SEQUENCE or node.saved is not None, "a node without KV"
            assert node.parent is not None
            assert node.parent.in_context or node.sequence == NO_SEQUENCE, "nearer than its parent"
            assert node.parent.children[node.tokens[0]] is node
            if node.sequence != NO_SEQUENCE:
                seen = {at: self.kv.held[cell] for at, cell in self.kv.of(node.sequence).items()}
                assert seen == {at: (label, tuple(path[: at + 1])) for at in range(node.start, node.end)}
        ids = [node.sequence for _, node in nodes if node.sequence != NO_SEQUENCE]
        assert len(set(ids)) == len(ids)
        assert {s for s, cells in self.kv.seen.items() if cells and s >= SLOTS} == set(ids)

    @invariant()
    def the_account_is_right(self) -> None:
        cache = self.cache
        in_context = [node for _, node in cache.nodes() if node.sequence != NO_SEQUENCE]
        assert cache.cached_cells == sum(len(node.tokens) for node in in_context)
        own = sum(request.computed - request.lease.shared for request in self.running)
        assert self.kv.used_cells() == cache.cached_cells + own, "a cell is held twice, or by nobody"
        promised = sum(request.cells - request.lease.shared for request in self.running)
        assert cache.free_cells == TOTAL - cache.cached_cells - promised >= 0
        saved = {id(node.saved): node.saved.size for _, node in cache.nodes() if node.saved}
        assert cache.host_bytes == sum(saved.values())
        for _, node in cache.nodes():
            assert node.users >= sum(child.users for child in node.children.values())

    def teardown(self) -> None:
        for request in self.running:
            self.cache.release(request.lease)
        assert all(node.users == 0 for _, node in self.cache.nodes())
        assert self.kv.used_cells() == self.cache.cached_cells


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class Driver:
    """One request at a time over a cache."""

    def __init__(self, total: int = 100, ids: int = 20, host: int = 100_000, idle: int | None = None) -> None:
        self.kv = Cells(total)
        self.cache = PrefixCache(self.kv, total, range(1, 1 + ids), host, idle)

    def run(self, tokens: list[int], label: str = "", pin: int = 0) -> int:
        """Compute a whole prompt; returns how many of its tokens came from the cache."""
        lease = self.cache.acquire(label, tokens, len(tokens) + 1, 0)
        assert lease is not None
        found = lease.shared
        for at in range(found, len(tokens)):
            self.kv.compute(0, at, (label, tuple(tokens[: at + 1])))
        self.cache.extend(lease, tokens, len(tokens))
        self.cache.pin(lease, pin)
        self.cache.release(lease)
        return found

    def cached(self, tokens: list[int]) -> int:
        """How many tokens at the front would not be computed."""
        return self.cache.quote("", tokens, len(tokens))[1]


def test_the_last_token_is_always_computed() -> None:
    driver = Driver()
    assert driver.run([1, 2, 3]) == 0
    assert driver.run([1, 2, 3]) == 2
    assert driver.run([1, 2, 3, 4]) == 3


def test_a_common_beginning_is_shared_and_other_labels_see_nothing() -> None:
    driver = Driver()
    driver.run([1, 2, 3, 4, 5])
    assert driver.run([1, 2, 3, 9, 9]) == 3
    assert driver.run([1, 2, 3, 9, 8]) == 4
    assert driver.run([1, 2, 3, 4, 5, 6], label="other") == 0
    assert driver.cache.cached_cells == 5 + 2 + 1 + 6


def test_what_leaves_the_context_comes_back_from_memory() -> None:
    driver = Driver(total=50)
    first, second = list(range(40)), list(range(100, 145))
    driver.run(first)
    driver.run(second)  # no room for both
    assert driver.cache.stats.saved == 1
    assert driver.run(first) == 39
    assert driver.cache.stats.restored == 1


def test_what_nobody_uses_goes_to_memory_but_for_a_few_cells() -> None:
    driver = Driver(total=100)
    cache = driver.cache = PrefixCache(driver.kv, 100, range(1, 21), 100_000, idle_cells=25)
    for number in range(4):
        driver.run([number] * 20)
    assert cache.cached_cells == 20 and cache.stats.saved == 3
    assert driver.run([0] * 20) == 19 and cache.stats.restored >= 1


def test_without_memory_for_it_what_leaves_is_gone() -> None:
    driver = Driver(total=50, host=0)
    driver.run(list(range(40)))
    driver.run(list(range(100, 145)))
    assert driver.run(list(range(40))) == 0


def test_the_oldest_goes_first_and_pinned_ones_never() -> None:
    driver = Driver(total=80, host=0)
    driver.run([7] * 15, pin=10)
    driver.run(list(range(20, 40)))
    driver.run(list(range(50, 70)))
    driver.run(list(range(20, 40)))  # used again: now the younger one
    driver.run(list(range(100, 130)))
    assert driver.cached(list(range(20, 41))) == 20
    assert driver.cached(list(range(50, 71))) == 0
    for number in range(20):
        driver.run([1000 + number] * 60)
    assert driver.cached([7] * 16) >= 10


def test_pins_take_a_quarter_of_the_cells_at_most() -> None:
    driver = Driver(total=100, host=0)
    for number in range(10):
        driver.run([number] * 10, pin=10)
    assert sum(len(node.tokens) for _, node in driver.cache.nodes() if node.pinned) == 20  # two of ten; room for 25


def test_what_is_forgotten_is_found_by_nobody_but_for_what_is_pinned() -> None:
    driver = Driver(total=100)
    tokens = list(range(40))
    driver.run(tokens, pin=10)
    driver.run(list(range(200, 240)), label="other")
    driver.cache.forget()
    assert driver.cached(tokens) == 10
    assert driver.cache.cached_cells == driver.kv.used_cells() == 10 and driver.cache.host_bytes == 0
    assert [label for label, _ in driver.cache.nodes()] == [""]
    assert driver.run(tokens) == 10


def test_what_went_to_memory_is_forgotten_too() -> None:
    driver = Driver(total=50)
    driver.run(list(range(40)))
    driver.run(list(range(100, 145)))
    assert driver.cache.host_bytes > 0
    driver.cache.forget()
    assert driver.cache.host_bytes == 0 and list(driver.cache.nodes()) == []


def test_what_is_in_use_is_forgotten_when_its_user_ends() -> None:
    driver = Driver()
    tokens = list(range(30))
    driver.run(tokens)
    lease = driver.cache.acquire("", tokens, 31, 0)
    assert lease is not None
    driver.cache.forget()
    assert driver.cache.cached_cells == 29, "the running sequence still sees its cells"
    assert driver.cache.to_keep() is None
    driver.cache.release(lease)
    assert driver.cache.cached_cells == driver.kv.used_cells() == 0 and driver.cached(tokens) == 0


def test_of_a_pinned_beginning_the_copy_that_holds_more_is_forgotten() -> None:
    driver = Driver(total=60, host=100_000)
    tokens = list(range(30))
    driver.run(tokens)
    driver.run(list(range(100, 150)))  # the first goes to memory, whole
    driver.run(tokens, pin=10)  # it comes back, and is cut in two that share the copy
    shared = [node.saved for _, node in driver.cache.nodes() if node.pinned]
    assert [(saved.start, saved.end) for saved in shared if saved] == [(0, 30)]
    driver.cache.forget()
    assert [(node.saved, node.pinned) for _, node in driver.cache.nodes()] == [(None, True)]
    assert driver.cache.host_bytes == 0 and driver.run(tokens) == 10


@pytest.mark.parametrize("idle", [None, 30, 0])
def test_what_is_found_again_goes_to_the_disk_wherever_idle_cells_are(idle: int | None) -> None:
    driver = Driver(idle=idle)
    tokens = list(range(60))
    for end in range(61, 65):  # as answers that go on differently after the prompt
        driver.run([*tokens, end, end], pin=20)
    kept = []
    while (found := driver.cache.to_keep()) is not None:
        kept.append((found[1].start, found[1].end, found[1].pinned))
    assert kept == [(0, 20, True), (20, 60, False)]


def test_a_beginning_that_is_pinned_later_is_written_for_itself() -> None:
    driver = Driver()
    tokens = list(range(40))
    for _ in range(3):
        driver.run(tokens)
    kept = driver.cache.to_keep()
    assert kept is not None and (kept[1].start, kept[1].end) == (0, 39)
    driver.run(tokens, pin=10)
    kept = driver.cache.to_keep()
    assert kept is not None and (kept[1].start, kept[1].end, kept[1].pinned) == (0, 10, True)


@pytest.mark.parametrize("data", [None, b"{}"])
def test_a_saved_range_that_is_gone_is_dropped_with_all_that_follows(data: bytes | None) -> None:
    class Gone(InMemory):
        def read(self) -> bytes | None:
            return data

    driver = Driver()
    driver.kv.refuse = data is not None
    tokens = list(range(30))
    assert driver.cache.adopt("", tokens[:20], Gone(0, 20, b"x" * 9), pinned=True)
    assert driver.cache.adopt("", tokens, Gone(20, 30, b"y"), pinned=False)
    assert driver.cached([*tokens, 0]) == 30
    assert driver.cache.host_bytes == 10
    assert driver.run([*tokens, 0]) == 0
    assert driver.cache.stats.lost == 1
    assert driver.cache.host_bytes == 0


def test_a_saved_range_whose_beginning_is_unknown_is_not_taken() -> None:
    driver = Driver()
    assert not driver.cache.adopt("", list(range(30)), InMemory(20, 30, b"{}"), pinned=False)
    assert list(driver.cache.nodes()) == []
