"""The homes of topics, as one broker sees them, and the requests that it sends to them.

The home of a topic is the first by weighted rendezvous of the nodes that are alive. Brokers may have other
views of them for some seconds: a topic with two homes has conflicts, as without any.

S1  A home is asked once for a blob, and again only if it refused since the sender did not know its time.
S2  A request has a time of the home that is not later than TAKE_SECONDS from now, and not later than the end
    of the time for the commit (W2 in `topicsd/broker/write/committer.py`): the home has sent its time before
    this broker received it, so what has passed here since then has passed there, too.
S3  A home that does not answer, or not with a signature, leaves the outcome unknown. It is passed over for
    SILENT_SECONDS: other commits do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from topicsd.broker.frames_v1 import FRAMES_V1
from topicsd.broker.home.home import TAKE_SECONDS, Home
from topicsd.broker.home.messages import HomeAnswer, HomeRequest, check, sign
from topicsd.broker.rendezvous import home_of
from topicsd.broker.steps import Pool, Steps, Wait
from topicsd.catalog.shared.shared_catalog import BrokerNode, PartResult, Slice

VIEW_SECONDS: Final = 2.0
"""The age of the view of the nodes from which a commit has it looked up again, beside it."""
VIEW_SECONDS_MAX: Final = 10.0
"""An older view names no home: the nodes may have left since."""
SILENT_SECONDS: Final = 5.0
TOPICS_KEPT: Final = 100_000
TRIES: Final = 2

AskHome = Callable[[str, bytes], Wait]
"""Sends a body to an address, and waits for the body of the answer, or an OSError."""


class HomeAway(ConnectionError):
    """There is no connection to the home, so nothing was sent."""


class HomeTotals:
    __slots__ = ("passed_over", "sent")

    def __init__(self) -> None:
        self.sent = self.passed_over = 0


class _HomeTime(NamedTuple):
    run: str
    time: float
    received_at: float
    """By the clock of this process."""


class HomeReply(NamedTuple):
    """What a request to a home has come to; None for results that are not known."""

    results: list[list[PartResult]] | None
    may_arrive: bool
    """Whether the home may have committed, or may do so later."""


class Homes:
    def __init__(
        self,
        clock: Clock,
        lookups: Pool,
        nodes: Callable[[], list[BrokerNode]],
        node: str,
        home: Home,
        secret: bytes,
        ask: AskHome,
    ) -> None:
        """`node` is the name of this one; `nodes` returns those that are alive, on a thread."""
        self._clock = clock
        self._lookups = lookups
        self._nodes = nodes
        self._node = node
        self.home = home
        self._secret = secret
        self._ask = ask
        self._view: dict[str, BrokerNode] = {}
        self._weights: dict[str, float] = {}
        self._viewed_at = float("-inf")
        self._is_viewing = False
        self._homes: dict[str, str | None] = {}
        """The homes of topics in this view."""
        self._times: dict[str, _HomeTime] = {}
        self._silent_until: dict[str, float] = {}
        self.totals = HomeTotals()

    # -- which home

    def find(self, topics: Sequence[str]) -> dict[str | None, list[int]]:
        """Return the numbers of topics by the node to send them to; None is to commit them here."""
        now = self._clock.monotonic()
        age = now - self._viewed_at
        if age > VIEW_SECONDS and not self._is_viewing:
            self._is_viewing = True
            self._lookups.call(self._nodes)(self._on_view)
        if age > VIEW_SECONDS_MAX or len(self._weights) < 2:
            return {None: list(range(len(topics)))}
        groups: dict[str | None, list[int]] = {}
        for number, topic in enumerate(topics):
            groups.setdefault(self._home(topic), []).append(number)
        silent = [name for name in groups if name is not None and self._silent_until.get(name, 0) > now]
        for name in silent:
            self.totals.passed_over += 1
            groups.setdefault(None, []).extend(groups.pop(name))
        return groups

    def _home(self, topic: str) -> str | None:
        if topic not in self._homes:
            if len(self._homes) >= TOPICS_KEPT:
                self._homes.clear()
            home = home_of(topic, self._weights)
            self._homes[topic] = None if home == self._node else home
        return self._homes[topic]

    def _on_view(self, outcome: list[BrokerNode] | OSError) -> None:
        self._is_viewing = False
        if isinstance(outcome, OSError):
            return
        self._viewed_at = self._clock.monotonic()
        self._view = {one.name: one for one in outcome if one.address and "write" in one.roles}
        weights = {one.name: one.weight for one in self._view.values() if one.weight > 0}
        if weights != self._weights:
            self._weights = weights
            self._homes.clear()
            for known in (self._times, self._silent_until):
                for name in known.keys() - weights.keys():
                    del known[name]

    # -- requests

    def commit(self, name: str, key: str, slices: Sequence[Slice], until: float) -> Steps[HomeReply]:
        """Ask a home to commit; `until` is when the last request for the blob may be made (S1, S2)."""
        may_arrive = False
        for _ in range(TRIES):
            node = self._view.get(name)
            now = self._clock.monotonic()
            if node is None or now >= until:
                break
            known = self._times.get(name)
            run, before = "", 0.0
            if known is not None:
                run = known.run
                before = known.time + min(now + TAKE_SECONDS, until) - known.received_at
            request = sign(self._secret, HomeRequest(run, before, key, FRAMES_V1, slices))
            self.totals.sent += 1
            answer, is_away = None, False
            try:
                body: bytes = yield self._ask(node.address, request)
                answer = check(self._secret, body, HomeAnswer, request)
            except OSError as error:
                is_away = isinstance(error, HomeAway)
            if answer is None:
                may_arrive = not is_away
                self._silent_until[name] = self._clock.monotonic() + SILENT_SECONDS
                break
            self._times[name] = _HomeTime(answer.run, answer.time, self._clock.monotonic())
            if answer.outcome == "committed" and [len(one) for one in answer.results] == [
                len(one.parts) for one in slices
            ]:
                return HomeReply(answer.results, False)
            may_arrive = answer.outcome != "refused"
            if may_arrive or answer.run == run:
                break
        self.totals.passed_over += 1
        return HomeReply(None, may_arrive)
