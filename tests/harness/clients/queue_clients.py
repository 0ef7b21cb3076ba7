"""Producers and workers of a queue, each a thread with a connection; workers fall silent at random.

Some workers claim, others have a stream of jobs.

Promises: their answers are noted in the `JobBook`, by the data of a job, and checked against earlier answers
of others. A job is known to be held from an answer until its deadline, or until the moment when its end was
sent. A refused or disconnected client continues with another connection.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import ConnectionEnded, RawClient

LEASE_MS: Final = 700
QUIET_SECONDS: Final = 0.5


class JobBook:
    """The known state of each job."""

    def __init__(self, queue: str, deliveries_max: int) -> None:
        self.queue = queue
        self.deliveries_max = deliveries_max
        self.lock = threading.Lock()
        self.produced: set[int] = set()
        self.done: set[int] = set()
        self.may_be_done: set[int] = set()
        self.complaints: list[str] = []
        self.counted: Counter[str] = Counter()
        self.sent_count = 0
        self._leased_until_ms: dict[int, float] = {}

    def next_numbers(self, count: int) -> list[int]:
        with self.lock:
            self.sent_count += count
            return list(range(self.sent_count - count, self.sent_count))

    def claimed(self, jobs: list[dict[str, Any]], now_ms: float) -> None:
        with self.lock:
            self.counted["claimed"] += len(jobs)
            for job in jobs:
                number = job["data"]
                leased_until_ms = self._leased_until_ms.get(number, 0)
                if leased_until_ms > now_ms:
                    self.complaints.append(f"{number} has two holders for {leased_until_ms - now_ms} ms")
                if number in self.done:
                    self.complaints.append(f"{number} is done, but was claimed again: {job}")
                if job["deliveries"] > self.deliveries_max:
                    self.complaints.append(f"{number} is delivered too often: {job}")
                self._leased_until_ms[number] = job["deadline"]

    def is_ending(self, numbers: list[int], verb: str) -> None:
        """Note the end of jobs before it is sent."""
        with self.lock:
            for number in numbers:
                self._leased_until_ms[number] = 0
            if verb == "ack":
                self.may_be_done.update(numbers)

    def ended(self, jobs: dict[int, int], verb: str, skipped: list[int]) -> None:
        """Note ended jobs, given by seq."""
        with self.lock:
            for seq, number in jobs.items():
                if seq in skipped:
                    self.counted["skipped"] += 1
                elif verb == "ack":
                    if number in self.done:
                        self.complaints.append(f"{number} is done twice")
                    self.done.add(number)
                    self.counted["done"] += 1


class QueueClients(LiveThreads):
    def __init__(self, port: int, book: JobBook, seed: object, workers: int = 12, streams: int = 3) -> None:
        super().__init__()
        self._port = port
        self._book = book
        works = [self._produce, self._produce, *[self._work] * workers, *[self._stream] * streams]
        self._threads = [
            threading.Thread(target=self._live, args=(work, Random(f"{seed} {number}"), f"w{number}"))
            for number, work in enumerate(works)
        ]

    def _live(self, work: Callable[[RawClient, Random, str], None], rng: Random, name: str) -> None:
        while not self._ending.is_set():
            try:
                with RawClient(self._port) as client:
                    while not self._ending.wait(rng.uniform(0, 0.02)):
                        work(client, rng, name)
            except ConnectionError:
                self._ending.wait(0.02)
            except Exception as problem:
                self._book.complaints.append(f"{type(problem).__name__}: {problem}")
                return

    def _produce(self, client: RawClient, rng: Random, name: str) -> None:
        numbers = self._book.next_numbers(rng.choice((1, 5)))
        if ask(client, self._book.queue, "", {"records": [{"data": number} for number in numbers]}):
            with self._book.lock:
                self._book.produced.update(numbers)

    def _work(self, client: RawClient, rng: Random, name: str) -> None:
        book = self._book
        claimed = ask(
            client, book.queue, "/claim", {"node": name, "max": rng.choice((1, 8)), "lease_ms": LEASE_MS}
        )
        jobs = [] if claimed is None else claimed["claimed"]
        book.claimed(jobs, time.time() * 1000)
        fate = rng.random()
        if not jobs or fate < 0.15:
            return  # The worker falls silent.
        if fate < 0.25:
            time.sleep(LEASE_MS / 1000 * rng.uniform(0.5, 1.5))
        verb = "nack" if fate > 0.85 else "ack"
        numbers = {job["$seq"]: job["data"] for job in jobs}
        body = {"node": name, "seqs": list(numbers), "lease_ids": [job["lease_id"] for job in jobs]}
        book.is_ending(list(numbers.values()), verb)
        ended = ask(client, book.queue, f"/{verb}", body)
        if ended is not None:
            book.ended(numbers, verb, ended["skipped"])

    def _stream(self, client: RawClient, rng: Random, name: str) -> None:
        """Hold a stream for some jobs, and leave it with others still held."""
        book = self._book
        jobs: dict[int, Any] = {}
        with _Stream(
            self._port, f"/v0/topics/{book.queue}/work?node={name}&max=3&lease_ms={LEASE_MS}"
        ) as stream:
            try:
                stream.begin_or_end()
                for _ in range(rng.randint(1, 10)):
                    event = stream.next()
                    if event.name != "job":
                        break
                    book.claimed([event.data], time.time() * 1000)
                    jobs[event.data["$seq"]] = event.data
                    book.counted["streamed"] += 1
                    if rng.random() < 0.7:
                        self._end_one(client, name, jobs)
            except TimeoutError:
                pass  # No job arrived for a while.
            finally:
                # The jobs that are held are returned when the connection ends.
                book.is_ending([job["data"] for job in jobs.values()], "nack")

    def _end_one(self, client: RawClient, name: str, jobs: dict[int, Any]) -> None:
        seq, job = jobs.popitem()
        self._book.is_ending([job["data"]], "ack")
        body = {"node": name, "seqs": [seq], "lease_ids": [job["lease_id"]]}
        ended = ask(client, self._book.queue, "/ack", body)
        if ended is not None:
            self._book.ended({seq: job["data"]}, "ack", ended["skipped"])


class _Stream(EventClient):
    def begin_or_end(self) -> None:
        self.socket.settimeout(QUIET_SECONDS)
        if not self.read_head().startswith("HTTP/1.1 200 "):
            time.sleep(0.02)
            raise ConnectionEnded(self._unread)
        self._read_until(b"\n\n")


def ask(client: RawClient, topic: str, rest: str, body: object) -> Any:
    """Return the answer; None if it is a refusal, after which little is known."""
    answer = client.ask("POST", f"/v0/topics/{topic}{rest}", json.dumps(body).encode())
    if answer.status in (200, 201):
        return answer.json
    assert answer.status in (503, 504), answer
    time.sleep(0.02)
    if answer.closes:
        raise ConnectionEnded(b"")
    return None
