"""A process that pauses between two requests of a verb for shared topics, or dies there, while another works.

There must be one order of all these verbs in which an oracle gives the same answers and the same state. After
a process has died, its client repeats the verb at another one.

A commit is atomic for each part and a condemnation for each blob, so here they have one.
"""

from __future__ import annotations

import copy
from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.catalog.shared_crowd import (
    PRODUCERS_MAX,
    TOPICS,
    Call,
    Outcome,
    SharedCrowd,
    outcome,
    without_retries,
)
from tests.harness.catalog.shared_oracle import SharedOracle
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.shared_catalog import Claim, SharedCatalog, SharedExtent, SharedTopic

NODES = 3
REQUESTS_MAX = 24


class ProcessDied(BaseException):
    """The end of a process between two requests."""


class InterleavedSharedCrowd(SharedCrowd):
    def __init__(self, keys: SharedKeys, seed: int, clock: ManualClock) -> None:
        self.keys = keys
        self.stores = [FakeKeyValue(keys, Random(seed)) for _ in range(NODES)]
        super().__init__([self.open(store) for store in self.stores], seed, clock)
        self.reader = self.open(FakeKeyValue(keys, Random(seed)))
        self.slices_max = self.parts_max = 1
        # The end of a trim is that of one moment while it runs, and of no other verb (C8).
        self.trimmed_ahead = 0
        self.book = None
        self.name = TOPICS[0]
        self.is_inner = False
        self.inner: list[tuple[Call, Outcome]] = []
        self.positions: Counter[int | None] = Counter()
        """After how many verbs of the other process the outer verb took place; None for never."""
        self.deaths = 0

    def open(self, store: FakeKeyValue) -> KeyValueSharedCatalog:
        now_ms = self.keys.clock.now_ms
        return KeyValueSharedCatalog(store, policy(), now_ms, "s3://b/", PRODUCERS_MAX, threads=1)

    def step(self) -> None:
        self.clock.advance(1)
        self.name = self.random.choice(TOPICS[:3])
        self.random.choices(*self.actions())[0](self.random.randrange(NODES), self.name)

    def beat(self, node: int, name: str) -> None:
        """Nodes have nothing in common with topics."""

    def request(self, node: int, call: Call) -> Outcome | None:
        if self.is_inner:
            result = outcome(call, self.catalogs[node])
            self.inner.append((call, result))
            return result
        self.inner = []
        result = self.run_outer(node, call)
        positions: list[int | None] = [*range(len(self.inner) + 1)]
        if result is None:
            positions.append(None)
        for position in positions:
            # A memo that has the clock: the copy must have the same one.
            oracle = copy.deepcopy(self.oracle, {id(self.clock): self.clock})
            if self.is_history(oracle, call, position, result):
                self.oracle = oracle
                self.positions[position] += 1
                break
        else:
            raise AssertionError(f"no order gives {result} with {[one for _, one in self.inner]}")
        return result

    def is_history(
        self, oracle: SharedOracle, call: Call, position: int | None, result: Outcome | None
    ) -> bool:
        """Make all verbs in one order with an oracle; return whether all its answers and its state agree."""
        for number in range(len(self.inner) + 1):
            if number == position:
                expected = outcome(call, oracle)
                if result is not None and without_rows(expected) != without_rows(result):
                    return False
            if number < len(self.inner):
                inner_call, inner_result = self.inner[number]
                if timeless(outcome(inner_call, oracle)) != timeless(inner_result):
                    return False
        return self.state_of(oracle) == self.state_of(self.reader)

    def state_of(self, catalog: SharedCatalog | SharedOracle) -> object:
        rows = [replace(row, created_ms=0) for row in catalog.list("", "", 100)]
        extents = [extent for name in TOPICS for extent in catalog.extents_from(name, 0, 256)]
        heads = catalog.heads([(row.name, row.incarnation) for row in rows])
        return rows, [replace(one, created_ms=0) for one in extents], heads

    def run_outer(self, node: int, call: Call) -> Outcome | None:
        """Make a verb; before one of its requests other verbs are made, or the process dies (None)."""
        left = self.random.randrange(1, REQUESTS_MAX)
        dies = self.random.random() < 0.3
        other = (node + self.random.randrange(1, NODES)) % NODES

        def before_request() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                if self.random.random() < 0.7:
                    self.run_inner(other)
                if dies:
                    raise ProcessDied

        self.stores[node].before_request = before_request
        try:
            return outcome(call, self.catalogs[node])
        except ProcessDied:
            self.deaths += 1
            self.inner.append((call, outcome(call, self.catalogs[other])))
            return None
        finally:
            self.stores[node].before_request = None

    def run_inner(self, node: int) -> None:
        """Make some verbs of another process for the same topic."""
        actions = [self.commit, self.commit, self.commit_again, self.trim, self.fence, self.compact,
                   self.compact, self.finish, self.forget, self.create, self.condemn, self.read]  # fmt: skip
        self.is_inner = True
        for _ in range(self.random.randrange(1, 6)):
            self.random.choice(actions)(node, self.name)
        self.is_inner = False


def timeless(result: Outcome) -> Outcome:
    """Return an outcome without times: a topic that was forgotten at this moment begins one later."""
    kind, value = without_retries(result)
    return kind, _timeless(value)


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(one) for one in value]
    if isinstance(value, Claim):
        # It may outlast its topic.
        return None
    if isinstance(value, SharedExtent) or hasattr(value, "created_ms"):
        return replace(value, created_ms=0)
    if hasattr(value, "extent"):
        return replace(value, extent=replace(value.extent, created_ms=0))
    return value


def without_rows(result: Outcome) -> Outcome:
    """Return an outcome with the names of topics in place of topics, whose fields are of several moments."""
    kind, value = timeless(result)
    if isinstance(value, SharedTopic):
        value = value.name
    elif isinstance(value, list):
        value = [one.name if isinstance(one, SharedTopic) else one for one in value]
    return kind, value


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_verbs_at_the_same_time_are_verbs_in_some_order(seed: int) -> None:
    clock = ManualClock()
    crowd = InterleavedSharedCrowd(SharedKeys(clock), seed, clock)
    crowd.run(700)
    later = sum(count for position, count in crowd.positions.items() if position)
    assert min(crowd.deaths, crowd.positions[0], later) > 10, crowd.positions
