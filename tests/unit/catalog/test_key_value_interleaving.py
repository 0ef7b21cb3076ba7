"""A process that pauses between two requests of a verb, while another node makes several, or that dies there.

There must be one order of all these verbs in which an oracle gives the same answers and the same state.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from tests.harness.catalog.catalog_crowd import TOPICS, Call, CatalogCrowd, Outcome, outcome
from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.catalog import Catalog, Extent, Ownership, TopicRow
from topicsd.catalog.key_value_catalog import KeyValueCatalog

NODES = 3
REQUESTS_MAX = 14
Request = tuple[int, str, Call]


class ProcessDied(BaseException):
    """The end of a process between two requests."""


class InterleavedCrowd(CatalogCrowd):
    def __init__(self, stores: Sequence[FakeKeyValue], seed: int) -> None:
        super().__init__([KeyValueCatalog(store, policy()) for store in stores[1:]], seed)
        self.stores = stores[1:]
        self.reader = KeyValueCatalog(stores[0], policy())
        self.captured: list[Request] | None = None
        self.inner: list[tuple[Request, Outcome]] = []
        self.positions: Counter[int | None] = Counter()
        """After how many verbs of the other node the outer verb took place; None for never."""

    def known_row(self, name: str) -> TopicRow | None:
        return self.reader.own(name, Ownership("other", 0, 0)).row

    def known_extents(self, name: str) -> list[Extent]:
        return self.reader.extents_from(name, 0, 256)

    def request(self, node: int, name: str, call: Call) -> Outcome | None:
        if self.captured is not None:
            self.captured.append((node, name, call))
            return None
        self.inner = []
        result = self.run_outer((node, name, call))
        positions: list[int | None] = [*range(len(self.inner) + 1)]
        if result is None:
            positions.append(None)
        for position in positions:
            oracle = copy.deepcopy(self.oracle)
            if self.is_history(oracle, call, position, result):
                self.oracle = oracle
                self.positions[position] += 1
                break
        else:
            raise AssertionError(f"no order gives {result} with {self.inner}")
        self.settle((node, name, call), result)
        return result

    def is_history(
        self, oracle: CatalogOracle, call: Call, position: int | None, result: Outcome | None
    ) -> bool:
        """Make all verbs in one order with an oracle; return whether all its answers and its state agree."""
        for number in range(len(self.inner) + 1):
            if number == position:
                expected = outcome(call, oracle)
                if result is not None and expected != result:
                    return False
            if number < len(self.inner):
                request, inner_result = self.inner[number]
                if outcome(request[2], oracle) != inner_result:
                    return False
        return state_of(oracle) == state_of(self.reader)

    def settle(self, request: Request, result: Outcome | None) -> None:
        node, name, call = request
        if self.seals.get((node, name)) is call:
            del self.seals[node, name]
        if result is None:
            self.believed[node].pop(name, None)
        else:
            self.outcomes[result[0]] += 1
            self.learn(node, name, result)

    def run_outer(self, request: Request) -> Outcome | None:
        """Make a verb; before one of its requests other verbs are made, or the process dies (None)."""
        node, name, call = request
        left = self.random.randrange(1, REQUESTS_MAX)
        dies = self.random.random() < 0.3

        def before_request() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                if dies:
                    raise ProcessDied
                self.run_inner((node + self.random.randrange(1, NODES)) % NODES, name)

        self.stores[node].before_request = before_request
        try:
            return outcome(call, self.catalogs[node])
        except ProcessDied:
            return None
        finally:
            self.stores[node].before_request = None

    def run_inner(self, node: int, name: str) -> None:
        """Make some verbs of another node, which may take the topic over first."""
        actions = [
            self.raise_ceiling,
            self.append,
            self.append,
            self.merge,
            self.trim,
            self.seal,
            self.forget,
        ]
        self.captured = []
        for number in range(self.random.randrange(1, 8)):
            self.give_seqs(node, name)
            row = self.known_row(name)
            if row is None:
                self.create(node, name)
            elif number == 0:
                epoch, incarnation = row.owner_epoch, row.incarnation
                owner = f"node-{node}"
                self.captured.append((node, name, partial(_adopt, name, owner, incarnation, epoch)))
            else:
                self.random.choice(actions)(node, name)
            while self.captured:
                request = self.captured.pop()
                result = outcome(request[2], self.catalogs[node])
                self.inner.append((request, result))
                self.settle(request, result)
        self.captured = None


def _adopt(name: str, node: str, incarnation: int, epoch: int, to: Catalog) -> TopicRow:
    return to.adopt(name, node, incarnation, epoch, True)


def state_of(catalog: Catalog | CatalogOracle) -> object:
    rows = catalog.list("", "", 100)
    return rows, [catalog.extents_from(name, 0, 256) for name in TOPICS]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_verbs_at_the_same_time_are_verbs_in_some_order(seed: int) -> None:
    keys = SharedKeys()
    crowd = InterleavedCrowd([FakeKeyValue(keys, Random(seed)) for _ in range(NODES + 1)], seed)
    crowd.run(3000)
    assert min(crowd.positions[position] for position in (None, 0, 1)) > 3
