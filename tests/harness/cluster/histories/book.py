"""What the clients of a cluster sent and saw, and the judgement of it, in time linear in the history.

J1  A seq has one value for ever, and a value is in one seq: no seq is given out twice, and a repeated request
    is applied once.
J2  An acknowledged append is readable at its seq, unless its record was deleted or evicted, or is in a lost
    range that readers get a tombstone for.
J3  An append that was acknowledged before another was sent has the lower seq.
J4  An append that definitely failed is never read. A deleted record is never read again, unless the
    delete was lost with a node after its last export.
J5  A lost range of a lost node is exactly from `exported_to` + 1 to the ceiling of its takeover.
J6  Only the rightful owner gives out a seq: the node that the catalog named when the range began, and only up
    to the ceiling. So the catalog names the owner of a topic before its first write is acknowledged.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.histories.state_books import CursorBook, JobBook
from tests.harness.cluster.shared_catalog import SharedCatalog

Ranges = list[tuple[int, int]]

ON_ITS_WAY_NS: Final = 20 * 10**6
"""An answer may arrive this long after the end of its node."""


class Ack(NamedTuple):
    sent_ns: int
    acked_ns: int
    first_seq: int
    last_seq: int

    @property
    def seqs(self) -> range:
        return range(self.first_seq, self.last_seq + 1)


class TagDelete:
    """A delete by tag: it may match what was sent before it was done."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.done_ns = 1 << 62


class TopicBook:
    """The history of one topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tags: dict[bytes, str | None] = {}
        """By payload: the tag. Payloads are unique."""
        self.refused: set[bytes] = set()
        self.acked: dict[bytes, int] = {}
        """By payload: its seq."""
        self.values: dict[int, bytes] = {}
        self.acks: list[Ack] = []
        self.deleted_ns: dict[int, tuple[int, str]] = {}
        """By seq: when its delete was acknowledged by the owner, and by which node."""
        self.maybe_deleted: set[int] = set()
        """Seqs of all deletes that were sent."""
        self.tag_deletes: list[TagDelete] = []

    def send(self, payloads: list[bytes], tag: str | None = None) -> None:
        assert not self.tags.keys() & set(payloads), "payloads are unique"
        self.tags.update(dict.fromkeys(payloads, tag))

    def see(self, seq: int, payload: bytes) -> None:
        assert payload in self.tags, f"{self.name}: seq {seq} has {payload!r}, which was never sent"
        assert payload not in self.refused, f"{self.name}: seq {seq} has {payload!r}, which was refused (J4)"
        value = self.values.setdefault(seq, payload)
        assert value == payload, f"{self.name}: seq {seq} had {value!r} and now has {payload!r} (J1)"

    def ack(self, payloads: list[bytes], sent_ns: int, acked_ns: int, first_seq: int) -> None:
        for seq, payload in enumerate(payloads, first_seq):
            self.see(seq, payload)
            self.acked[payload] = seq
        self.acks.append(Ack(sent_ns, acked_ns, first_seq, first_seq + len(payloads) - 1))

    def refuse(self, payloads: list[bytes]) -> None:
        self.refused.update(payloads)
        shown = self.refused & set(self.values.values())
        assert not shown, f"{self.name}: {shown} was refused and shown (J4)"

    def live_seqs(self) -> list[int]:
        return sorted(set(self.acked.values()) - self.maybe_deleted)

    def delete_tag(self, tag: str) -> TagDelete:
        deletion = TagDelete(tag)
        self.tag_deletes.append(deletion)
        return deletion

    def may_match_tag(self, ack: Ack) -> bool:
        """Return whether a delete by tag that was sent may have deleted this write."""
        tag = self.tags[self.values[ack.first_seq]]
        return any(one.tag == tag and ack.sent_ns <= one.done_ns for one in self.tag_deletes)


class Book:
    """The history of all topics, and what may be lost."""

    def __init__(self, catalog: SharedCatalog) -> None:
        self._catalog = catalog
        self.topics: dict[str, TopicBook] = {}
        self.cursors = CursorBook(self)
        self._jobs: dict[str, JobBook] = {}
        self.starts: list[int] = []
        """When nodes started."""
        self.power_cuts: dict[str, list[int]] = {}
        """By node: when it lost power. Such a node may have lost what was written shortly before."""
        self.acked_count = self.lost_count = self.read_count = 0

    def topic(self, name: str) -> TopicBook:
        return self.topics.setdefault(name, TopicBook(name))

    def given_out(self, node: str, name: str, first_seq: int, last_seq: int) -> None:
        """Check that the node may acknowledge these seqs at this moment (J6)."""
        row = self._catalog.row(name)
        assert row is not None, (
            f"{name}: {node} acknowledges seq {first_seq}, and the catalog has no row (J6)"
        )
        assert last_seq <= row.ceiling, (
            f"{name}: {node} acknowledges seq {last_seq}, above the ceiling {row.ceiling} of the catalog (K2)"
        )
        owner = self._catalog.owner_of(name, first_seq)
        assert owner in ("", node), (
            f"{name}: {node} acknowledges seq {first_seq}, which belongs to {owner} (J6)"
        )

    def jobs(self, name: str) -> JobBook:
        return self._jobs.setdefault(name, JobBook(self, name))

    def has_restarted(self, since_ns: int) -> bool:
        """Return whether a node has started since then."""
        return bool(self.starts) and self.starts[-1] >= since_ns

    def is_owner(self, node: str, name: str) -> bool:
        row = self._catalog.row(name)
        return row is None or row.owner == node

    def may_be_lost(self, name: str, acked_ns: int, node: str = "") -> bool:
        """Return whether what was acknowledged then may be lost with a node, or with its power."""
        cuts = (
            self.power_cuts.get(node, ()) if node else [at for one in self.power_cuts.values() for at in one]
        )
        if any(acked_ns <= at_ns + ON_ITS_WAY_NS for at_ns in cuts):
            return True
        takeovers = [one for one in self._catalog.takeovers if one.name == name]
        return any(one.kept_ns <= acked_ns for one in takeovers)

    def check_producer_gap(self, name: str) -> None:
        """Check a refusal that says that writes of a producer are missing."""
        is_lost = any(one.name == name for one in self._catalog.takeovers)
        assert is_lost or any(self.power_cuts.values()), (
            f"{name}: acknowledged writes of a producer are gone (J2)"
        )

    def delete_acked(self, name: str, seqs: list[int], node: str, acked_ns: int) -> None:
        """Note a delete. One that a former owner acknowledges is lost with that owner."""
        if self.is_owner(node, name):
            self.topic(name).deleted_ns.update(dict.fromkeys(seqs, (acked_ns, node)))

    def _kept_deletes(self, name: str) -> set[int]:
        """Return the seqs of deletes that are not lost."""
        takeovers = [one for one in self._catalog.takeovers if one.name == name]
        return {
            seq
            for seq, (acked_ns, node) in self.topic(name).deleted_ns.items()
            if not any(one.kept_ns <= acked_ns <= one.at_ns for one in takeovers)
            and not any(acked_ns <= at_ns + ON_ITS_WAY_NS for at_ns in self.power_cuts.get(node, ()))
        }

    def see(self, name: str, contents: TopicContents) -> None:
        """Note what a reader saw at any time."""
        self.read_count += 1
        for seq, payload, _ in contents.records:
            self.topic(name).see(seq, payload)

    def judge(self, name: str, contents: TopicContents) -> None:
        """Judge what the owner shows at the end, when every service answers and no write is in flight."""
        topic = self.topic(name)
        self.see(name, contents)
        shown = {seq: payload for seq, payload, _ in contents.records}
        again = len(contents.records) - len(set(shown.values()))
        assert not again, f"{name}: {again} values are shown twice (J1)"
        deleted = self._kept_deletes(name) & shown.keys()
        assert not deleted, f"{name}: deleted records are shown: {sorted(deleted)} (J4)"
        lost = self._check_lost(name, contents)
        ended = self.jobs(name).sent
        maybe = {seq for ack in topic.acks if topic.may_match_tag(ack) for seq in ack.seqs}
        for payload, seq in topic.acked.items():
            if seq in shown or seq in topic.maybe_deleted or seq in ended or seq in maybe:
                continue
            if seq < contents.evict_floor:
                continue
            assert _is_within(seq, lost), (
                f"{name}: {payload!r} was acknowledged at seq {seq} and is gone (J2)"
            )
            self.lost_count += 1
        self._check_order(topic, lost)
        self.acked_count += len(topic.acked)

    def _check_lost(self, name: str, contents: TopicContents) -> Ranges:
        floor = max(contents.evict_floor, contents.earliest_seq)
        reported = _merged([(one[0], one[1]) for one in contents.lost if one[2] == "node_lost"], floor)
        takeovers = [one for one in self._catalog.takeovers if one.name == name]
        expected = _merged([(one.first, one.last) for one in takeovers], floor)
        assert reported == expected, (
            f"{name}: the lost ranges are {expected}, and readers get {reported} (J5)"
        )
        return _merged([(one[0], one[1]) for one in contents.lost], 0)

    def _check_order(self, topic: TopicBook, lost: Ranges) -> None:
        # Until its fence, a former owner acknowledges seqs below the ceiling of the takeover: these are lost.
        kept = [ack for ack in topic.acks if not _is_within(ack.first_seq, lost)]
        acks = sorted(kept, key=lambda ack: ack.acked_ns)
        highest, index = 0, 0
        for ack in sorted(kept, key=lambda ack: ack.sent_ns):
            while index < len(acks) and acks[index].acked_ns < ack.sent_ns:
                highest = max(highest, acks[index].last_seq)
                index += 1
            assert ack.first_seq > highest, (
                f"{topic.name}: seq {highest} was acknowledged before {ack.first_seq} was sent (J3)"
            )


def _merged(ranges: Ranges, floor: int) -> Ranges:
    """Return the seqs of the ranges from `floor` on, as ranges that do not touch."""
    merged: Ranges = []
    for first, last in sorted(ranges):
        first = max(first, floor)
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _is_within(seq: int, ranges: Ranges) -> bool:
    at = bisect_right(ranges, (seq, 1 << 63)) - 1
    return at >= 0 and ranges[at][0] <= seq <= ranges[at][1]
