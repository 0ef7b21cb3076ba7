"""Homes: what they take and refuse, and what a broker concludes from their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from shared.runtime.retries import Retries
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.manual_clock import ManualClock
from topicsd.broker.home.home import AHEAD_SECONDS, TAKE_SECONDS, Home
from topicsd.broker.home.homes import (
    SILENT_SECONDS,
    VIEW_SECONDS_MAX,
    HomeAway,
    HomeReply,
    Homes,
)
from topicsd.broker.home.messages import SIGNATURE_BYTES, HomeAnswer, HomeRequest, check, sign
from topicsd.broker.rendezvous import home_of
from topicsd.broker.steps import Pool, Resume, Wait, run
from topicsd.catalog.catalog import CatalogRefused, CatalogUnavailable
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.shared_catalog import BrokerNode, Part, PartResult, Slice

SECRET = b"secret"
SLICES = [Slice("orders", 1, 0, (Part("a", 2, 10),))]
COMMITTED = [[PartResult("committed", 1, 2)]]
UNTIL = 1e9


class NowThread:
    """Does each job at once."""

    def submit(self, job: Callable[[], Any], done: Callable[[Any], object]) -> None:
        try:
            outcome = job()
        except OSError as error:
            outcome = error
        done(outcome)

    def drain(self) -> None: ...

    def stop(self) -> None: ...


class Rig:
    """A home with a catalog that answers as the test says, and a broker that sends to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.outcome: Any = COMMITTED
        self.commits: list[str] = []
        self.before_commit: Callable[[], object] = lambda: None
        self.home = self.new_home()
        self.fault: OSError | None = None
        self.answer_fault: OSError | None = None
        self.nodes = [BrokerNode(name, f"http://{name}", 1.0, ("write",), 0) for name in ("a", "b")]
        other = Home(self.clock, Pool([NowThread()]), self._commit, SECRET)
        self.homes = Homes(self.clock, Pool([NowThread()]), lambda: self.nodes, "a", other, SECRET, self._ask)
        self.homes.find([])

    def new_home(self) -> Home:
        return Home(self.clock, Pool([NowThread()]), self._commit, SECRET)

    def _commit(
        self, key: str, encoding: str, slices: Sequence[Slice], is_in_time: Callable[[], bool]
    ) -> list[list[PartResult]]:
        self.before_commit()
        if not is_in_time():
            raise TimeoutError("late")
        self.commits.append(key)
        if isinstance(self.outcome, OSError):
            raise self.outcome
        return self.outcome  # type: ignore[no-any-return]

    def _ask(self, address: str, body: bytes) -> Wait:
        assert address == "http://b"

        def start(resume: Resume) -> None:
            if self.fault is not None:
                resume(self.fault)
                return
            self.home.take(body, lambda answer: resume(self.answer_fault or answer))

        return start

    def take(self, before: float, run_of: str | None = None) -> HomeAnswer:
        body = sign(SECRET, HomeRequest(run_of or self.home.run, before, "key", "frames-v1", SLICES))
        answers: list[bytes | None] = []
        self.home.take(body, answers.append)
        assert answers[0] is not None
        answer = check(SECRET, answers[0], HomeAnswer, body)
        assert answer is not None
        return answer

    def send(self, until: float = UNTIL) -> HomeReply:
        replies: list[Any] = []
        run(self.homes.commit("b", "key", SLICES, until), replies.append)
        reply: HomeReply = replies[0]
        return reply


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_message_is_read_only_with_its_signature() -> None:
    request = HomeRequest("run", 1.0, "key", "frames-v1", SLICES)
    body = sign(SECRET, request)
    read = check(SECRET, body, HomeRequest)
    assert read is not None
    assert (read.key, list(read.slices)) == ("key", SLICES)
    assert check(b"other", body, HomeRequest) is None
    assert check(SECRET, b"", HomeRequest) is None
    for at in (0, SIGNATURE_BYTES, len(body) - 2):
        harmed = bytearray(body)
        harmed[at] ^= 1
        assert check(SECRET, bytes(harmed), HomeRequest) is None
    answer = sign(SECRET, HomeAnswer("refused", "run", 1.0), body)
    assert check(SECRET, answer, HomeAnswer, body) is not None
    assert check(SECRET, answer, HomeAnswer, sign(SECRET, HomeAnswer("refused", "", 0.0))) is None


def test_a_home_commits_only_in_its_own_time(rig: Rig) -> None:
    rig.clock.advance(5000)
    now = rig.home.time()
    assert rig.take(now + TAKE_SECONDS).results == COMMITTED
    for before in (now, now - 1, now + TAKE_SECONDS + AHEAD_SECONDS + 0.1):
        assert rig.take(before).outcome == "refused"
    assert rig.take(now + 1, "another run").outcome == "refused"
    rig.home.close()
    assert rig.take(now + 1).outcome == "refused"
    assert (rig.commits, rig.home.taken_count, rig.home.refused_count) == (["key"], 1, 5)
    assert rig.home.in_flight == 0


@pytest.mark.parametrize("error", [CatalogUnavailable("away"), CatalogRefused("no")])
def test_a_home_that_has_begun_a_commit_knows_no_refusal(rig: Rig, error: OSError) -> None:
    rig.outcome = error
    assert rig.take(rig.home.time() + 1).outcome == "unknown"
    rig.before_commit = lambda: rig.clock.advance(60_000)
    assert rig.take(rig.home.time() + 1).outcome == "unknown"


def test_a_broker_asks_again_when_it_did_not_know_the_time_of_its_home(rig: Rig) -> None:
    assert rig.send() == (COMMITTED, False)
    assert rig.homes.totals.sent == 2
    rig.clock.advance(3_600_000)
    assert rig.send() == (COMMITTED, False)
    assert rig.homes.totals.sent == 3
    rig.home = rig.new_home()
    assert rig.send() == (COMMITTED, False)
    assert (rig.homes.totals.sent, rig.homes.totals.passed_over) == (5, 0)


def test_a_commit_is_not_begun_after_the_time_for_the_blob(rig: Rig) -> None:
    rig.send()
    until = rig.clock.monotonic() + 0.5
    rig.before_commit = lambda: rig.clock.advance(600)
    assert rig.send(until) == (None, True)
    assert rig.send(until) == (None, False)
    assert rig.commits == ["key"]


def test_a_home_is_passed_over_when_it_is_silent(rig: Rig) -> None:
    mine, others = _names(rig)
    assert rig.homes.find([mine, others]) == {None: [0], "b": [1]}
    rig.send()
    rig.answer_fault = TimeoutError()
    assert rig.send() == (None, True)
    assert rig.homes.find([mine, others]) == {None: [0, 1]}
    rig.clock.advance(SILENT_SECONDS * 1000 + 1)
    assert rig.homes.find([mine, others]) == {None: [0], "b": [1]}
    rig.fault = HomeAway("refused")
    assert rig.send() == (None, False)
    assert rig.homes.totals.passed_over == 3


def test_a_home_that_refuses_leaves_no_doubt(rig: Rig) -> None:
    rig.send()
    rig.home.close()
    assert rig.send() == (None, False)
    rig.outcome = CatalogUnavailable("away")
    rig.home = rig.new_home()
    assert rig.send() == (None, True)


def test_there_is_no_home_without_a_second_node_or_a_recent_view(rig: Rig) -> None:
    _, others = _names(rig)

    def fail() -> list[BrokerNode]:
        raise CatalogUnavailable("away")

    rig.homes._nodes = fail
    rig.clock.advance(VIEW_SECONDS_MAX * 1000 + 1)
    assert rig.homes.find([others]) == {None: [0]}
    rig.homes._nodes = lambda: rig.nodes
    for nodes in (rig.nodes[:1], [rig.nodes[0], *_unfit(rig.nodes[1])]):
        rig.nodes = nodes
        rig.clock.advance(3000)
        rig.homes.find([others])
        assert rig.homes.find([others]) == {None: [0]}


def _unfit(node: BrokerNode) -> list[BrokerNode]:
    """Return nodes that can be no home."""
    weightless = BrokerNode("b", node.address, 0.0, node.roles, 0)
    return [
        weightless,
        BrokerNode("c", "", 1.0, node.roles, 0),
        BrokerNode("d", "http://d", 1.0, ("read",), 0),
    ]


def _names(rig: Rig) -> tuple[str, str]:
    """Return a topic of node `a`, and one of node `b`."""
    weights = {node.name: node.weight for node in rig.nodes}
    names = [f"t{number}" for number in range(100)]
    return tuple(next(name for name in names if home_of(name, weights) == node) for node in "ab")  # type: ignore[return-value]


def open_keys(keys: SharedKeys) -> KeyValueSharedCatalog:
    retries = Retries(keys.clock.monotonic, lambda seconds: keys.clock.advance(seconds * 1000 + 1), 1.0)
    return KeyValueSharedCatalog(FakeKeyValue(keys, Random(0)), retries, keys.clock.now_ms, threads=1)


def test_a_commit_changes_nothing_when_its_time_ends_after_the_read_of_its_topic() -> None:
    keys = SharedKeys()
    catalog = open_keys(keys)
    catalog.create("orders", 1, b"{}")
    entries: list[Any] = []

    def is_in_time() -> bool:
        entries.append(dict(keys.entries))
        return False

    with pytest.raises(TimeoutError):
        catalog.commit("key", "frames-v1", SLICES, is_in_time)
    assert len(entries) == 1
    assert keys.entries == entries[0]
    assert catalog.commit("key", "frames-v1", SLICES, lambda: True) == COMMITTED
    repeated = catalog.commit("key", "frames-v1", SLICES, lambda: False)
    assert repeated == [[PartResult("repeated", 1, 2)]]


def test_all_nodes_of_a_catalog_have_one_secret() -> None:
    keys = SharedKeys()
    secrets = {open_keys(keys).cluster_secret() for _ in range(3)}
    assert [len(one) for one in secrets] == [32]
    assert open_keys(SharedKeys()).cluster_secret() not in secrets
