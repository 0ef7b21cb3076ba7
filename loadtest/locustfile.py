"""Load scenarios for locust: writers, readers, watchers, and workers of queues.

Run `locust -f loadtest/locustfile.py Writer --host http://127.0.0.1:4000`, or `Reader`, or `Mixed` (both,
over 1,000 topics), or `Watcher WatchedWriter`, or `JobWorker JobProducer`. The scenarios check the responses,
so a wrong response counts as a failure as a refused one does. The response time of an event is the age of its
last record. For figures use `python -m loadtest bench`: locust itself costs far more than the requests it
sends.

`LOADTEST_TOPICS` is the number of topics of Mixed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from typing import Any

from locust import FastHttpUser, constant_throughput, task

WATCHED = [f"locust-watched-{number}" for number in range(8)]
QUEUES = [f"locust-queue-{number}" for number in range(4)]
LEASE_MS = 1000
# The share of claims after which a worker goes silent.
SILENT_SHARE = 0.1
TOPICS = int(os.environ.get("LOADTEST_TOPICS", "1000"))
BATCH = 10
PAGE = 100

_numbers = itertools.count()


def record() -> dict[str, Any]:
    data = {"sku": "AEROPRESS-GO", "qty": 1, "total": random.randrange(10_000), "sent_ms": time.time() * 1000}
    return {"data": data, "tag": "order"}


class TopicUser(FastHttpUser):
    """The requests that all scenarios share; each checks the response."""

    abstract = True
    wait_time = constant_throughput(50)

    def append(self, topic: str, count: int) -> None:
        body = {"records": [record() for _ in range(count)]}
        with self.client.post(f"/v0/topics/{topic}", json=body, name="append", catch_response=True) as answer:
            if answer.status_code not in (200, 201):
                answer.failure(f"{answer.status_code}: {answer.text}")
                return
            body = answer.json()
            if body["count"] != count or body["last_seq"] - body["first_seq"] + 1 != count:
                answer.failure(f"{count} records were sent, the answer is {body}")

    def read_on(self, topic: str, cursor: int) -> int:
        """Read a page after the cursor; return the next cursor."""
        body = {"after_seq": cursor, "limit": PAGE}
        with self.client.post(
            f"/v0/topics/{topic}/diff", json=body, name="diff", catch_response=True
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"{answer.status_code}: {answer.text}")
                return cursor
            page = answer.json()
            seqs = [one["$seq"] for one in page["records"]]
            # Nothing here is deleted or expires, so every page is complete.
            if seqs != list(range(cursor + 1, cursor + 1 + len(seqs))) or page["tombstone"]:
                answer.failure(f"read {seqs} after {cursor}, tombstone {page['tombstone']}")
                return cursor
            if seqs and page["next_from_seq"] != seqs[-1]:
                answer.failure(f"next_from_seq is {page['next_from_seq']} after {seqs[-1]}")
                return cursor
            return int(page["next_from_seq"])


class Writer(TopicUser):
    """A user that writes to its own topic: single records, and one batch in ten writes."""

    def on_start(self) -> None:
        self.topic = f"locust-writer-{next(_numbers)}"

    @task(9)
    def write_one(self) -> None:
        self.append(self.topic, 1)

    @task(1)
    def write_batch(self) -> None:
        self.append(self.topic, BATCH)


class Reader(TopicUser):
    """A user that reads a topic from its beginning to its end, repeatedly."""

    def on_start(self) -> None:
        self.topic = f"locust-reader-{next(_numbers)}"
        self.cursor = 0
        for _ in range(5):
            self.append(self.topic, PAGE)

    @task
    def read(self) -> None:
        following = self.read_on(self.topic, self.cursor)
        self.cursor = following if following > self.cursor else 0


class Mixed(TopicUser):
    """A user of all topics on one connection: three writes for each read of a written topic."""

    def on_start(self) -> None:
        self.cursors: dict[str, int] = {}

    @task(3)
    def write(self) -> None:
        topic = f"locust-mixed-{random.randrange(TOPICS)}"
        self.append(topic, 1)
        self.cursors.setdefault(topic, 0)

    @task(1)
    def read(self) -> None:
        if self.cursors:
            topic = random.choice(list(self.cursors))
            self.cursors[topic] = self.read_on(topic, self.cursors[topic])


class WatchedWriter(TopicUser):
    """A user that writes to the watched topics."""

    wait_time = constant_throughput(20)

    @task
    def write(self) -> None:
        self.append(random.choice(WATCHED), random.choice((1, 1, 3)))


class Watcher(TopicUser):
    """A user that watches four topics on one stream: records in order, no gaps, no duplicates."""

    wait_time = constant_throughput(1)

    @task
    def watch(self) -> None:
        names = random.sample(WATCHED, 4)
        for name in names:
            self.append(name, 1)
        request = {"topics": {name: {"tail": True} for name in names}, "heartbeat_ms": 1000}
        session = self.client.post("/v0/watch", json=request, name="watch").json()
        cursors = {name: position["from_seq"] for name, position in session["topics"].items()}
        stream = self.client.get(session["stream_url"], name="stream", stream=True)
        # The response object of locust only reads lines that end as the lines of a head do.
        lines = stream._response
        while event := bytes(lines.readline(b"\n\n")):
            fields = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
            if b"data" in fields:
                self.take(fields[b"event"].decode(), fields[b"data"], cursors)

    def take(self, kind: str, data: bytes, cursors: dict[str, int]) -> None:
        """Record an event as a request in the tables of locust, with its lag as the response time."""
        event = json.loads(data)
        wrong, lag_ms = None, 0.0
        if kind == "record":
            seqs = [one["$seq"] for one in event["records"]]
            due = cursors[event["topic"]] + 1
            cursors[event["topic"]] = event["to_seq"]
            lag_ms = time.time() * 1000 - event["records"][-1]["data"]["sent_ms"]
            if seqs != list(range(due, event["to_seq"] + 1)):
                wrong = ValueError(f"{event['topic']}: received {seqs}, expected {due} next")
        elif kind != "caught-up":
            wrong = ValueError(f"{kind}: {event}")
        self.environment.events.request.fire(
            request_type="SSE",
            name=kind,
            response_time=lag_ms,
            response_length=len(data),
            exception=wrong,
            context={},
        )


class JobProducer(TopicUser):
    """A user that appends jobs to the queues."""

    wait_time = constant_throughput(10)

    def on_start(self) -> None:
        for queue in QUEUES:
            config = {
                "type": "queue",
                "lease_ms": LEASE_MS,
                "max_deliveries": 20,
                "dead_letter": "locust-dead",
            }
            self.client.put(f"/v0/topics/{queue}", json=config, name="put")

    @task
    def produce(self) -> None:
        self.append(random.choice(QUEUES), BATCH)


class JobWorker(TopicUser):
    """A user that claims and acks jobs; sometimes it goes silent and returns as another node."""

    wait_time = constant_throughput(20)

    def on_start(self) -> None:
        self.node = f"worker-{next(_numbers)}"
        self.queue = random.choice(QUEUES)
        self.client.put(f"/v0/topics/{self.queue}", json={"type": "queue"}, name="put")

    @task
    def work(self) -> None:
        claim = self.ask("claim", {"max": 8})
        jobs = claim["claimed"] if claim else []
        if random.random() < SILENT_SHARE:
            self.on_start()
        elif jobs:
            self.end(jobs)

    def end(self, jobs: list[dict[str, Any]]) -> None:
        leased = {"seqs": [one["$seq"] for one in jobs], "lease_ids": [one["lease_id"] for one in jobs]}
        until_ms = min(one["deadline"] for one in jobs)
        result = self.ask("ack", leased)
        # Within its lease a worker ends the jobs that it holds, and no other worker does.
        if result and result["skipped"] and time.time() * 1000 < until_ms:
            self.environment.events.request.fire(
                request_type="JOB",
                name="skipped",
                response_time=0,
                response_length=0,
                exception=ValueError(
                    f"{self.node} has leases of {leased['seqs']}, the ack skipped {result['skipped']}"
                ),
                context={},
            )

    def ask(self, verb: str, body: dict[str, Any]) -> Any:
        path, body = f"/v0/topics/{self.queue}/{verb}", {"node": self.node, **body}
        with self.client.post(path, json=body, name=verb, catch_response=True) as answer:
            if answer.status_code == 200:
                return answer.json()
            answer.failure(f"{answer.status_code}: {answer.text}")
            return None
