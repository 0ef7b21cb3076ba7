"""Names that the catalog decides: of topics to be created, and of departed topics.

N1  A topic is created with the incarnation and the ceiling of a row that the catalog has granted. So when its
    first write is acknowledged no other node has a topic of this name, and none can make one.
N2  Requests for the name wait for the answer, at most WAIT_SECONDS. While the catalog does not answer, they
    are refused at once. Topics that exist need no answer.
N3  A request to create a row is repeated, with the same incarnation, until it is answered (R9). A row that no
    topic uses after HOLD_SECONDS is removed, as is one whose topic was not created after all. The row that a
    crash leaves is removed by the next start, or by the next request for the name.
N4  The row of an earlier topic of the name is removed first (O6).
N5  A request that names a departed topic has its row looked up again, at most once in LOOK_UP_SECONDS. When
    the row is gone, and no file of the topic is left here, the name is free.

One job asks for all names that wait, so a name is asked for once, however many requests wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from shared.contract.errors import (
    CATALOG_UNAVAILABLE,
    RETRY_AFTER_MS,
    TOPIC_MOVED,
    Refusal,
    shutting_down,
    throttled,
)
from shared.runtime.disk_thread import Loop
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.catalog.catalog import (
    Catalog,
    CatalogRefused,
    CatalogUnavailable,
    Fenced,
    Lookup,
    NewTopic,
    Ownership,
    TopicRow,
)
from topicsd.engine.jobs import Background, BackgroundJob
from topicsd.engine.ownership.catalog_work import CatalogCall, CatalogCalls, Node, Outcome
from topicsd.engine.ownership.departed import Departed, ToForget, departure, refuse_departed
from topicsd.engine.ownership.owned import Owned, next_ceiling
from topicsd.engine.pending import Refuse, call_reply
from topicsd.engine.topic import DeferredRequest, Topic

if TYPE_CHECKING:
    from topicsd.engine.state import ShardState

logger = logging.getLogger("topicsd.engine")

WAIT_SECONDS: Final = 5.0
"""How long a request waits for the catalog."""
HOLD_SECONDS: Final = 60.0
"""How long a row is kept for the requests that were refused before it was granted."""
LOOK_UP_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0
BLOCKED_SECONDS: Final = 0.02
"""The pause after which a name is looked at again whose former row is being removed."""
NAMES_AT_ONCE: Final = 200
CALL_SECONDS: Final = 0.5
ELSEWHERE_MAX: Final = 10_000


class Grant(NamedTuple):
    """A row that the catalog has for a topic which is not created yet."""

    epoch: int
    ceiling: int


class PendingName:
    """A name that the catalog is asked for, and the requests that wait for the answer."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: list[DeferredRequest] = []


class Creation(PendingName):
    """A name of which the catalog is asked to create the row."""

    __slots__ = ("new",)

    def __init__(self, new: NewTopic) -> None:
        super().__init__()
        self.new = new


class Elsewhere(NamedTuple):
    """The refusal of a name that another node has, and until when it is repeated without a request."""

    refusal: Refusal
    until: float


class NewNames:
    """The names of one shard that wait for the catalog, and those that it has granted.

    A shard without a catalog creates its topics at once.
    """

    _node: Node
    _calls: CatalogCalls
    _background: Background

    def __init__(self, shard: ShardState, loop: Loop) -> None:
        self._shard = shard
        self._loop = loop
        self._is_started = False
        self._is_running = False
        self._creations: dict[str, Creation] = {}
        self._look_ups: dict[str, PendingName] = {}
        self._granted: dict[str, Grant] = {}
        self._looked_up: dict[str, float] = {}
        """By name of a departed topic: the monotonic time of its last lookup."""
        self._elsewhere: dict[str, Elsewhere] = {}
        self.away_since: float | None = None
        """The monotonic time since which the catalog does not answer."""

    def __contains__(self, name: str) -> bool:
        """Return whether a topic of this name is about to be created."""
        return name in self._granted or name in self._creations

    def __len__(self) -> int:
        """Return the number of topics that are about to be created."""
        return len(self._granted) + len(self._creations)

    @property
    def waiting_count(self) -> int:
        return len(self._creations) + len(self._look_ups)

    def start(self, node: Node, calls: CatalogCalls) -> None:
        """Begin to ask a catalog."""
        self._node = node
        self._calls = calls
        self._background = Background(self._loop, self._shard.threads.catalog, self._shard.log)
        self._is_started = True

    def stop(self) -> None:
        self._background.stop()
        self._refuse_all(shutting_down())

    # -- requests --------------------------------------------------------------------------------------------

    def defer(self, name: str, retry: Callable[[], object], refuse: Refuse) -> bool:
        """Defer or refuse a request for a missing topic; return False when the answer is known here."""
        if (creation := self._creations.get(name)) is not None:
            self._wait(name, creation, retry, refuse)
        elif name in self._look_ups or self._is_outdated(name):
            self.look_up(name)
            self._wait(name, self._look_ups[name], retry, refuse)
        else:
            return False
        return True

    def defer_creation(self, topic: Topic, count: int, retry: Callable[[], object], refuse: Refuse) -> bool:
        """Defer or refuse a request to create a topic, unless its name is granted (N1).

        `topic` is not registered yet, and `count` is the number of records that the request appends.
        """
        shard, name = self._shard, topic.name
        if topic.ownership is not None or not self._is_started:
            return False
        elsewhere = self._elsewhere.get(name)
        if elsewhere is not None and shard.clock.monotonic() < elsewhere.until:
            refuse(elsewhere.refusal)
        elif self.away_since is not None:
            refuse(_catalog_away(name))
        elif len(self._creations) >= shard.settings.max_waiting_requests:
            refuse(throttled("too many topics are being created"))
        else:
            shard.raise_epoch_floor(topic.epoch)
            ceiling = next_ceiling(topic, shard.clock.now_ms()) + count
            creation = Creation(NewTopic(name, topic.topic_id, topic.epoch, ceiling))
            self._creations[name] = creation
            self._wait(name, creation, retry, refuse)
            self._start()
        return True

    def apply_grant(self, topic: Topic) -> None:
        """Give a new topic the incarnation and the ceiling of its row, if the catalog has granted one."""
        grant = self._granted.get(topic.name)
        if grant is not None:
            topic.epoch, topic.ownership = grant.epoch, Owned(1, grant.ceiling)

    def use_grant(self, topic: Topic) -> None:
        """Note that a topic with a granted name is created."""
        del self._granted[topic.name]

    def look_up(self, name: str) -> None:
        """Look the row of a departed topic up again, unless that was done lately; no request waits."""
        if name not in self._look_ups and self._is_outdated(name):
            self._look_ups[name] = PendingName()
            self._start()

    def _is_outdated(self, name: str) -> bool:
        """Return whether a name is of a departed topic, and was not looked up lately."""
        if not self._is_started or name not in self._shard.departed:
            return False
        at = self._looked_up.get(name)
        return at is None or self._shard.clock.monotonic() - at >= LOOK_UP_SECONDS

    def _wait(self, name: str, pending: PendingName, retry: Callable[[], object], refuse: Refuse) -> None:
        if self.away_since is not None and name in self._creations:
            refuse(_catalog_away(name))
        elif len(pending.requests) >= self._shard.settings.max_waiting_requests:
            refuse(throttled(f'topic "{name}" is being created and too many requests wait for it'))
        else:
            if not pending.requests:
                self._loop.call_later(WAIT_SECONDS, self._refuse, pending, _catalog_away(name))
            pending.requests.append(DeferredRequest(retry, refuse))

    def _refuse(self, pending: PendingName, refusal: Refusal) -> None:
        requests, pending.requests = pending.requests, []
        for request in requests:
            call_reply(request.refuse, refusal)

    def _refuse_all(self, refusal: Refusal) -> None:
        for pending in (*self._creations.values(), *self._look_ups.values()):
            self._refuse(pending, refusal)

    def _retry(self, pending: PendingName) -> None:
        """Run the requests that waited for a name, in order."""
        requests, pending.requests = pending.requests, []
        for request in requests:
            try:
                request.retry()
            except Exception as error:
                call_reply(request.refuse, refuse_unexpected_error(logger, "a deferred request", error))

    # -- the job ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._background.start(self._run(), self._on_end)

    def _run(self) -> BackgroundJob[None]:
        shard = self._shard
        while self._creations or self._look_ups:
            blocked = {one.name for one in shard.to_forget}
            names = list(islice((name for name in self._creations if name not in blocked), NAMES_AT_ONCE))
            look_ups = list(islice(self._look_ups, NAMES_AT_ONCE))
            if not names and not look_ups:
                # Another job removes the rows of the earlier topics (N4).
                shard.catalog_work.wake()
                yield BLOCKED_SECONDS
                continue
            try:
                yield from self._ask([self._creations[name].new for name in names], look_ups)
            except (CatalogUnavailable, CatalogRefused) as error:
                self._on_failure(error)
                yield RETRY_SECONDS

    def _on_end(self, outcome: object) -> None:
        self._is_running = False
        if isinstance(outcome, Exception):
            self._refuse_all(refuse_unexpected_error(logger, "the creation of a topic", outcome))
            self._creations.clear()
            self._look_ups.clear()

    def _ask(self, new: list[NewTopic], look_ups: list[str]) -> BackgroundJob[None]:
        calls: list[CatalogCall] = [partial(_create_all, new=new, node_id=self._node.node_id)] if new else []
        calls += [partial(_own, name=name) for name in look_ups]
        outcomes: list[Outcome] = yield partial(self._calls.run, calls, CALL_SECONDS)
        if self.away_since is not None:
            logger.info("catalog: answers again, topics can be created")
            self.away_since = None
        if new:
            for one, outcome in zip(new, outcomes[0], strict=True):
                self._on_created(one, outcome)
            del outcomes[0]
        # Those without an outcome are asked for again.
        for name, lookup in zip(look_ups, outcomes, strict=False):
            assert isinstance(lookup, Lookup)
            self.note_row(name, lookup.row)
            self._retry(self._look_ups.pop(name))

    def _on_failure(self, error: OSError) -> None:
        now = self._shard.clock.monotonic()
        if self.away_since is None:
            self.away_since = now
            logger.warning("catalog: no answer, topics cannot be created: %s", error)
        for name, creation in self._creations.items():
            self._refuse(creation, _catalog_away(name))
        look_ups, self._look_ups = self._look_ups, {}
        # The answer is what is known here.
        self._looked_up.update(dict.fromkeys(look_ups, now))
        for pending in look_ups.values():
            self._retry(pending)

    def _on_created(self, new: NewTopic, outcome: TopicRow | Fenced) -> None:
        name = new.name
        if isinstance(outcome, TopicRow):
            grant = self._granted[name] = Grant(new.incarnation, outcome.ceiling)
            self._loop.call_later(HOLD_SECONDS, self._drop_grant, name, grant)
            self._retry(self._creations.pop(name))
        elif not self._forget_earlier(outcome.row):
            refusal = _refuse_row(name, new, outcome.row, self._node.node_id)
            if len(self._elsewhere) >= ELSEWHERE_MAX:
                self._elsewhere.clear()
            until = self._shard.clock.monotonic() + LOOK_UP_SECONDS
            self._elsewhere[name] = Elsewhere(refusal, until)
            self._refuse(self._creations.pop(name), refusal)

    def _forget_earlier(self, row: TopicRow | None) -> bool:
        """If the row is one that this node has created and no topic uses, remove it, and return True."""
        if row is None or not self.is_unused(row):
            return False
        self._shard.to_forget[ToForget(row.name, row.incarnation, 1)] = None
        return True

    def is_unused(self, row: TopicRow) -> bool:
        """Return whether this node has created a row, and has no topic for it: nothing is lost with it."""
        is_first = (row.owner, row.owner_epoch, row.state) == (self._node.node_id, 1, "owned")
        is_here = row.topic_id in self._shard.topics_by_id or not self._node.owns_id(row.topic_id)
        return is_first and not row.exported_to and not is_here

    def _drop_grant(self, name: str, grant: Grant) -> None:
        if self._granted.get(name) is grant:
            del self._granted[name]
            self._shard.to_forget[ToForget(name, grant.epoch, 1)] = None
            self._shard.catalog_work.wake()

    # -- departed topics -------------------------------------------------------------------------------------

    def note_row(self, name: str, row: TopicRow | None) -> None:
        """Note the present row of a departed topic; free its name if there is none, and no file (N5)."""
        shard = self._shard
        one = shard.departed.get(name)
        if one is None:
            return
        self._looked_up[name] = shard.clock.monotonic()
        if row is None and one.topic_id not in shard.topics_by_id:
            del shard.departed[name], self._looked_up[name]
            shard.departures.pop(name, None)
            logger.info('topic "%s": deleted on another node, its name is free here', name)
            return
        node, owner_epoch = ("", 0) if row is None else (row.owner, row.owner_epoch)
        if node == self._node.node_id and row is not None and row.state == "owned":
            # An outdated copy, or an adopt that is not finished.
            return
        shard.departed[name] = msgspec.structs.replace(
            one, state=departure(row), node=node, owner_epoch=owner_epoch
        )


def _refuse_row(name: str, new: NewTopic, row: TopicRow | None, node_id: str) -> Refusal:
    """Refuse to create a topic whose name another node has, and say which one."""
    if row is None:
        return _catalog_away(name)
    refusal = refuse_departed(
        Departed(name, new.topic_id, row.incarnation, departure(row), row.owner, row.owner_epoch, 0)
    )
    if refusal.code == TOPIC_MOVED and row.owner == node_id:
        message = f'topic "{name}" is owned by this node, which has no files of it; adopt it with accept_loss'
        return msgspec.structs.replace(refusal, message=message)
    return refusal


def _catalog_away(name: str) -> Refusal:
    message = f'topic "{name}" cannot be created, since the catalog does not answer; retry after 1 s'
    return Refusal(CATALOG_UNAVAILABLE, message, None, RETRY_AFTER_MS)


def _create_all(catalog: Catalog, new: list[NewTopic], node_id: str) -> list[TopicRow | Fenced]:
    return catalog.create_all(new, node_id)


def _own(catalog: Catalog, name: str) -> Lookup:
    return catalog.own(name, Ownership("", 0, 0))
