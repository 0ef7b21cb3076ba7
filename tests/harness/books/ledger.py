"""The ledger of sent requests and their answers across crashes, checked by the judge.

Promises: it knows only what a client knows. Payloads are unique, so that every surviving record is identified
by its bytes and belongs to one request; a retry is the same request under its idempotency key. A test records
what happens, calls `new_generation` at every crash or stop, and passes what the recovery shows to `check`,
which applies the rules of `judge`.

A topic that was not found counts as empty. A topic that is deleted and created again is another topic here
(call it "name#2").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tests.harness.books.ledger_entries import Deletion, Durability, Request, TopicContents, TopicPage
from tests.harness.books.recovery_check import check_recovery


class Ledger:
    def __init__(self) -> None:
        self.generation = 1
        self._pages: dict[str, TopicPage] = {}
        self._sent: dict[bytes, tuple[Request, int]] = {}
        self._machine_failed = False

    def topic(self, name: str, durability: Durability = "disk", *, evicts: bool = False) -> None:
        """Add a topic; `evicts` is true if it has a cap or a TTL."""
        assert name not in self._pages, f"{name} is in the ledger already"
        self._pages[name] = TopicPage(name, durability, evicts)

    def sent(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        tags: Sequence[str | None] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Request:
        """Note a request in flight; its class is that of its topic unless given."""
        page = self._pages[topic]
        sent = list(payloads)
        request = Request(topic, sent, list(tags) or [None] * len(sent), durability or page.durability, key)
        assert len(request.tags) == len(sent) > 0, "a tag, perhaps None, for every record"
        for index, payload in enumerate(sent):
            assert payload not in self._sent, f"{payload!r} was sent before: the judge needs unique payloads"
            self._sent[payload] = (request, index)
        page.requests.append(request)
        return request

    def retried(self, request: Request) -> None:
        """Note a repetition under the idempotency key; an acknowledged request must get the same seqs."""
        assert request.key is not None, "without a key a retry is another request, with other payloads"
        if request.fate != "acked":
            request.fate = "in_flight"

    def acked(self, request: Request, first_seq: int) -> None:
        page = self._pages[request.topic]
        if request.first_seq is None:
            head = page.last.head_seq
            assert first_seq > head, f"{page.name}: {request} acked at {first_seq}, not above the head {head}"
        else:
            assert first_seq == request.first_seq, f"{page.name}: {request} acked again, now at {first_seq}"
        request.fate, request.first_seq = "acked", first_seq
        for seq, payload in zip(request.seqs(), request.payloads, strict=True):
            page.own(seq, payload)

    def errored(self, request: Request) -> None:
        """Note an error that leaves the outcome open."""
        request.fate = "errored"

    def refused(self, request: Request) -> None:
        """Note an error that means nothing was written."""
        request.fate = "refused"

    def deleting(self, topic: str, seqs: Iterable[int]) -> Deletion:
        """Note a delete in flight of these seqs: what it matches of `live`."""
        deletion = Deletion(topic, frozenset(seqs))
        self._pages[topic].deletions.append(deletion)
        return deletion

    def delete_acked(self, deletion: Deletion) -> None:
        deletion.acked = True

    def live(self, topic: str, *, with_leaving: bool = False) -> list[tuple[int, str | None]]:
        """Return (seq, tag) of acknowledged records that are not being deleted, in order.

        `with_leaving` includes records in unacknowledged deletes, which another delete can still match.
        """
        page = self._pages[topic]
        deleted = {
            seq for deletion in page.deletions if deletion.acked or not with_leaving for seq in deletion.seqs
        }
        live = {
            seq: tag
            for request in page.requests
            if request.fate == "acked"
            for seq, tag in zip(request.seqs(), request.tags, strict=True)
            if seq not in deleted
        }
        return sorted(live.items())

    def withdraw(self, deletion: Deletion) -> None:
        """Note an error that means nothing was deleted."""
        self._pages[deletion.topic].deletions.remove(deletion)

    def page(self, topic: str) -> TopicPage:
        return self._pages[topic]

    def forget(self, topic: str) -> None:
        """Remove a deleted topic; its records may not appear in any other."""
        del self._pages[topic]

    def rehome(self, request: Request, topic: str) -> None:
        """Move a request without an outcome to the topic that it actually reached."""
        assert request.first_seq is None
        self._pages[request.topic].requests.remove(request)
        request.topic = topic
        self._pages[topic].requests.append(request)

    def request_of(self, payload: bytes) -> Request:
        return self._sent[payload][0]

    def on_media(self, topic: str, last_seq: int) -> None:
        """Note that acknowledged records up to this seq are on the disk itself, whatever their class."""
        for request in self._pages[topic].requests:
            seqs = request.seqs()
            if request.fate == "acked" and seqs and seqs[-1] <= last_seq:
                request.on_media = True

    def new_generation(self, *, machine_failed: bool) -> None:
        """Note the end of the process; `machine_failed` if a power cut or failed sync caused it."""
        self.generation += 1
        self._machine_failed = self._machine_failed or machine_failed
        for page in self._pages.values():
            for request in page.requests:
                if request.fate in ("in_flight", "errored"):
                    request.fate = "unknown"

    def check(self, contents: Mapping[str, TopicContents], *, exact: bool | Collection[str] = False) -> None:
        """Judge what exists now.

        `exact`: the head is known, of all topics or of these, so no loss may be reported for it.
        """
        strangers = contents.keys() - self._pages.keys()
        assert not strangers, f"topics that were never created: {sorted(strangers)}"
        for name, page in self._pages.items():
            check_recovery(
                page,
                self._sent,
                contents.get(name, TopicContents()),
                machine_failed=self._machine_failed,
                exact=exact if isinstance(exact, bool) else name in exact,
            )
        self._machine_failed = False
