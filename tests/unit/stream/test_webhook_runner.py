"""A webhook over a shard, with a receiver that answers when the test says so; time is virtual."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.errors import Refusal, throttled
from shared.contract.route_rule import RouteRule, WebhookOptions, WebhookStatus
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.routes.route import RouteDeleted, RoutePut, RouteState, delete_route, put_route
from topicsd.engine.topic_admin import delete_topic
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_runner import RouteRunners
from topicsd.stream.webhooks.breaker import FAILURES_MAX, OPEN_MS
from topicsd.stream.webhooks.dead_batch import DeadBatch
from topicsd.stream.webhooks.webhook_client import OnAnswer, WebhookAnswer
from topicsd.stream.webhooks.webhook_request import WebhookRequest
from topicsd.stream.webhooks.webhook_runner import WebhookCounts, WebhookTools

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
ACCEPTED = WebhookAnswer(204, "")
FAILED = WebhookAnswer(500, "the receiver answered 500")
ENDS: list[Any] = [OneShard.restart, OneShard.kill, OneShard.reboot]


class Sent:
    """A request on its way."""

    def __init__(self, request: WebhookRequest, on_answer: OnAnswer) -> None:
        self.request = request
        self.on_answer = on_answer
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    @property
    def body(self) -> Any:
        return json.loads(self.request.body)

    @property
    def data(self) -> list[Any]:
        return [one["data"] for one in self.body["records"]]


class Stage:
    """One shard with the topic `a`, its webhooks, and everything that they sent."""

    def __init__(self, **settings: Any) -> None:
        self.one = OneShard(**settings)
        self.one.put("a")
        self.sent: list[Sent] = []
        self.stored: list[tuple[DeadBatch, Callable[[Refusal | None], object]]] = []
        self.run()

    def run(self) -> None:
        state = self.one.shard.state
        feeds = Feeds(state, self.one.loop)
        self.counts = WebhookCounts()
        tools = WebhookTools(feeds, self._send, lambda *stored: self.stored.append(stored), self.counts)
        RouteRunners(state, self.one.loop, feeds, tools)
        self.one.settle()

    def _send(self, request: WebhookRequest, on_answer: OnAnswer) -> Sent:
        sent = Sent(request, on_answer)
        self.sent.append(sent)
        return sent

    def end(self, end: Callable[[OneShard], None]) -> None:
        end(self.one)
        self.run()

    def put_route(self, **options: Any) -> Any:
        fields = {name: options.pop(name) for name in ("tags", "is_from_start") if name in options}
        rule = RouteRule("r", "a", "https://x.example/", webhook=WebhookOptions(SECRET, **options), **fields)
        reply = RecordedReply()
        put_route(self.one.shard.state, rule, reply)
        self.one.pass_time(20)
        return reply.answer

    def append(self, *records: object) -> None:
        self.one.append("a", *records)
        self.one.pass_time(20)

    def live_data(self) -> list[int]:
        return [int(one.data) for one in self.one.read("a", limit=1000).records]

    @property
    def route(self) -> RouteState:
        return self.one.shard.state.routes["r"]

    @property
    def status(self) -> WebhookStatus:
        assert self.route.webhook is not None
        return self.route.webhook

    def answer(self, answer: WebhookAnswer = ACCEPTED) -> Sent:
        """Answer the request that was sent last."""
        sent = self.sent[-1]
        sent.on_answer(answer)
        self.one.pass_time(20)
        return sent


def test_batches_are_sent_in_order_one_at_a_time() -> None:
    stage = Stage()
    stage.append(1)
    assert isinstance(stage.put_route(batch=2), RoutePut)
    stage.append(2)
    stage.append(3, 4)
    assert [one.data for one in stage.sent] == [[2]]
    stage.answer()
    assert [one.data for one in stage.sent] == [[2], [3, 4]]
    assert stage.route.seq == 2
    stage.answer()
    stage.append(5)
    stage.answer()
    assert [one.data for one in stage.sent] == [[2], [3, 4], [5]]
    assert (stage.route.seq, stage.route.forwarded_total) == (5, 4)


def test_a_body_has_the_records_as_a_read_renders_them() -> None:
    stage = Stage()
    stage.put_route()
    stage.append(record({"z": 1.0}, "tag", "n", {"k": 1}))
    body = stage.sent[0].body
    epoch = stage.one.topic("a").epoch
    (entry,) = body.pop("records")
    assert body == {"router": "r", "topic": "a", "epoch": epoch, "next_from_seq": 1, "tombstone": None}
    assert entry.pop("$ts") > 0
    assert entry == {"$seq": 1, "$node": "n", "$tag": "tag", "meta": {"k": 1}, "data": {"z": 1.0}}


def test_lines_name_topic_and_epoch_and_report_losses_first() -> None:
    stage = Stage()
    stage.put_route(is_lines=True)
    stage.append(1)
    stage.one.put("a", cap_records=1)
    stage.append(2, 3)
    stage.answer()
    first, second = (json.loads(line) for line in stage.sent[1].request.body.splitlines())
    assert (first["$event"], first["topic"], first["gap_from"], first["gap_to"]) == ("tombstone", "a", 2, 2)
    assert (second["$topic"], second["$seq"], second["data"]) == ("a", 3, 3)
    assert second["$epoch"] == first["epoch"] == stage.one.topic("a").epoch


def test_only_matching_records_are_sent_and_others_are_done_with() -> None:
    stage = Stage()
    stage.put_route(tags=["tag", "Glob", "x*"])
    stage.append(record(1, "y"), record(2, "x1"), record(3))
    assert stage.answer().data == [2]
    stage.append(record(4, "y"))
    assert len(stage.sent) == 1
    assert stage.route.seq == 4


@pytest.mark.parametrize("end", ENDS)
def test_an_unanswered_batch_is_sent_again_after_a_restart_and_an_answered_one_is_not(end: Any) -> None:
    stage = Stage()
    stage.put_route()
    stage.append(1)
    stage.answer()
    stage.append(2)
    stage.end(end)
    stage.one.pass_time(20)
    assert [one.data for one in stage.sent] == [[1], [2], [2]]
    assert stage.sent[1].request.fields["webhook-id"] == stage.sent[2].request.fields["webhook-id"]
    stage.answer()
    assert (stage.route.seq, stage.route.forwarded_total) == (2, 2)


@pytest.mark.parametrize("end", ENDS)
def test_a_position_in_a_snapshot_survives(end: Any) -> None:
    stage = Stage()
    stage.put_route()
    stage.append(1)
    stage.one.checkpoint()
    stage.answer()
    stage.one.checkpoint()
    stage.end(end)
    count = len(stage.sent)
    stage.append(2)
    if stage.sent[-1].body["tombstone"] is not None and not stage.sent[-1].data:
        assert end is OneShard.reboot, "only that loses seqs"
        stage.answer()
    assert [one.data for one in stage.sent[count:] if one.data] == [[2]]
    assert stage.route.rule.webhook == WebhookOptions(SECRET)


def test_records_are_sent_once_they_are_synced() -> None:
    stage = Stage()
    stage.put_route()
    for number in range(1, 30):
        stage.append(number)
        if len(stage.sent) > stage.route.forwarded_total:
            sent = stage.answer()
            stage.one.cut_power(number)
            assert stage.one.topic("a").head >= sent.body["next_from_seq"]
            stage.run()
    assert stage.sent


def test_failures_are_repeated_with_growing_pauses_until_the_breaker_opens() -> None:
    stage = Stage()
    stage.put_route()
    stage.append(1)
    pauses = []
    for _ in range(FAILURES_MAX + 1):
        began, count = stage.one.clock.monotonic(), len(stage.sent)
        stage.sent[-1].on_answer(FAILED)
        while len(stage.sent) == count:
            stage.one.pass_time(50)
        pauses.append(stage.one.clock.monotonic() - began)
    assert all(0.5 * 2**n <= pause <= 2**n + 0.1 for n, pause in enumerate(pauses[: FAILURES_MAX - 1]))
    assert pauses[-2:] == pytest.approx([OPEN_MS / 1000, 2 * OPEN_MS / 1000], abs=0.1)
    assert len({one.request.fields["webhook-id"] for one in stage.sent}) == 1
    assert len({one.request.fields["webhook-timestamp"] for one in stage.sent}) > 1
    status = stage.status
    assert (status.attempts, status.last_status) == (FAILURES_MAX + 1, 500)
    assert status.open_until > 0
    assert stage.counts.open_breakers == 1
    stage.answer()
    assert stage.counts.open_breakers == 0
    assert (stage.counts.requests, stage.counts.failures) == (FAILURES_MAX + 2, FAILURES_MAX + 1)
    assert msgspec.structs.astuple(status) == (0, 204, "", 0, 0)


def test_a_receiver_is_left_alone_as_long_as_it_wants() -> None:
    stage = Stage()
    stage.put_route()
    stage.append(1)
    stage.answer(WebhookAnswer(429, "busy", retry_after_ms=90_000))
    stage.one.pass_time(89_000)
    assert len(stage.sent) == 1
    stage.one.pass_time(2_000)
    assert len(stage.sent) == 2


def test_a_batch_that_failed_often_enough_goes_to_the_dead_letter_topic() -> None:
    stage = Stage()
    stage.put_route(dead_letter="dead", max_attempts=2)
    stage.append(record(1, "t", "n", {"k": 1}), record(2))
    stage.answer(FAILED)
    stage.one.pass_time(5_000)
    stage.answer(FAILED)
    ((batch, on_stored),) = stage.stored
    assert batch.topic == "dead"
    assert batch.idempotency_key.startswith(stage.sent[0].request.fields["webhook-id"])
    first, second = json.loads(batch.body)["records"]
    origin = {"router": "r", "topic": "a", "epoch": stage.one.topic("a").epoch, "attempts": 2}
    origin["error"] = FAILED.error
    assert first == {"data": 1, "tag": "t", "node": "n", "meta": {"k": 1, "$webhook": {**origin, "seq": 1}}}
    assert second == {"data": 2, "meta": {"$webhook": {**origin, "seq": 2}}}
    on_stored(throttled("busy"))
    stage.one.pass_time(1_500)
    assert stage.route.seq == 0
    assert stage.stored[1][0] == batch
    stage.stored[1][1](None)
    stage.one.pass_time(5_000)
    assert (stage.route.seq, stage.route.forwarded_total, stage.status.attempts) == (2, 0, 0)
    assert stage.counts.dead_batches == 1
    stage.append(3)
    assert stage.sent[-1].data == [3]


def test_a_changed_rule_applies_at_once() -> None:
    stage = Stage()
    stage.put_route()
    stage.append(record(1, "x"))
    stage.answer(FAILED)
    stage.put_route(tags=["tag", "Eq", "x"], is_lines=True)
    assert len(stage.sent) == 2
    assert stage.sent[1].request.fields["content-type"] == "application/x-ndjson"
    in_flight = stage.sent[1]
    stage.put_route(tags=["tag", "Eq", "y"])
    assert in_flight.is_cancelled
    in_flight.on_answer(ACCEPTED)
    stage.append(record(2, "y"))
    assert stage.sent[-1].data == [2]


def test_a_webhook_ends_with_its_route_and_with_its_source() -> None:
    stage = Stage()
    stage.put_route()
    stage.append(1)
    reply = RecordedReply()
    delete_route(stage.one.shard.state, "r", reply)
    stage.one.settle()
    assert reply.answer == RouteDeleted("r", deleted=True)
    assert stage.sent[0].is_cancelled
    stage.put_route(is_from_start=True)
    assert stage.sent[1].data == [1]
    gone = RecordedReply()
    delete_topic(stage.one.shard.state, "a", False, gone)
    stage.one.settle()
    assert gone.answer.routes == ["r"]
    assert stage.sent[1].is_cancelled
    assert stage.one.shard.state.routes == {}


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_delivered_in_order_whatever_ends_the_process(seed: int) -> None:
    """Appends, checkpoints, failures, restarts, kills and power cuts in any order, at any moment."""
    rng = Random(seed)
    stage = Stage()
    stage.put_route(batch=rng.randint(1, 4))
    received: list[int] = []
    number = 0
    for _ in range(120):
        step = rng.choice(["append", "append", "append", "answer", "answer", "answer", "checkpoint", "end"])
        if step == "append":
            count = rng.randint(1, 3)
            stage.one.send_append("a", *range(number + 1, number + count + 1))
            number += count
            stage.one.turn()
        elif step == "answer":
            stage.one.pass_time(rng.choice([0, 20, 2000]))
            answer_next(stage, received, rng)
        elif step == "checkpoint":
            stage.one.shard.start_checkpoint()
            stage.one.turn()
        else:
            stage.one.pass_time(rng.choice([0, 20]))
            stage.end(rng.choice([OneShard.restart, OneShard.kill, OneShard.reboot, OneShard.cut_power]))
            number = max(stage.live_data(), default=0)
    for _ in range(300):
        stage.one.pass_time(2000)
        answer_next(stage, received, None)
    assert set(stage.live_data()) <= set(received), seed
    highest = 0
    for one in received:
        assert one <= highest + 1, (seed, received)
        highest = max(highest, one)


def answer_next(stage: Stage, received: list[int], rng: Random | None) -> None:
    """Answer the request in flight, if there is one, and note what the receiver has."""
    if not stage.sent:
        return
    sent = stage.sent.pop()
    stage.sent.clear()
    received += sent.data
    is_accepted = rng is None or rng.random() < 0.7
    sent.on_answer(ACCEPTED if is_accepted else FAILED)
