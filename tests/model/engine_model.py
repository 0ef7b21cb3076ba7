"""A random client of one shard that checks every answer against the oracle.

The seed alone determines an episode. Each operation checks its answer. After every `CHECK_EVERY` operations
and after every restart all topics are compared: their state, and reads from several positions to the head. A
failure names the seed and the last operations.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from shared.contract.errors import POSITION_PAST_HEAD
from shared.contract.tag_filter import TagFilter
from shared.contract.topic_config import TopicConfig
from tests.harness.shard.one_shard import OneShard, RecordedReply, bytes_record, record
from tests.model.topic_oracle import OracleKey, OracleNumber, OracleRecord, OracleTopic
from topicsd.engine.read.cursors import delete_cursor, put_cursor, records_after
from topicsd.engine.read.read import PAGES_MAX
from topicsd.engine.requests import AppendAnswer, DeleteAnswer, NewRecord, ProducerSeq, ReadAnswer, TopicState

CHECK_EVERY = 40
NAMES = ("orders", "jobs", "cache", "audit", "a.b:c")
TAGS = (None, None, "x", "xy", "xyz", "y", "ü")
FILTERS = (
    TagFilter(frozenset(["x"])),
    TagFilter(frozenset(["xy", "ü", "none"])),
    TagFilter(prefixes=("x",)),
    TagFilter(prefixes=("",)),
    TagFilter(frozenset(["y"]), ("xy",)),
    TagFilter(globs=("?", "x*z")),
    TagFilter(frozenset(["none"])),
)
NODES = (None, None, "n1", "n2")
HISTORY_SHOWN = 30


def as_sent(one: OracleRecord) -> NewRecord:
    return (bytes_record if one.is_bytes else record)(one.data, one.tag, one.node)


class Episode:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.one = OneShard(
            wal_file_bytes=self.rng.choice((4096, 16384, 1 << 20)),
            segment_max_events=self.rng.choice((1, 3, 10, 100, 10_000)),
            segment_max_bytes=self.rng.choice((4096, 1 << 20)),
            segment_max_age_ms=self.rng.choice((1000, 3_600_000)),
            checkpoint_interval_ms=self.rng.choice((100, 1000, 60_000)),
            reader_grace_ms=self.rng.choice((0, 5000)),
            cold_dir=self.rng.choice(("", "/cold")),
            hot_retain_segments=self.rng.choice((0, 1, 4)),
        )
        self.topics: dict[str, OracleTopic] = {}
        self.history: list[str] = []
        self.count = 0
        self.payload_count = 0
        self.key_count = 0
        self.expectations: list[tuple[RecordedReply, Any]] = []

    def run(self, operations: int) -> None:
        try:
            while self.count < operations:
                self.step()
                self.count += 1
                if not self.count % CHECK_EVERY:
                    self.check()
            self.check()
        except AssertionError as error:
            last = "\n".join(self.history[-HISTORY_SHOWN:])
            raise AssertionError(f"seed {self.seed}, operation {self.count}: {error}\n{last}") from error

    def step(self) -> None:
        chance = self.rng.random()
        for share, operation in self.SHARES:
            if chance < share:
                operation(self)
                return
            chance -= share
        raise AssertionError("the shares add up to one")

    @property
    def now_ms(self) -> int:
        return self.one.clock.now_ms()

    def note(self, what: str) -> None:
        self.history.append(f"{self.count}: {what}")

    # Appends.

    def append(self) -> None:
        self.one.settle()
        for _ in range(self.rng.choice((1, 1, 1, 2, 5))):
            self.expect_append(self.rng.choice(NAMES), self.new_records())
        self.one.settle()
        self.check_replies()

    def new_records(self) -> list[OracleRecord]:
        records = []
        for _ in range(self.rng.choice((1, 1, 2, 3, 10))):
            self.payload_count += 1
            is_bytes = self.rng.random() < 0.3
            text = b'"%d %b"' % (self.payload_count, b"x" * self.rng.randrange(30))
            data = text + self.rng.randbytes(self.rng.randrange(30)) if is_bytes else text
            records.append(OracleRecord(0, data, self.rng.choice(TAGS), self.rng.choice(NODES), is_bytes))
        return records

    def expect_append(self, name: str, records: list[OracleRecord], key: str | None = None) -> None:
        """Send an append, and note the expected answer."""
        self.note(f"append {len(records)} to {name}, key {key}")
        sent = [as_sent(one) for one in records]
        topic = self.topics.get(name)
        created = topic is None
        if topic is None:
            topic = self.topics[name] = OracleTopic(TopicConfig(), self.now_ms)
        code = topic.refusal([one.size for one in records], self.now_ms)
        reply = self.one.send_append(name, *sent, idempotency_key=key)
        if code is not None:
            assert reply.code == code, f"{reply.answer} instead of {code}"
            return
        first = topic.append(records, self.now_ms)
        if key is not None:
            topic.keys[key] = OracleKey(records, first, topic.last_ts)
        durability = topic.config.durability
        expected = AppendAnswer(name, first, topic.head, topic.head, created, False, durability)
        self.expectations.append((reply, expected))

    def check_replies(self) -> None:
        for reply, expected in self.expectations:
            assert reply.answer == expected, f"{reply.answer} instead of {expected}"
        self.expectations.clear()

    def keyed_append(self) -> None:
        name = self.rng.choice(NAMES)
        self.forget_keys()
        self.key_count += 1
        self.expect_append(name, self.new_records(), f"key-{self.key_count}")
        self.one.settle()
        self.check_replies()

    def repeated_append(self) -> None:
        self.forget_keys()
        known = [(name, key) for name, topic in sorted(self.topics.items()) for key in topic.keys]
        if not known:
            return
        name, key = self.rng.choice(known)
        topic, used = self.topics[name], self.topics[name].keys[key]
        is_same = self.rng.random() < 0.7
        self.note(f"append to {name} again under {key}, {'the same' if is_same else 'other'} records")
        records = used.records if is_same else self.new_records()
        reply = self.one.send_append(name, *[as_sent(one) for one in records], idempotency_key=key)
        self.one.settle()
        if not is_same:
            assert reply.code == "idempotency_mismatch", reply.answer
            return
        last, durability = used.first_seq + len(records) - 1, topic.config.durability
        expected = AppendAnswer(name, used.first_seq, last, topic.head, False, True, durability)
        assert reply.answer == expected, f"{reply.answer} instead of {expected}"

    def numbered_append(self) -> None:
        """Send the next write of a producer, a repeat or a gap; sometimes with an expected head."""
        name, producer = self.rng.choice(NAMES), self.rng.choice("pq")
        topic = self.topics.get(name)
        known = topic.producers.get(producer) if topic is not None else None
        step = self.rng.choice((1, 1, 1, 0, -1, 2))
        number = self.rng.randint(0, 5) if known is None else max(0, known.producer_seq + step)
        head = 0 if topic is None else topic.head
        expected_head = self.rng.choice((None, None, head, head + 1))
        records = self.new_records()
        self.note(f"append {len(records)} to {name} as {producer} {number}, expects {expected_head}")
        sent = [as_sent(one) for one in records]
        options = {"producer": ProducerSeq(producer, number), "expected_head": expected_head}
        reply = self.one.send_append(name, *sent, **options)
        self.one.settle()
        if topic is not None and known is not None and number <= known.producer_seq:
            first, last = known.first_seq, known.first_seq + known.count - 1
            if number < known.producer_seq:
                first = last = 0
            expected = AppendAnswer(name, first, last, topic.head, False, True, topic.config.durability)
            assert reply.answer == expected, f"{reply.answer} instead of {expected}"
            return
        if known is not None and number > known.producer_seq + 1:
            assert reply.code == "producer_gap", reply.answer
            return
        if expected_head not in (None, head):
            assert reply.code == "head_mismatch", reply.answer
            return
        created = topic is None
        if topic is None:
            topic = self.topics[name] = OracleTopic(TopicConfig(), self.now_ms)
        code = topic.refusal([one.size for one in records], self.now_ms)
        if code is not None:
            assert reply.code == code, f"{reply.answer} instead of {code}"
            return
        first = topic.append(records, self.now_ms)
        topic.producers[producer] = OracleNumber(number, first, len(records))
        expected = AppendAnswer(name, first, topic.head, topic.head, created, False, topic.config.durability)
        assert reply.answer == expected, f"{reply.answer} instead of {expected}"

    def move_cursor(self) -> None:
        name, cursor = self.rng.choice(NAMES), self.rng.choice("cd")
        topic = self.topics.get(name)
        head = 0 if topic is None else topic.head
        seq = self.rng.choice((None, head, self.rng.randint(0, head), head + 1))
        self.note(f"cursor {cursor} of {name} to {seq}")
        reply = RecordedReply()
        if seq is None:
            delete_cursor(self.one.shard.state, name, cursor, reply)
        else:
            put_cursor(self.one.shard.state, name, cursor, seq, None, reply)
        self.one.settle()
        if topic is None:
            assert reply.code == "topic_not_found", reply.answer
        elif seq is None:
            assert reply.answer.deleted == (topic.cursors.pop(cursor, None) is not None)
        elif seq > head:
            assert reply.code == "head_mismatch", reply.answer
        else:
            assert reply.answer.created == (cursor not in topic.cursors)
            topic.cursors[cursor] = seq
        if topic is not None:
            topic.evict_over_caps()

    def forget_keys(self) -> None:
        """Forget keys whose window has ended, so that they are not repeated after the clock steps back."""
        for topic in self.topics.values():
            window_ms = topic.config.idempotency_window_ms
            topic.keys = {
                key: used for key, used in topic.keys.items() if self.now_ms - used.used_ms <= window_ms
            }

    # Configuration and deletes.

    def put(self) -> None:
        name = self.rng.choice(NAMES)
        patch: dict[str, Any] = {}
        if self.rng.random() < 0.6:
            patch["cap_records"] = self.rng.choice((0, 0, 1, 5, 30))
        if self.rng.random() < 0.4:
            patch["cap_bytes"] = self.rng.choice((0, 0, 60, 400, 2000))
        if self.rng.random() < 0.5:
            patch["ttl_ms"] = self.rng.choice((0, 0, 300, 5000))
        if self.rng.random() < 0.3:
            patch["discard"] = self.rng.choice(("old", "reject"))
        if self.rng.random() < 0.3:
            patch["protect_cursors"] = self.rng.random() < 0.7
        if self.rng.random() < 0.3:
            patch["dedupe_node"] = self.rng.random() < 0.5
        if self.rng.random() < 0.5:
            patch["durability"] = self.rng.choice(("ephemeral", "memory", "disk", "disk", "fsync"))
        self.note(f"put {name} {patch}")
        reply = self.one.send_put(name, **patch)
        self.one.settle()
        topic = self.topics.get(name)
        config = msgspec.structs.replace(topic.config if topic else TopicConfig(), **patch)
        if topic is None:
            self.topics[name] = OracleTopic(config, self.now_ms)
        elif (config.durability == "ephemeral") != topic.is_ephemeral:
            assert reply.code == "topic_exists_incompatible", reply.answer
            return
        else:
            topic.config = config
            topic.evict_over_caps()
        assert (reply.answer.created, reply.answer.config) == (topic is None, config), reply.answer

    def delete_records(self) -> None:
        name = self.rng.choice(NAMES)
        topic = self.topics.get(name)
        head = topic.head if topic else 5
        before_seq = self.rng.choice((None, self.rng.randint(0, head + 3)))
        tag = self.rng.choice((None, "x", "xy", "y", "ü", "none"))
        if before_seq is None and tag is None:
            tag = "x"
        is_prefix = tag is not None and self.rng.random() < 0.4
        after_seq = None
        if self.rng.random() < 0.3:
            after_seq, tag, is_prefix = self.rng.randint(0, head + 3), None, False
        self.note(f"delete in {name}: after {after_seq}, before {before_seq}, tag {tag}, prefix {is_prefix}")
        reply = self.one.send_delete(
            name, before_seq=before_seq, tag=tag, is_prefix=is_prefix, after_seq=after_seq
        )
        self.one.settle()
        if topic is None:
            assert reply.code == "topic_not_found", reply.answer
            return
        topic.expire(self.now_ms)
        count = topic.delete(before_seq, tag, is_prefix, after_seq)
        expected = DeleteAnswer(name, count, topic.earliest, topic.head, len(topic.records), topic.bytes)
        assert reply.answer == expected, f"{reply.answer} instead of {expected}"

    def delete_topic(self) -> None:
        name, if_empty = self.rng.choice(NAMES), self.rng.random() < 0.3
        topic = self.topics.get(name)
        self.note(f"delete topic {name}, if_empty {if_empty}")
        reply = self.one.send_delete_topic(name, if_empty=if_empty)
        self.one.settle()
        if topic is not None and if_empty:
            topic.expire(self.now_ms)
            if topic.records:
                assert reply.code == "topic_not_empty", reply.answer
                return
        assert reply.answer.deleted is (topic is not None), reply.answer
        self.topics.pop(name, None)

    # Time and restarts.

    def pass_time(self) -> None:
        ms = self.rng.choice((1, 20, 60, 299, 300, 301, 1500, 6000, 130_000))
        self.note(f"{ms} ms pass")
        self.one.pass_time(ms)
        # Upkeep may have expired records of any topic: expire them in all topics on both sides.
        for name, topic in self.topics.items():
            self.one.state(name)
            topic.expire(self.now_ms)

    def checkpoint(self) -> None:
        """Start a checkpoint, and run it for a random number of turns."""
        turns = self.rng.choice((0, 1, 3, 10, 30, 1000))
        self.note(f"a checkpoint for {turns} turns")
        self.one.shard.start_checkpoint()
        for _ in range(turns):
            self.one.turn()

    def step_clock(self) -> None:
        ms = self.rng.choice((-700, -5000, 400, 3000))
        self.note(f"the clock steps by {ms} ms")
        self.one.clock.step_wall(ms)

    def restart(self) -> None:
        end = self.rng.choice(("restart", "kill", "kill", "reboot"))
        self.note(end)
        self.forget_keys()
        # A floor that an answer reported is written at the end of the turn; no request waits for it.
        self.one.loop.run_until_idle()
        getattr(self.one, end)()
        for name, topic in self.topics.items():
            state = self.one.state(name)
            head = state.head_seq
            may_jump = end == "reboot" or (end == "kill" and topic.is_ephemeral)
            if may_jump and topic.config.durability != "fsync":
                assert head >= topic.head, f"the head of {name} fell from {topic.head} to {head}"
            else:
                assert head == topic.head, f"the head of {name} moved from {topic.head} to {head}"
            topic.resume_at(head, state.last_write_ts)
            topic.expire(self.now_ms)
        self.check()

    # Comparisons.

    def check(self) -> None:
        assert self.one.shard.topic_names() == sorted(self.topics)
        for name, topic in self.topics.items():
            self.check_state(name, topic)
            for from_seq in {0, topic.head, topic.head + 5, self.rng.randint(0, topic.head)}:
                self.check_filtered_reads(name, topic, from_seq)
                self.check_reads(name, topic, from_seq)

    def check_state(self, name: str, topic: OracleTopic) -> None:
        topic.expire(self.now_ms)
        state = self.one.state(name)
        assert topic.epoch in (None, state.epoch), f"the epoch of {name} changed"
        topic.epoch = state.epoch
        expected = TopicState(
            topic=name,
            epoch=state.epoch,
            head_seq=topic.head,
            earliest_seq=topic.earliest,
            evict_floor=topic.floor,
            durable_seq=state.durable_seq,
            count=len(topic.records),
            bytes=topic.bytes,
            last_write_ts=topic.last_ts,
            last_read_ts=0,
            effective_priority=topic.config.priority or 0,
            config=topic.config,
        )
        assert state == expected, f"{state} instead of {expected}"
        positions = {key: one.from_seq for key, one in self.one.topic(name).cursors.items()}
        assert positions == topic.cursors, f"cursors of {name}: {positions} instead of {topic.cursors}"
        seqs = list(positions.values())
        counts = [sum(live > seq for live in topic.records) for seq in seqs]
        assert records_after(self.one.topic(name), seqs) == counts
        assert 0 <= state.durable_seq <= state.head_seq

    def check_reads(self, name: str, topic: OracleTopic, from_seq: int) -> None:
        """Read from one position to the head, with one limit."""
        limit = self.rng.choice((1, 3, 1000))
        nodes = self.rng.choice((frozenset[str](), frozenset({"n1"}), frozenset({"n1", "n2"})))
        assert topic.epoch is not None
        epoch = self.rng.choice((None, topic.epoch, topic.epoch + 1))
        if epoch == topic.epoch and from_seq > topic.head:
            refusal = self.one.refused_read(name, from_seq, limit=limit, nodes=nodes, epoch=epoch)
            expected_detail = {"topic": name, "head_seq": topic.head, "epoch": epoch}
            assert (refusal.code, refusal.detail) == (POSITION_PAST_HEAD, expected_detail)
            return
        for _ in range(40):
            answer = self.one.read(name, from_seq, limit=limit, nodes=nodes, epoch=epoch)
            self.compare(topic, answer, from_seq, limit, nodes, epoch not in (None, topic.epoch))
            if answer.caught_up:
                return
            from_seq, epoch = answer.next_from_seq, None

    def compare(
        self,
        topic: OracleTopic,
        answer: ReadAnswer,
        from_seq: int,
        limit: int,
        nodes: frozenset[str],
        is_other_epoch: bool,
    ) -> None:
        expected = topic.read(from_seq, limit, nodes, is_other_epoch)
        request = f"{answer.topic} from {from_seq} limit {limit} nodes {sorted(nodes)}"
        tombstone = answer.tombstone
        gap = tombstone and (tombstone.gap_from, tombstone.gap_to, tombstone.reason)
        assert gap == expected.tombstone, f"{request}: tombstone {gap} instead of {expected.tombstone}"
        records = [
            (
                one.seq,
                OracleRecord(
                    one.ts, one.data, one.tag.decode() or None, one.node.decode() or None, one.is_bytes
                ),
            )
            for one in answer.records
        ]
        seqs, next_from_seq = expected.seqs, expected.next_from_seq
        if PAGES_MAX <= len(records) < len(seqs):
            # Each record is in its own segment, and one read visits at most `PAGES_MAX` of them.
            seqs = seqs[: len(records)]
            next_from_seq = seqs[-1]
        expected_records = [(seq, topic.records[seq]) for seq in seqs]
        assert records == expected_records, f"{request}: {records} instead of {expected_records}"
        numbers = (answer.next_from_seq, answer.head_seq, answer.earliest_seq)
        expected_numbers = (next_from_seq, topic.head, topic.earliest)
        assert numbers == expected_numbers, (
            f"{request}: next, head and earliest are {numbers} instead of {expected_numbers}"
        )
        if tombstone is not None:
            missed = max(0, tombstone.gap_to - tombstone.gap_from + 1)
            assert (tombstone.missed_estimate, tombstone.earliest_seq, tombstone.head_seq) == (
                missed,
                topic.earliest,
                topic.head,
            )

    def check_filtered_reads(self, name: str, topic: OracleTopic, from_seq: int) -> None:
        """Read from one position to the head with a filter: each answer has what it passes over."""
        rng = Random(f"{self.seed} {self.count} {name} {from_seq}")
        match, limit = rng.choice(FILTERS), rng.choice((1, 2, 1000))
        nodes = rng.choice((frozenset[str](), frozenset({"n1"})))
        bytes_max, with_tags = rng.choice((1, 200, 1 << 20)), rng.random() < 0.7
        request = f"{name} from {from_seq} limit {limit} nodes {sorted(nodes)} {match}"
        for _ in range(topic.head + 40):
            options = {"match": match, "limit": limit, "nodes": nodes}
            answer = self.one.read(name, from_seq, bytes_max=bytes_max, with_tags=with_tags, **options)
            expected = topic.read(from_seq, topic.head + 1, nodes, is_other_epoch=False)
            tombstone = answer.tombstone
            gap = tombstone and (tombstone.gap_from, tombstone.gap_to, tombstone.reason)
            assert gap == expected.tombstone, f"{request}: {gap} instead of {expected.tombstone}"
            reach = answer.next_from_seq
            assert reach <= expected.next_from_seq, request
            seqs = [
                seq for seq in expected.seqs if seq <= reach and match.selects(topic.records[seq].tag or "")
            ]
            got = [one.seq for one in answer.records]
            assert got == seqs, f"{request}: {got} instead of {seqs}"
            assert [one.data for one in answer.records] == [topic.records[seq].data for seq in seqs], request
            assert len(seqs) <= limit, request
            if answer.caught_up:
                return
            assert tombstone is not None or reach > from_seq, f"{request}: no progress"
            from_seq = reach
        raise AssertionError(f"{request}: the head is not reached")

    SHARES = (
        (0.36, append),
        (0.05, numbered_append),
        (0.05, move_cursor),
        (0.04, checkpoint),
        (0.06, keyed_append),
        (0.04, repeated_append),
        (0.07, put),
        (0.12, delete_records),
        (0.02, delete_topic),
        (0.14, pass_time),
        (0.02, step_clock),
        (0.03, restart),
    )


assert abs(sum(share for share, _ in Episode.SHARES) - 1) < 1e-9
