"""What clients know of cursors and of jobs, and the checks of both.

J7  A named cursor is where its last acknowledged move put it, or a move whose outcome is unknown.
J8  A job that was acknowledged is not claimed again. Two leases of a job do not overlap: a job is claimed
    again after its lease, or after it was returned. A job that is not acknowledged can be claimed.

What may be lost with a node or with its power is not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.harness.cluster.histories.book import Book

SKEW_MS: Final = 1_000
"""How far the clock of a node is from the true time, at most."""


class CursorMove(NamedTuple):
    seq: int
    acked_ns: int
    node: str


class CursorBook:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._acked: dict[tuple[str, str], CursorMove] = {}
        self._unknown: dict[tuple[str, str], list[int]] = {}

    def send(self, topic: str, cursor: str, seq: int) -> None:
        self._unknown.setdefault((topic, cursor), []).append(seq)

    def refuse(self, topic: str, cursor: str, seq: int) -> None:
        self._unknown[topic, cursor].remove(seq)

    def ack(self, topic: str, cursor: str, seq: int, node: str, acked_ns: int) -> None:
        self._unknown[topic, cursor].remove(seq)
        if self._book.is_owner(node, topic):
            self._acked[topic, cursor] = CursorMove(seq, acked_ns, node)

    def of(self, topic: str) -> list[str]:
        return [cursor for name, cursor in self._acked if name == topic]

    def judge(self, topic: str, cursor: str, seq: int | None) -> None:
        move = self._acked[topic, cursor]
        if self._book.may_be_lost(topic, move.acked_ns, move.node):
            return
        may_be = {move.seq, *self._unknown[topic, cursor]}
        assert seq in may_be, f"{topic}: cursor {cursor} is at {seq}, and was moved to {may_be} (J7)"


class Lease(NamedTuple):
    node: str
    from_ns: int
    until_ns: int
    worker: str


class JobBook:
    """The jobs of one queue."""

    def __init__(self, book: Book, topic: str) -> None:
        self._book = book
        self._topic = topic
        self.sent: set[int] = set()
        """Jobs whose ack was sent."""
        self._acked: dict[int, tuple[int, str]] = {}
        self._leases: dict[int, Lease] = {}
        self._returned: set[int] = set()
        self.has_durable_leases = False
        """Leases that are not durable end when their node ends."""

    def send_end(self, seqs: list[int], is_done: bool) -> None:
        """Note that jobs are acknowledged or returned."""
        self._returned.update(seqs)
        if is_done:
            self.sent.update(seqs)

    def ack(self, seqs: list[int], node: str, acked_ns: int) -> None:
        if self._book.is_owner(node, self._topic):
            self._acked.update(dict.fromkeys(seqs, (acked_ns, node)))

    def claim(
        self, seqs: list[int], node: str, worker: str, asked_ns: int, now_ns: int, lease_ms: int
    ) -> None:
        """Note what a node leases at this moment, from a claim that it got at `asked_ns`."""
        if not self._book.is_owner(node, self._topic):
            # A former owner that does not know it yet: its queue is lost with it.
            return
        for seq in seqs:
            acked = self._acked.get(seq)
            # An answer that waited for the store for longer than the lease has jobs that others have by now.
            if acked is not None and acked[0] < asked_ns and not self._book.may_be_lost(self._topic, *acked):
                raise AssertionError(f"{self._topic}: job {seq} is leased after it was acknowledged (J8)")
            self._check_overlap(seq, node, now_ns)
            if seq in self._leases and self._leases[seq].from_ns > asked_ns:
                continue
            self._leases[seq] = Lease(node, asked_ns, asked_ns + lease_ms * 10**6, worker)
            self._returned.discard(seq)

    def _check_overlap(self, seq: int, node: str, now_ns: int) -> None:
        lease = self._leases.get(seq)
        if lease is None or seq in self._returned:
            return
        if self._book.may_be_lost(self._topic, lease.from_ns, lease.node):
            return
        if not self.has_durable_leases and self._book.has_restarted(lease.from_ns):
            return
        # Clocks count whole milliseconds.
        skew_ns = (1 if lease.node == node else 2 * SKEW_MS) * 10**6
        assert now_ns >= lease.until_ns - skew_ns, (
            f"{self._topic}: job {seq} is leased while {lease.worker} holds it for another "
            f"{(lease.until_ns - now_ns) / 1e9:.1f} s (J8)"
        )
