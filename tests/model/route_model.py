"""Random operations on routes over three shards, and the records each destination must hold.

Promises: the same seed does the same. There are up to twenty topics of the classes `disk` and `fsync`, logs
and queues, some of which accept only a few records until the end, and rules with and without filters, from
the head and from the earliest record; each destination has one source, and there are no cycles. Records are
appended anywhere, rules are created, changed and deleted, topics deleted, shards cut off, stopped, killed in
a disk call, and left without power.

The oracle ignores acks: the contents of a source at the end count. For each rule, of the source's records
after the start of the rule, the destination has exactly those that the rule accepts, once each, in the order
of the source, as they were written, and nothing else except what was written to it directly.

Where topics evict, by caps and by age, the stamps of the copies name their records: they rise, and where
records are missing a reader of the destination gets a tombstone at that place.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec

from shared.contract.route_rule import RouteRule
from tests.harness.machine.faults import MachineGoneError
from tests.harness.shard.one_shard import OneShard, RecordedReply, bytes_record, record
from tests.harness.stage.route_shards import RouteShards
from topicsd.engine.routes.route import RoutePut

SHARDS = 3
TAGS = (None, "x", "xy", "y")
FILTERS = (None, None, None, ["tag", "Eq", "x"], ["tag", "Glob", "x*"], ["tag", "Eq", "unused"])


def is_of_bytes(value: int) -> bool:
    """Return whether the record with this value is one of bytes."""
    return value % 3 == 0


class DestRecord(NamedTuple):
    seq: int
    value: int
    tag: str
    stamp: dict[str, Any] | None


class RuleStart(NamedTuple):
    """The start of a rule, and what existed then."""

    rule: RouteRule
    source_seq: int
    dest_seq: int
    source_epoch: int


class RouteModel:
    def __init__(self, seed: int, trims: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.trims = trims
        self.stage = RouteShards(SHARDS, wal_file_bytes=1 << 16, segment_max_events=rng.choice((5, 1000)))
        self.topics = [f"t{number}" for number in range(rng.randint(4, 20))]
        self.sources: dict[str, str] = {}
        """By destination; each source is earlier in the list, so there are no cycles."""
        for index, topic in enumerate(self.topics):
            if index and rng.random() < 0.8:
                self.sources[topic] = self.topics[rng.randrange(index)]
        self.written: dict[str, set[int]] = {topic: set() for topic in self.topics}
        """The values sent to each topic directly, acknowledged or not."""
        self.rules: dict[str, RuleStart] = {}
        self._value = 0
        for topic in self.topics:
            self._create(topic)

    def _create(self, topic: str) -> None:
        rng = self.rng
        patch: dict[str, Any] = {"durability": rng.choice(("disk", "disk", "fsync"))}
        if rng.random() < 0.15:
            patch["type"] = "queue"
        if rng.random() < 0.2:
            patch |= {"cap_records": rng.randint(1, 20), "discard": "reject"}
        elif self.trims and rng.random() < 0.5:
            patch |= {"cap_records": rng.randint(1, 60)} if rng.random() < 0.7 else {"ttl_ms": 700}
        self.stage.owner(topic).put(topic, **patch)

    # -- operations ----------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [self._append] * 12 + [self._turns] * 12 + [self._make_rule] * 3
        actions += [self._change_rule, self._end_rule, self._end_shard, self._fault, self._fault]
        actions += [
            self._cut_off,
            self._reconnect,
            self._reconnect,
            self._pass_time,
            self._pass_time,
            self._checkpoint,
        ]
        for topic in self.topics[1:]:
            if self.rng.random() < 0.5:
                self._make_rule(topic)
        for _ in range(steps):
            if self.rng.random() < 0.02:
                self._run_until_crash(self._delete_topic)
            else:
                self._run_until_crash(self.rng.choice(actions))
            for topic in self.topics:
                while topic not in self.stage.owner(topic).shard.state.topics:
                    # The topic's recreation was interrupted.
                    self._run_until_crash(lambda topic=topic: self._create(topic))  # type: ignore[misc]
        self.finish()

    def _run_until_crash(self, go: Callable[[], object]) -> bool:
        """Run `go`; if a machine or process ends with it, restart it and return False."""
        try:
            go()
            return True
        except MachineGoneError:
            for number, one in enumerate(self.stage.shards):
                if one.disk.is_gone:
                    how = self.rng.choice((OneShard.kill, OneShard.cut_power))
                    self.stage.end(number, how)
            return False

    def _append(self) -> None:
        topic = self.rng.choice(self.topics)
        records = []
        for _ in range(self.rng.choice((1, 1, 3, 40))):
            self._value += 1
            self.written[topic].add(self._value)
            meta = {"k": self._value} if self.rng.random() < 0.3 else None
            tag, node = self.rng.choice(TAGS), self.rng.choice((None, "n"))
            if is_of_bytes(self._value):
                records.append(bytes_record(b"%d" % self._value, tag, node, meta))
            else:
                records.append(record(self._value, tag, node, meta))
        self.stage.owner(topic).send_append(topic, *records)

    def _turns(self) -> None:
        def go() -> None:
            for _ in range(self.rng.randint(1, 8)):
                self.rng.choice(self.stage.shards).turn()

        self._run_until_crash(go)

    def _pass_time(self) -> None:
        self._run_until_crash(lambda: self.stage.pass_time(self.rng.choice((1, 60, 500))))

    def _checkpoint(self) -> None:
        self.rng.choice(self.stage.shards).shard.start_checkpoint()

    def _cut_off(self) -> None:
        self.stage.cut_off(self.rng.randrange(SHARDS))

    def _reconnect(self) -> None:
        self.stage.reconnect()

    def _end_shard(self) -> None:
        how = self.rng.choice((OneShard.restart, OneShard.kill, OneShard.reboot, OneShard.cut_power))
        number = self.rng.randrange(SHARDS)
        self._run_until_crash(lambda: self.stage.end(number, how))

    def _fault(self) -> None:
        disk = self.rng.choice(self.stage.shards).disk
        nth = self.rng.randint(0, 12)
        if self.rng.random() < 0.5:
            disk.kill_process_after(nth, torn=self.rng.random() < 0.5)
        else:
            disk.cut_power_after(nth)

    def _wait_until_copied(self) -> None:
        """Wait until everything is copied and synced, so that the start of a rule is known.

        Faults stay armed.
        """
        self.stage.reconnect()
        calm = 0
        while calm < 6:
            calm = calm + 1 if self._run_until_crash(lambda: self.stage.pass_time(1500)) else 0

    def _make_rule(self, dest: str | None = None) -> None:
        dest = dest or self.rng.choice(self.topics)
        source = self.sources.get(dest)
        name = f"{source}>{dest}"
        if source is None or self.stage.route(name) is not None:
            return
        self._wait_until_copied()
        dest_seq, source_seq = self._head(dest), self._head(source)
        rule = RouteRule(
            name,
            source,
            dest,
            self._filter(),
            keeps_node=self.rng.random() < 0.7,
            keeps_tag=self.rng.random() < 0.9,
            is_exactly_once=self.trims or self.rng.random() < 0.4,
            # What it would have to hold may be gone when that is checked.
            is_from_start=self.rng.random() < 0.5 and not (self.trims and dest_seq),
        )
        replies: list[RecordedReply] = []
        self._run_until_crash(lambda: replies.append(self.stage.send_put_route(rule)))
        self._run_until_crash(self.stage.settle)
        if replies and replies[0].has_answer and isinstance(replies[0].answer, RoutePut):
            first_seq = 0 if rule.is_from_start else source_seq
            self.rules[name] = RuleStart(
                rule, first_seq, dest_seq, self.stage.owner(source).topic(source).epoch
            )
        elif self.stage.route(name) is not None:
            # In doubt: created, or being created. The oracle cannot use it.
            self._run_until_crash(lambda: self.stage.delete_route(name))
            self.rules.pop(name, None)

    def _change_rule(self) -> None:
        """Change a rule once everything that it accepts so far is copied."""
        if not self.rules:
            return
        name = self.rng.choice(list(self.rules))
        start = self.rules[name]
        self._wait_until_copied()
        if self.stage.route(name) is None or self._is_blocked(start.rule):
            return
        self.check(start)
        changed = msgspec.structs.replace(start.rule, tags=self._filter(), keeps_node=False)
        heads = self._head(start.rule.source), self._head(start.rule.dest)
        del self.rules[name]
        replies: list[RecordedReply] = []
        self._run_until_crash(lambda: replies.append(self.stage.send_put_route(changed)))
        self._run_until_crash(self.stage.settle)
        if replies and replies[0].has_answer and isinstance(replies[0].answer, RoutePut):
            self.rules[name] = RuleStart(changed, *heads, start.source_epoch)

    def _filter(self) -> list[str] | None:
        return self.rng.choice(FILTERS)

    def _end_rule(self) -> None:
        if self.rules:
            name = self.rng.choice(list(self.rules))
            del self.rules[name]
            self._wait_until_copied()
            if self.stage.route(name) is not None:
                self._run_until_crash(lambda: self.stage.delete_route(name))

    def _delete_topic(self) -> None:
        """Delete a topic with all rules that touch it, and create another in its place."""
        topic = self.rng.choice(self.topics)
        self._wait_until_copied()
        self._run_until_crash(lambda: self.stage.owner(topic).delete_topic(topic))
        self._wait_until_copied()
        if topic in self.stage.owner(topic).shard.state.topics:
            return
        for name, began in list(self.rules.items()):
            if topic in (began.rule.source, began.rule.dest):
                del self.rules[name]
                assert self.stage.route(name) is None, f"{name} still uses the deleted topic {topic}"
        self.written[topic] = set()
        self._create(topic)

    # -- invariants ----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Restore all shards, make room in every topic, and check all rules."""
        for one in self.stage.shards:
            one.disk.kill_process_after(1 << 60)
        self._wait_until_copied()
        for topic in self.topics:
            if self.stage.owner(topic).topic(topic).can_reject:
                self.stage.owner(topic).put(topic, cap_records=0)
        for _ in range(30):
            self.stage.pass_time(1000)
        for began in self.rules.values():
            self.check(began)

    def check(self, began: RuleStart) -> None:
        rule = began.rule
        forward = self.stage.route(rule.name)
        assert forward is not None, f"route {rule.name} is missing"
        if self._is_blocked(rule):
            return
        source, dest = self.records(rule.source), self.records(rule.dest)
        head = self._head(rule.source)
        assert forward.seq == head, f"{rule.name} is at {forward.seq} of {head}"
        if self.trims:
            self._check_stamps(began, head)
            return
        stamps = [one.stamp for one in dest if one.seq <= began.dest_seq and one.stamp is not None]
        expected_seqs = {
            one["seq"] for one in stamps if (one["source"], one["epoch"]) == (rule.source, began.source_epoch)
        }
        expected = [
            (one.value, one.tag if rule.keeps_tag else "")
            for one in source
            if one.seq > began.source_seq
            and _accepts(rule, one.tag)
            and not (rule.is_exactly_once and rule.is_from_start and one.seq in expected_seqs)
        ]
        direct = self.written[rule.dest]
        copies = [
            (one.value, one.tag) for one in dest if one.seq > began.dest_seq and one.value not in direct
        ]
        assert copies == expected, f"{rule}: {copies} is not {expected}"

    def _check_stamps(self, began: RuleStart, head: int) -> None:
        """Check that each missing source record after the start of the rule was reported."""
        rule, last = began.rule, began.source_seq
        is_gap_reported = (
            rule.is_from_start
        )  # The rule may have begun after records that were evicted before.
        cursor, is_at_end = began.dest_seq, False
        while not is_at_end:
            answer = self.stage.owner(rule.dest).read(rule.dest, cursor, limit=1000)
            is_gap_reported = is_gap_reported or answer.tombstone is not None
            for one in answer.records:
                stamp = None if one.meta is None else msgspec.json.decode(one.meta).get("_topics_router")
                if stamp is None or stamp["source"] != rule.source:
                    continue
                seq = stamp["seq"]
                assert seq > last, f"{rule.name}: seq {seq} after seq {last}"
                assert not rule.keeps_tag or _accepts(rule, one.tag.decode()), (
                    f"{rule.name}: copied a record with tag {one.tag!r}"
                )
                # Records left out by a filter are missing as well, and are not known any more.
                assert seq == last + 1 or is_gap_reported or rule.tags is not None, (
                    f"{rule.name}: seqs {last + 1} to {seq - 1} are missing without a tombstone"
                )
                last, is_gap_reported = seq, False
            cursor, is_at_end = answer.next_from_seq, answer.caught_up
        assert last == head or is_gap_reported or rule.tags is not None, (
            f"{rule.name}: seqs {last + 1} to {head} are missing without a tombstone"
        )

    def _is_blocked(self, rule: RouteRule) -> bool:
        """Return whether a topic on the way rejects records until the end."""
        topics, name = [rule.dest], rule.dest
        while name in self.sources:
            name = self.sources[name]
            topics.append(name)
        return any(self.stage.owner(one).topic(one).can_reject for one in topics)

    def _head(self, topic: str) -> int:
        return self.stage.owner(topic).state(topic).head_seq

    def records(self, topic: str) -> list[DestRecord]:
        records: list[DestRecord] = []
        cursor, is_at_end = 0, False
        while not is_at_end:
            answer = self.stage.owner(topic).read(topic, cursor, limit=1000)
            for one in answer.records:
                stamp = None if one.meta is None else msgspec.json.decode(one.meta).get("_topics_router")
                assert one.is_bytes == is_of_bytes(int(one.data)), one
                records.append(DestRecord(one.seq, int(one.data), one.tag.decode(), stamp))
            cursor, is_at_end = answer.next_from_seq, answer.caught_up
        return records


def _accepts(rule: RouteRule, tag: str) -> bool:
    if rule.tags is None:
        return True
    _, way, pattern = rule.tags
    return tag.startswith(pattern[:-1]) if way == "Glob" else tag == pattern
