"""The catalog's side of a shard: ceilings ahead of need, rows of deleted topics, rows of topics without one.

The rows of new topics are created by `new_names.py`, before the topics are.

One background job makes all requests, so they have one order. It sleeps until there is work: no topic is
polled. A request that gets no answer is repeated after a pause until it gets one (R9), and requests for other
topics wait as long, since they would wait for the same catalog. Nothing else in the shard waits for it.

O5  A topic is looked at only after all that joined the log before is synced and published. So no row is
    created for a topic whose creation a crash could undo.
O6  The row of a deleted topic is removed before a row is created for another topic of its name. The removal
    is owed from the frame of the deletion on: by the log, then by each snapshot until it is done.
O7  A refusal by the catalog (`Fenced`) means that another node may own the topic: it departs at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.disk_thread import Loop
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    Catalog,
    CatalogRefused,
    CatalogUnavailable,
    ChangeRefused,
    Fenced,
    Ownership,
    TopicRow,
)
from topicsd.engine.jobs import SYNCED, Background, BackgroundJob, Operation
from topicsd.engine.ownership.catalog_work import CatalogCall, CatalogCalls, Node, Outcome
from topicsd.engine.ownership.departed import SEALED, Departed, ToForget, departure
from topicsd.engine.ownership.owned import Owned, needs_raise, next_ceiling, watch_mark
from topicsd.engine.ownership.verdict import verdict
from topicsd.engine.pending import PendingFrame
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import DepartedFrame, encode_control

logger = logging.getLogger("topicsd.engine")

GATHER_SECONDS: Final = 0.05
"""How long the job waits for more work before it asks the catalog."""
TOPICS_AT_ONCE: Final = 500
CALL_SECONDS: Final = 0.5
"""The longest list of requests; a topic near its ceiling waits for no more than this and one request."""
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
DEFERRED_SECONDS: Final = 1.0
"""After this time a topic is looked at again whose deletion was pending."""
WRITE_MAX: Final = 1 << 16
"""At least the records of the largest write that the server makes by itself."""


class CatalogState(NamedTuple):
    """The state of the requests, for metrics."""

    waiting_count: int
    """Topics whose rows have to be created or changed, names to ask for, and rows to remove."""
    away_since: float | None
    """The monotonic time since which the catalog does not answer."""
    near_count: int
    """Topics that have used most of the seqs that the catalog granted."""
    request_count: int
    failure_count: int
    """Requests without an answer."""


class CatalogRounds:
    """The job of one shard that asks the catalog."""

    def __init__(self, shard: ShardState, loop: Loop, node: Node) -> None:
        self._shard = shard
        self._loop = loop
        self._node = node
        self.node_id = node.node_id
        self.owns_id = node.owns_id
        self.calls = CatalogCalls(node.open_catalog, shard.clock)
        self._background = Background(loop, shard.threads.catalog, shard.log)
        self._away_since: float | None = None
        self._pause = PAUSE_SECONDS
        self._write_max = max(shard.settings.max_batch_records, WRITE_MAX)
        self._unfinished: list[TopicRow] = []
        self.on_unfinished: Callable[[list[TopicRow]], object] = lambda rows: None
        """Called after the start with the rows of adopts that a crash interrupted (S4 of `hand_on.py`)."""
        self.has_looked_up = False

    def start(self) -> None:
        """Observe the ceilings that the log knows, and start the job."""
        shard = self._shard
        shard.catalog_work.start(self._write_max)
        shard.new_names.start(self._node, self.calls)
        for topic in shard.topics.values():
            if topic.ownership is not None:
                watch_mark(topic, shard.clock.now_ms(), self._write_max)
        self._background.start(self._run(), self._on_end)

    def stop(self) -> None:
        self.calls.stop()
        self._shard.new_names.stop()
        self._background.stop()

    def close(self) -> None:
        """Close the catalog, after all jobs that use it have stopped."""
        self.calls.close()

    @property
    def state(self) -> CatalogState:
        shard = self._shard
        waiting = len(shard.catalog_work) + len(shard.to_forget) + shard.new_names.waiting_count
        away = [one for one in (self._away_since, shard.new_names.away_since) if one is not None]
        counts = (self.calls.request_count, self.calls.failure_count)
        return CatalogState(waiting, min(away, default=None), shard.catalog_work.urgent_count, *counts)

    def _on_end(self, outcome: object) -> None:
        """Start again after an unexpected error; the job itself never ends."""
        if isinstance(outcome, Exception) and self._shard.log.failed is None:
            logger.error("catalog: round failed, retrying: %s", outcome, exc_info=outcome)
            self._loop.call_later(PAUSE_SECONDS_MAX, self._background.start, self._run(), self._on_end)

    def _run(self) -> BackgroundJob[None]:
        if not self.has_looked_up:
            yield from self._look_up()
        work = self._shard.catalog_work
        while True:
            yield from self._forget_rows()
            topics = work.take(TOPICS_AT_ONCE)
            if topics:
                try:
                    yield from self._update(topics)
                except BaseException:
                    for topic in topics:
                        work.add(topic)
                    raise
            if not len(work) and not self._shard.to_forget:
                yield Operation(work.wait)
                yield GATHER_SECONDS

    # -- the start -------------------------------------------------------------------------------------------

    def _look_up(self) -> BackgroundJob[None]:
        """Compare all topics with their rows, and say which rules decided."""
        shard = self._shard
        departed = set(shard.departed)
        # Not those that another shard of this node has, and that are dropped here.
        unseen = {topic.name: topic for topic in shard.topics.values() if self._node.owns_id(topic.topic_id)}
        rules: Counter[str] = Counter()
        after = ""
        while True:
            (rows,) = yield from self._ask([partial(_list_page, after=after)])
            for row in rows:
                if row.name in departed:
                    departed.discard(row.name)
                    shard.new_names.note_row(row.name, row)
                if self._node.owns_id(row.topic_id) and self._is_current(row):
                    topic = unseen.pop(row.name, None)
                    if topic is not None:
                        rules[self._decide(topic, row)] += 1
                    elif row.name not in shard.topics and row.owner == self._node.node_id:
                        self._note_orphan(row)
            if not rows:
                break
            after = rows[-1].name
            yield None
        for name in departed:
            shard.new_names.note_row(name, None)
        for topic in unseen.values():
            if shard.is_live(topic):
                rules[self._decide(topic, None)] += 1
        self.has_looked_up = True
        if self._unfinished:
            self.on_unfinished(self._unfinished)
        if rules:
            counts = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))
            logger.info("catalog: ownership of topics decided: %s", counts)

    def _is_current(self, row: TopicRow) -> bool:
        """Return whether the row is not one to remove, of a topic that was deleted here."""
        return ToForget(row.name, row.incarnation, row.owner_epoch) not in self._shard.to_forget

    def _decide(self, topic: Topic, row: TopicRow | None) -> str:
        shard = self._shard
        if not shard.is_live(topic):
            return "empty"
        rule, state = verdict(topic, row, self._node.node_id)
        if state is not None:
            set_aside(shard, topic, state, row)
        elif row is None:
            shard.catalog_work.add(topic)
        else:
            self.note_row(topic, row)
        return rule

    def _note_orphan(self, row: TopicRow) -> None:
        """Note a row that names this node as the owner, and has no topic here."""
        new_names = self._shard.new_names
        if row.state == "sealed" or row.name in new_names:
            return
        if is_without_loss(row):
            self._unfinished.append(row)
        elif new_names.is_unused(row):
            logger.warning(
                'catalog: topic "%s": this node has its name, no files of it, and nothing was exported: the '
                "name is free again",
                row.name,
            )
            self._shard.to_forget[ToForget(row.name, row.incarnation, 1)] = None
        else:
            logger.warning(
                'catalog: topic "%s": this node is its owner and has no files of it: adopt it with '
                "accept_loss, or delete it",
                row.name,
            )

    # -- rows of topics --------------------------------------------------------------------------------------

    def _update(self, topics: list[Topic]) -> BackgroundJob[None]:
        shard = self._shard
        yield SYNCED
        topics = self._present(topics)
        new = [topic for topic in topics if topic.ownership is None]
        if new:
            # Only while the catalog answers: until the first request there is no ceiling (O1).
            yield from self._ask([partial(_list_page, after="", limit=1)])
            for topic in new:
                if shard.is_live(topic):
                    self._grant(topic, Owned(0, next_ceiling(topic, shard.clock.now_ms())))
            yield SYNCED
        topics = self._present(topics)
        outcomes = yield from self._ask([self._call_of(topic) for topic in topics])
        for topic, outcome in zip(topics, outcomes, strict=True):
            self._apply(topic, outcome)

    def _present(self, topics: list[Topic]) -> list[Topic]:
        """Return the topics that exist and whose requests are not deferred; look at those later."""
        shard = self._shard
        for topic in topics:
            if topic.deferred_requests is not None and shard.topics.get(topic.name) is topic:
                self._loop.call_later(DEFERRED_SECONDS, shard.catalog_work.add, topic)
        return [topic for topic in topics if shard.is_live(topic) and topic.visible]

    def _call_of(self, topic: Topic) -> CatalogCall:
        owned = topic.ownership
        assert owned is not None
        if not owned.owner_epoch:
            ownership = Ownership(self._node.node_id, topic.epoch, 1)
            return partial(
                _create,
                name=topic.name,
                topic_id=topic.topic_id,
                ownership=ownership,
                ceiling=owned.ceiling,
            )
        ceiling = owned.ceiling
        if owned.is_near:
            ceiling = max(ceiling, next_ceiling(topic, self._shard.clock.now_ms()))
        ownership = Ownership(self._node.node_id, topic.epoch, owned.owner_epoch)
        return partial(_raise, name=topic.name, ownership=ownership, ceiling=ceiling)

    def _apply(self, topic: Topic, outcome: Outcome) -> None:
        if not self._present([topic]):
            return
        if isinstance(outcome, ChangeRefused):
            logger.error('catalog: topic "%s": change refused: %s', topic.name, outcome)
        elif isinstance(outcome, Fenced):
            if not self._forget_earlier(topic, outcome.row):
                self.on_fenced(topic, outcome)
        else:
            assert isinstance(outcome, TopicRow)
            self.note_row(topic, outcome)

    def _forget_earlier(self, topic: Topic, row: TopicRow | None) -> bool:
        """If the row is of an earlier topic of this name, remove it first, and return True.

        The request that created it was given up and done after the row was removed. This node would have the
        topic, since a name is on one shard; nothing of it was exported, so nothing can be lost.
        """
        owned = topic.ownership
        if row is None or owned is None or owned.owner_epoch or row.exported_to:
            return False
        earlier = ToForget(row.name, row.incarnation, 1)
        if row.incarnation == topic.epoch or row.ownership != Ownership(self.node_id, earlier.epoch, 1):
            return False
        self._shard.to_forget[earlier] = None
        self._shard.catalog_work.add(topic)
        return True

    def on_fenced(self, topic: Topic, fenced: Fenced) -> None:
        """Have a topic depart whose row does not permit a change (O7)."""
        if self._present([topic]):
            set_aside(self._shard, topic, departure(fenced.row), fenced.row)

    def note_row(self, topic: Topic, row: TopicRow) -> None:
        """Note a row that names this node as the owner."""
        before = topic.ownership
        if before is None or (before.owner_epoch, before.ceiling) != (row.owner_epoch, row.ceiling):
            self._grant(topic, Owned(row.owner_epoch, row.ceiling, before.seal_key if before else ""))
        if needs_raise(topic, self._shard.clock.now_ms()):
            self._shard.catalog_work.add(topic)

    def _grant(self, topic: Topic, owned: Owned) -> None:
        before = topic.ownership
        if before is not None:
            owned.raised_head, owned.raised_at_ms = before.raised_head, before.raised_at_ms
            owned.exported_state = before.exported_state
        topic.ownership = owned
        watch_mark(topic, self._shard.clock.now_ms(), self._write_max)
        if topic.deferred_requests is None or topic.is_frozen:
            frame = encode_control(owned.frame, topic_id=topic.topic_id, ts=topic.last_ts)
            self._shard.log.join_control_frame(frame, PendingFrame(topic))

    # -- rows of deleted topics ------------------------------------------------------------------------------

    def _forget_rows(self) -> BackgroundJob[None]:
        to_forget = list(self._shard.to_forget)[:TOPICS_AT_ONCE]
        if not to_forget:
            return
        # The deletion must be on the disk before its row is removed.
        yield SYNCED
        node_id = self._node.node_id
        # First: a repeated `forget` finds the topic removed, and its keys with it.
        keys = yield from self._ask([partial(_object_keys, one=one, node_id=node_id) for one in to_forget])
        outcomes = yield from self._ask([partial(_forget, one=one, node_id=node_id) for one in to_forget])
        for one, own_keys, outcome in zip(to_forget, keys, outcomes, strict=True):
            self._shard.to_forget.pop(one, None)
            if isinstance(outcome, Fenced):
                logger.warning('catalog: topic "%s": deleted here, and kept there: %s', one.name, outcome)
            else:
                self._delete_objects(own_keys)

    def _delete_objects(self, keys: list[str]) -> None:
        """Have the objects of a deleted topic deleted after the grace."""
        shard = self._shard
        for stem in {key.rpartition(".")[0] for key in keys}:
            shard.objects_to_delete.setdefault(stem, shard.clock.now_ms())
            if shard.released_stems is not None:
                shard.released_stems.add(stem)

    # -- requests --------------------------------------------------------------------------------------------

    def _ask(self, calls: Sequence[CatalogCall]) -> BackgroundJob[list[Outcome]]:
        """Make all requests, in order, and repeat each until it is answered."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(calls):
            try:
                outcomes += yield partial(self.calls.run, calls[len(outcomes) :], CALL_SECONDS)
            except (CatalogUnavailable, CatalogRefused) as error:
                self._note_failure(error)
                yield self._pause
                self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
            else:
                self._note_answer()
        return outcomes

    def _note_failure(self, error: OSError) -> None:
        if self._away_since is None:
            self._away_since = self._shard.clock.monotonic()
            logger.warning(
                "catalog: no answer, retrying; topics stay writable up to their ceilings: %s", error
            )

    def _note_answer(self) -> None:
        if self._away_since is not None:
            seconds = self._shard.clock.monotonic() - self._away_since
            logger.info("catalog: answers again after %.0f s", seconds)
        self._away_since, self._pause = None, PAUSE_SECONDS


def is_without_loss(row: TopicRow) -> bool:
    """Return whether an owner that has adopted the topic cannot have given out a seq that is not exported."""
    return row.state == "owned" and row.owner_epoch > 1 and row.exported_to == row.ceiling


def set_aside(shard: ShardState, topic: Topic, state: str, row: TopicRow | None) -> None:
    """Have the topic depart: it is served no more, and its files are kept."""
    node, owner_epoch = ("", 0) if row is None else (row.owner, row.owner_epoch)
    departed = Departed(
        topic.name, topic.topic_id, topic.epoch, state, node, owner_epoch, shard.clock.now_ms()
    )
    frame = DepartedFrame(state, node, owner_epoch)
    # Undone by a full disk, it is decided again by the next start.
    shard.log.join_control_frame(
        encode_control(frame, topic_id=topic.topic_id, ts=departed.since_ms), PendingFrame(topic)
    )
    shard.depart(topic, departed)
    shard.wake_queue.wake(topic)
    # A seal was asked for, and drops the files; everything else is a surprise.
    level, kept = (logging.INFO, "") if state == SEALED else (logging.ERROR, ", its files are kept")
    logger.log(
        level,
        'topic "%s": not served any more%s: %s: node=%s owner_epoch=%d head=%d',
        topic.name,
        kept,
        state,
        node or "-",
        owner_epoch,
        topic.head,
    )


# The requests, as functions of the catalog. They run on a thread, so they take plain values only.


def _list_page(catalog: Catalog, after: str, limit: int = ROWS_AT_ONCE) -> list[TopicRow]:
    return catalog.list("", after, limit)


def _create(catalog: Catalog, name: str, topic_id: int, ownership: Ownership, ceiling: int) -> TopicRow:
    return catalog.create(name, topic_id, ownership.incarnation, ownership.node, ceiling)


def _raise(catalog: Catalog, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
    return catalog.raise_ceiling(name, ownership, ceiling)


def _forget(catalog: Catalog, one: ToForget, node_id: str) -> None:
    catalog.forget(one.name, Ownership(node_id, one.epoch, one.owner_epoch))


def _object_keys(catalog: Catalog, one: ToForget, node_id: str) -> list[str]:
    """Return the keys of a deleted topic: once its row is removed only this node knows them (R3)."""
    ownership = Ownership(node_id, one.epoch, one.owner_epoch)
    keys: list[str] = []
    row = catalog.own(one.name, ownership).row
    if row is not None and row.ownership == ownership:
        keys += [] if row.sealed_key is None else [row.sealed_key]
        seq = 0
        while extents := catalog.extents_from(one.name, seq, EXTENTS_AT_ONCE):
            keys += [stored.key for extent in extents for stored in extent.objects]
            seq = extents[-1].last_seq + 1
    return keys
