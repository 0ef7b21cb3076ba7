"""A client's knowledge of a shard's watch sessions across all crashes.

The rules: an answered session exists after the process was killed, and after a power cut if it was on the
media; a session is exactly as requested or absent; an ended session may return if its end was not written or
was lost with the machine; a session that a recovery did not show never appears later, and no session appears
that was not requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.contract.tag_filter import TagFilter
from topicsd.log.control_frame import SessionFrame


@dataclass(eq=False)
class KnownSession:
    expected: SessionFrame
    end_position: int = 0
    """The end of its frame in the log of the run that created it."""
    is_acked: bool = False
    is_on_media: bool = False
    has_ended: bool = False


class SessionBook:
    def __init__(self) -> None:
        self.known: dict[bytes, KnownSession] = {}
        self._count = 0

    def new(self, names: tuple[str, ...]) -> KnownSession:
        """Return a session that was never requested before; each second one looks for topics."""
        self._count += 1
        number = self._count
        topic_filter = None if number % 2 else TagFilter(frozenset(names), (f"found{number}.",), ("*.e?",))
        if number % 4 == 0:
            # None of its topics exists yet.
            names = ()
        columns = (list(names), [number + n for n in range(len(names))], [7 * number] * len(names))
        nodes = [f"node-{n}" for n in range(number % 3)]
        session = SessionFrame(
            number.to_bytes(16),
            f"key-{number}",
            *columns,
            nodes,
            number,
            4096,
            1000 + number,
            topic_filter=topic_filter,
            within=("found",) * (number % 3),
        )
        known = self.known[session.session] = KnownSession(session)
        return known

    def refused(self, session: KnownSession) -> None:
        """Note that nothing of the session was written."""
        del self.known[session.expected.session]

    def synced(self, position: int) -> None:
        """Note that the log is on the media up to this position."""
        for known in self.known.values():
            known.is_on_media = known.is_on_media or (known.is_acked and known.end_position <= position)

    def begin_run(self) -> None:
        """Forget positions: they belong to one run."""
        for known in self.known.values():
            known.end_position = 1 << 62

    def shows(self, sessions: Mapping[bytes, SessionFrame]) -> None:
        """Check that a running shard holds every answered session until its end, and no other."""
        acked = {session for session, known in self.known.items() if known.is_acked}
        ended = {session for session, known in self.known.items() if known.has_ended}
        assert acked - ended <= set(sessions) <= acked

    def check(self, sessions: Mapping[bytes, SessionFrame], *, exact: bool) -> None:
        """Judge what a recovery shows. `exact`: only the process ended."""
        strangers = set(sessions) - set(self.known)
        assert not strangers, f"sessions that returned or were never created: {strangers}"
        for session, known in list(self.known.items()):
            if session in sessions:
                assert sessions[session] == known.expected
                known.is_acked, known.has_ended = True, False
                continue
            is_kept = known.is_acked and not known.has_ended and (exact or known.is_on_media)
            assert not is_kept, f"session {known.expected.session.hex()} is missing: {known}"
            del self.known[session]
