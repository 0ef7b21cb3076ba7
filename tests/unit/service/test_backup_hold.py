from __future__ import annotations

from typing import Any

from shared.contract.backup_point import ShardPoint, decode_hold, decode_release
from shared.ipc.link_kind import LinkKind
from tests.harness.shard.one_shard import OneShard
from topicsd.service.shards.backup_hold import HOLD_SECONDS_MAX, BackupHold


class Answers:
    """The link of a supervisor, with the answers that it received."""

    def __init__(self, shard: OneShard) -> None:
        self.hold = BackupHold(shard.shard.state)
        self.received: list[bytes] = []

    def ask(self, kind: LinkKind) -> None:
        reply: Any = self.received.append
        self.hold.answer_link(kind, reply)


def test_a_hold_answers_with_the_place_and_a_release_when_it_is_synced() -> None:
    """H1, H3."""
    shard = OneShard()
    shard.append("a", 1)
    link = Answers(shard)
    link.ask(LinkKind.HOLD)
    place = shard.shard.log.place
    assert place is not None
    assert decode_hold(link.received.pop()) == ShardPoint(0, place.file, place.offset, place.ordinal)
    link.ask(LinkKind.RELEASE)
    assert link.received == []
    shard.settle()
    assert decode_release(link.received.pop()) == ""


def test_a_hold_ends_by_itself_and_a_late_release_says_so() -> None:
    """H2."""
    shard = OneShard()
    shard.append("a", 1)
    link = Answers(shard)
    link.ask(LinkKind.HOLD)
    shard.pass_time(HOLD_SECONDS_MAX * 1000 + 1)
    shard.append("a", 2)
    link.received.clear()
    link.ask(LinkKind.RELEASE)
    assert decode_release(link.received.pop()) == "the hold ended after 1 s"


def test_a_second_hold_is_refused() -> None:
    link = Answers(OneShard())
    link.ask(LinkKind.HOLD)
    link.ask(LinkKind.HOLD)
    assert decode_hold(link.received[1]) == "its log is in a hold already"
