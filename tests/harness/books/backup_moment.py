"""What a backup must and may hold, from what the clients of a server knew before and after it.

Promises: what was acknowledged before the backup began must be in it, what was sent after it ended must not,
and what was in between may be. The judge of recoveries applies these to a restored directory: each topic is a
prefix of what its writers sent, without a hole, at the seqs that they know.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Fate, Request, TopicContents
from tests.harness.books.process_ledger import ProcessLedger, Sent
from tests.harness.clients.queue_clients import JobBook


class Known(NamedTuple):
    """What the clients knew at one moment."""

    sent: frozenset[Request]
    acked: frozenset[Request]
    jobs_produced: frozenset[int]
    jobs_done: frozenset[int]
    jobs_maybe_done: frozenset[int]
    """Jobs whose end was sent."""
    jobs_sent: int
    """The number of jobs that were sent; their numbers are below it."""
    cursor_acked: int
    cursor_sent: int


class Backup(NamedTuple):
    """A backup, and what was known before and after it."""

    backup_id: str
    before: Known
    after: Known

    def ledger(self, book: ProcessLedger) -> tuple[Ledger, list[Sent]]:
        """Return the ledger of this moment, and the keyed requests; call it when no client writes."""
        fates = [self._fate(sent.request) for sent in book.all_sent]
        ledger, all_sent = copy.deepcopy((book.ledger, book.all_sent))
        for name in book.topics:
            page = ledger.page(name)
            page.owners.clear()
            page.last = TopicContents()
        for (request, *_), fate in zip(all_sent, fates, strict=True):
            request.fate = fate
            if fate == "refused":
                request.first_seq = None
            elif fate == "acked":
                for seq, payload in zip(request.seqs(), request.payloads, strict=True):
                    ledger.page(request.topic).own(seq, payload)
        return ledger, [sent for sent in all_sent if sent.request.key is not None]

    def _fate(self, request: Request) -> Fate:
        if request in self.before.acked:
            return "acked"
        return "unknown" if request in self.after.sent else "refused"

    def check_jobs(self, claimed: list[int]) -> None:
        """Check the jobs that a restored queue has left, in the order of their claims."""
        left = set(claimed)
        assert len(left) == len(claimed), "a job is there twice"
        assert not left & self.before.jobs_done, "jobs that were done before the backup are there"
        missing = self.before.jobs_produced - self.after.jobs_maybe_done - left
        assert not missing, (
            f"jobs that were produced before the backup and never ended are missing: {missing}"
        )
        later = [number for number in left if number >= self.after.jobs_sent]
        assert not later, f"jobs that were produced after the backup are there: {later}"

    def check_cursor(self, seq: int) -> None:
        assert self.before.cursor_acked <= seq <= self.after.cursor_sent, (
            f"the cursor is at {seq}; it was moved to {self.before.cursor_acked} before the backup, "
            f"and up to {self.after.cursor_sent} until its end"
        )


def known_now(book: ProcessLedger, jobs: JobBook, cursor_acked: int, cursor_sent: int) -> Known:
    sent, acked = book.known_requests()
    with jobs.lock:
        return Known(
            sent,
            acked,
            frozenset(jobs.produced),
            frozenset(jobs.done),
            frozenset(jobs.may_be_done),
            jobs.sent_count,
            cursor_acked,
            cursor_sent,
        )
