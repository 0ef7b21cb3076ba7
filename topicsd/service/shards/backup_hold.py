"""The hold of a shard's log while the supervisor takes a backup point.

H1  Between the hold and the release the shard writes nothing: its place does not move, and no other shard can
    learn of a later write. Requests join the next batch meanwhile, and are answered after the release.
H2  A hold ends by itself after `HOLD_SECONDS_MAX`: a supervisor that died must not stop the writes. A release
    that comes later answers with that reason, and there is no backup point.
H3  The release does not wait for the disk, but its answer does: it is sent when the place is synced.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from shared.contract.backup_point import ShardPoint, encode_hold
from shared.contract.errors import Refusal
from shared.ipc.link import LinkReply
from shared.ipc.link_kind import LinkKind
from topicsd.engine.pending import PendingFrame
from topicsd.engine.state import ShardState

logger = logging.getLogger("topicsd.engine")

HOLD_SECONDS_MAX: Final = 1.0
HOLD_REQUESTS: Final = frozenset((LinkKind.HOLD, LinkKind.RELEASE))


class BackupHold:
    """The holds of one shard, one at a time."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._timer: asyncio.TimerHandle | None = None

    def answer_link(self, kind: int, reply: LinkReply) -> None:
        """Answer a hold or a release of the supervisor."""
        if kind == LinkKind.HOLD:
            reply(encode_hold(self._hold()))
        elif self._timer is None:
            reply(encode_hold(f"the hold ended after {HOLD_SECONDS_MAX:g} s"))
        else:
            self._release()
            entry = PendingFrame(
                None,
                publish=lambda: reply(encode_hold("")),
                refuse=lambda refusal: _answer_refusal(reply, refusal),
            )
            self._state.log.publish_after_sync(entry)

    def _hold(self) -> ShardPoint | str:
        log, shard = self._state.log, self._state.number
        if self._timer is not None:
            return "its log is in a hold already"
        if not log.hold():
            return "its log waits for a file, or for its end"
        self._timer = self._state.loop.call_later(HOLD_SECONDS_MAX, self._expire)
        place = log.place
        return (
            ShardPoint(shard) if place is None else ShardPoint(shard, place.file, place.offset, place.ordinal)
        )

    def _expire(self) -> None:
        logger.warning("backup point: hold ended: no release for %g s", HOLD_SECONDS_MAX)
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._state.log.release()


def _answer_refusal(reply: LinkReply, refusal: Refusal) -> None:
    reply(encode_hold(refusal.message))
