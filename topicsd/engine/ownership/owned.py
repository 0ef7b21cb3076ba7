"""The ownership of one topic, as this node knows it.

A node gives out no seq above the ceiling that the catalog has for the topic. So another node that takes the
topic over without this one resumes above every seq ever given out.

O1  A topic that is created with a catalog has its row before it exists (N1 of `new_names.py`). For one from
    before the node had a catalog the first state has owner epoch 0. It is on the disk before the request to
    create the row is sent, since that request may be done although its answer is lost. The row then has the
    ceiling of this state or a higher one, and nothing above it is given out. Before that there is no ceiling.
O2  A ceiling counts once the catalog has answered. Its frame in the log is only for a start that cannot ask
    the catalog; without it that start knows a lower ceiling.
O3  The append path checks no ceiling. `Topic.ceiling_mark`, which it compares anyway, is at most `mark`, and
    one write beyond `mark` cannot reach the ceiling. That write makes the topic `is_near`: from then on
    each write is checked exactly, until the ceiling is raised.
O4  Memory changes when a frame joins the log, not when it is synced. So a snapshot never lacks the effect of
    a frame that a replay after it does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from shared.contract.errors import CATALOG_UNAVAILABLE, RETRY_AFTER_MS, Refusal
from topicsd.log.control_frame import OwnershipFrame

if TYPE_CHECKING:
    from topicsd.engine.topic import Topic

OWNERSHIP: Final = "ownership"
"""The name of the section in a topic of a snapshot."""

BLOCK_MIN: Final = 1 << 20
BLOCK_MAX: Final = 1 << 40
AHEAD_MS: Final = 86_400_000
_NEVER: Final = 1 << 63

encode_ownership = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OwnershipFrame).decode


class Owned:
    """The state of one topic in the catalog."""

    __slots__ = (
        "ceiling",
        "exported_state",
        "is_near",
        "mark",
        "needed_seq",
        "owner_epoch",
        "raised_at_ms",
        "raised_head",
        "seal_key",
    )

    def __init__(self, owner_epoch: int, ceiling: int, seal_key: str = "", exported_state: int = 0) -> None:
        self.owner_epoch = owner_epoch
        self.ceiling = ceiling
        self.seal_key = seal_key
        self.exported_state = exported_state
        self.mark = _NEVER
        """The seq beyond which the ceiling has to be raised. A shard without a catalog sets none."""
        self.is_near = False
        """True when each write is checked against the ceiling."""
        self.needed_seq = 0
        """The last seq of a write that was refused for the ceiling."""
        self.raised_head = 0
        self.raised_at_ms = 0

    @property
    def is_checked(self) -> bool:
        """Whether this shard has a catalog, and so observes the ceiling."""
        return self.is_near or self.mark != _NEVER

    @property
    def frame(self) -> OwnershipFrame:
        return OwnershipFrame(self.owner_epoch, self.ceiling, self.seal_key, self.exported_state)


def next_ceiling(topic: Topic, now_ms: int) -> int:
    """Return a ceiling for what the topic would use in a day at its present rate, at least a block ahead."""
    head = topic.next_seq - 1
    block = BLOCK_MIN
    owned = topic.ownership
    if owned is None:
        return head + block
    if owned.raised_at_ms:
        rate_ms = (head - owned.raised_head) / max(now_ms - owned.raised_at_ms, 1)
        block = max(block, min(int(rate_ms * AHEAD_MS), BLOCK_MAX))
    return max(head, owned.needed_seq) + block


def needs_raise(topic: Topic, now_ms: int) -> bool:
    """Return whether each write is checked, and half a block or more has been used since the last raise."""
    owned = topic.ownership
    if owned is None or not owned.is_near:
        return False
    return next_ceiling(topic, now_ms) - owned.ceiling >= BLOCK_MIN // 2


def watch_mark(topic: Topic, now_ms: int, write_max: int) -> None:
    """Have the append path notice when half of the seqs below the ceiling are used (O3).

    `write_max` is the number of records in the largest write.
    """
    owned = topic.ownership
    assert owned is not None
    head = topic.next_seq - 1
    owned.raised_head, owned.raised_at_ms = head, now_ms
    owned.mark = min((head + owned.ceiling) // 2, owned.ceiling - write_max)
    owned.is_near = head >= owned.mark
    owned.mark = _NEVER if owned.is_near else owned.mark
    topic.ceiling_mark = min(topic.ceiling_mark, owned.mark)
    topic.set_can_reject()


def pass_mark(topic: Topic) -> bool:
    """If the head has reached the mark, have each further write checked, and return True."""
    owned = topic.ownership
    if owned is None or topic.next_seq <= owned.mark:
        return False
    owned.is_near = True
    owned.mark = _NEVER
    topic.set_can_reject()
    return True


def refuse_above_ceiling(topic: Topic, count: int) -> Refusal | None:
    """Refuse seqs above the ceiling of the catalog."""
    owned = topic.ownership
    last_seq = topic.next_seq - 1 + count
    if owned is None or not owned.is_checked or last_seq <= owned.ceiling:
        return None
    owned.needed_seq = max(owned.needed_seq, last_seq)
    message = (
        f'topic "{topic.name}": the catalog does not answer, and all seqs that it granted up to '
        f"{owned.ceiling} are used; retry after 1 s"
    )
    return Refusal(CATALOG_UNAVAILABLE, message, {"ceiling": owned.ceiling}, RETRY_AFTER_MS)


def ownership_section(topic: Topic) -> dict[str, bytes]:
    return {} if topic.ownership is None else {OWNERSHIP: encode_ownership(topic.ownership.frame)}


def ownership_of(sections: dict[str, bytes]) -> Owned | None:
    return owned_of(_decode(sections[OWNERSHIP])) if OWNERSHIP in sections else None


def owned_of(frame: OwnershipFrame) -> Owned:
    return Owned(frame.owner_epoch, frame.ceiling, frame.seal_key, frame.exported_state)
