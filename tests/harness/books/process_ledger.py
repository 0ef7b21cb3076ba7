"""The ledger of a running server's clients, written by many threads and checked by the API.

Promises: the rules are those of `judge`. Known outcomes are kept apart from unknown ones: an answer is an
ack, a refusal after which nothing was written, or leaves the outcome open, as does a connection that ends.
What a reader saw counts like an ack. `check` reads every topic through the API while no client writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from random import Random
from typing import Final, NamedTuple

import msgspec

from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Durability, Request, TopicContents
from tests.harness.clients.raw_client import Answer, RawClient, request_bytes
from tests.harness.clients.topic_client import ask_until_ready
from tests.harness.server.whole_server import name_on

PAGE_RECORDS: Final = 997
TIMEOUT_SECONDS: Final = 10.0
# Answers that mean nothing was written, and answers that leave it open.
REFUSED: Final = {
    (503, "not_ready"),
    (503, "shutting_down"),
    (507, "storage_full"),
    (429, "throttled"),
}
IN_DOUBT: Final = {(504, "in_doubt"), (503, "storage_failed")}
_SIZES: Final = (1, 10, 100, 100, 1000, 10_000)


class Sent(NamedTuple):
    """A request with everything needed to send it again."""

    request: Request
    wire: bytes
    is_again: bool = False
    # The expected answer of a repetition; None if it depends on what the crash left.
    was_there: bool | None = None


class Seen(NamedTuple):
    """An answer that was no ack, and its topic."""

    topic: str
    status: int
    code: str


class _Record(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw
    tag: str | None = msgspec.field(name="$tag", default=None)


class _Gap(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class _Page(msgspec.Struct):
    records: list[_Record]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: _Gap | None


class _State(msgspec.Struct):
    head_seq: int
    earliest_seq: int
    count: int


def seed_of_this_run() -> int:
    seed = int(os.environ.get("TOPICS_TEST_SEED", time.time_ns()))
    print(f"replay with TOPICS_TEST_SEED={seed} (the scheduling by the kernel differs)")
    return seed


def book_of(shard_count: int) -> ProcessLedger:
    """Return a ledger with two topics for each shard: `d…` of class disk, `f…` of class fsync."""
    book: dict[str, Durability] = {}
    for shard in range(shard_count):
        book[name_on(shard, shard_count, "d")] = "disk"
        book[name_on(shard, shard_count, "f")] = "fsync"
    return ProcessLedger(book)


class ProcessLedger:
    def __init__(self, topics: dict[str, Durability]) -> None:
        self.topics = topics
        self.ledger = Ledger()
        self.answers: Counter[Seen] = Counter()
        self.complaints: list[str] = []
        self.acked_count = 0
        self.deduped_count = 0
        self._lock = threading.Lock()
        self._number = 0
        self.all_sent: list[Sent] = []
        """All requests, without their repetitions."""
        self._keyed: list[Sent] = []
        self._seen: dict[str, dict[int, bytes]] = {name: {} for name in topics}
        for name, durability in topics.items():
            self.ledger.topic(name, durability)

    # -- reports of writers --------------------------------------------------------------------------------

    def make_topics(self, port: int) -> None:
        for name, durability in self.topics.items():
            made = ask_until_ready(port, "PUT", f"/v0/topics/{name}", {"durability": durability})
            assert made.status == 201, made

    def send(self, topic: str, rng: Random, *, size: int | None = None) -> Sent:
        """Note a request before it is sent: some records, some with a key, some with tags."""
        with self._lock:
            self._number += 1
            number = self._number
        filler = b"x" * (rng.choice(_SIZES) if size is None else size)
        payloads = [
            b'{"at":[%d,%d],"x":"%b"}' % (number, index, filler) for index in range(rng.choice((1, 1, 2, 7)))
        ]
        tag = f"t{number}" if rng.random() < 0.3 else None
        key = f"key-{number}" if rng.random() < 0.5 else None
        tag_field = b',"tag":"%b"' % tag.encode() if tag else b""
        body = b'{"records":[%b]' % b",".join(
            [b'{"data":%b%b}' % (payload, tag_field) for payload in payloads]
        )
        body += b',"idempotency_key":"%b"}' % key.encode() if key else b"}"
        with self._lock:
            request = self.ledger.sent(topic, payloads, tags=[tag] * len(payloads), key=key)
        sent = Sent(request, request_bytes("POST", f"/v0/topics/{topic}", body))
        with self._lock:
            self.all_sent.append(sent)
            if key:
                self._keyed.append(sent)
        return sent

    def send_again(self, sent: Sent) -> None:
        with self._lock:
            self.ledger.retried(sent.request)

    def answered(self, sent: Sent, answer: Answer) -> bool:
        """Note an answer; return whether it was an ack."""
        with self._lock:
            if answer.status in (200, 201):
                self._acked(sent, answer)
                return True
            outcome = Seen(sent.request.topic, answer.status, answer.code)
            self.answers[outcome] += 1
            if (outcome.status, outcome.code) in REFUSED:
                # A refused repetition says nothing about the first attempt.
                if sent.is_again:
                    self._leave_open(sent)
                else:
                    self.ledger.refused(sent.request)
                if "retry-after" not in answer.fields:
                    self.complaints.append(f"no Retry-After: {answer}")
            elif (outcome.status, outcome.code) in IN_DOUBT:
                self._leave_open(sent)
            else:
                self._leave_open(sent)
                self.complaints.append(f"unexpected answer: {answer}")
        return False

    def lost(self, sent: Sent) -> None:
        """Note that the connection ended before the answer."""
        with self._lock:
            self._leave_open(sent)

    def _leave_open(self, sent: Sent) -> None:
        # A request known to be stored stays known, whatever happens to its repetition.
        if sent.request.fate != "acked":
            self.ledger.errored(sent.request)

    def _acked(self, sent: Sent, answer: Answer) -> None:
        body = answer.json
        request = sent.request
        try:
            self.ledger.acked(request, body["first_seq"])
            assert body["count"] == len(request.payloads), body
            assert body["last_seq"] == body["first_seq"] + body["count"] - 1, body
            assert body["durability"] == request.durability, body
            assert request.key is not None or not body["deduped"], body
            assert sent.was_there is None or body["deduped"] == sent.was_there, f"{sent}: {body}"
        except AssertionError as error:
            self.complaints.append(str(error))
        self.acked_count += 1
        self.deduped_count += body["deduped"]

    # -- reports of readers --------------------------------------------------------------------------------

    def read_on(self, client: RawClient, name: str, cursor: int) -> int:
        """Read one page after the cursor while others write; return the next cursor."""
        answer = client.ask("POST", f"/v0/topics/{name}/diff", b'{"from_seq":%d,"limit":1000}' % cursor)
        if answer.status != 200:
            assert (answer.status, answer.code) in REFUSED | IN_DOUBT, answer
            return cursor
        page = msgspec.json.decode(answer.body, type=_Page)
        with self._lock:
            for record in page.records:
                cursor += 1
                if record.seq != cursor:
                    self.complaints.append(f"{name}: read seq {record.seq}, expected {cursor}")
                self._seen[name][record.seq] = bytes(record.data)
        return page.next_from_seq

    # -- a crash and its outcome ---------------------------------------------------------------------------

    def crashed(self) -> list[Sent]:
        """Note a crash while no client writes; return the keyed requests with unknown outcome."""
        doubtful = [
            sent._replace(is_again=True)
            for sent in self._keyed
            if sent.request.fate in ("in_flight", "errored")
        ]
        self._keyed.clear()
        self.ledger.new_generation(machine_failed=False)
        return doubtful

    def check(self, port: int) -> None:
        """Check all stored records against all known requests.

        A crash of processes loses nothing, so no loss may be reported either.
        """
        assert not self.complaints, self.complaints[:3]
        contents = self.contents(port)
        for name, seen in self._seen.items():
            there = {seq: payload for seq, payload, _ in contents[name].records}
            for seq, payload in seen.items():
                assert there.get(seq) == payload, f"{name}: a reader saw {payload!r:.60} at seq {seq}"
        self.ledger.check(contents, exact=True)

    def known_requests(self) -> tuple[frozenset[Request], frozenset[Request]]:
        """Return the requests that were sent so far, and those that were acknowledged."""
        with self._lock:
            sent = frozenset(one.request for one in self.all_sent)
            return sent, frozenset(one for one in sent if one.fate == "acked")

    def contents(self, port: int) -> dict[str, TopicContents]:
        """Read all topics, while no client writes."""
        return {name: self._contents(port, name) for name in self.topics}

    def settled(self, doubtful: list[Sent]) -> list[Sent]:
        """Return the doubtful requests with the answers they must get when sent again."""
        return [sent._replace(was_there=sent.request.fate == "acked") for sent in doubtful]

    def _contents(self, port: int, name: str) -> TopicContents:
        answer = ask_until_ready(port, "GET", f"/v0/topics/{name}")
        assert answer.status == 200, answer
        state = msgspec.json.decode(answer.body, type=_State)
        contents = TopicContents(state.head_seq, 0, state.earliest_seq)
        cursor = 0
        while True:
            body = b'{"from_seq":%d,"limit":%d,"include_tags":true}' % (cursor, PAGE_RECORDS)
            answer = ask_until_ready(port, "POST", f"/v0/topics/{name}/diff", body)
            assert answer.status == 200, answer
            page = msgspec.json.decode(answer.body, type=_Page)
            if page.tombstone is not None:
                gap = page.tombstone
                contents.lost.append((gap.gap_from, gap.gap_to, gap.reason))
            contents.records += [(one.seq, bytes(one.data), one.tag) for one in page.records]
            if page.caught_up:
                break
            assert page.next_from_seq > cursor, page
            cursor = page.next_from_seq
        assert len(contents.records) == state.count, f"{name}: {len(contents.records)} records, {state}"
        return contents
