"""Requests for names that are not here: between two shards and a broker of one node."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.names import topic_id
from shared.http.head import Fields
from tests.harness.stage.broker_stage import BROKER, BrokerStage
from tests.harness.stage.shared_stage import RecordedCall
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.engine.ownership.departed import SEALED, Departed
from topicsd.engine.ownership.new_names import Grant
from topicsd.service.shared.names import CREATION_SECONDS
from topicsd.service.shared.routing import BrokerProcessRouting

FIELDS = Fields(content_type="application/json")
SHARED = {"placement": "shared"}
ONE = {"records": [{"data": 1}]}


def start(stage: BrokerStage, process: int, operation: str, name: str, body: Any = None) -> RecordedCall:
    """Begin a request of a client at a process."""
    data = b"" if body is None else msgspec.json.encode(body)
    call = RecordedCall(name, "", FIELDS, data, stage.clock.monotonic())
    stage.workers[process].run_at_owner(operation, call)
    return call


def ask(stage: BrokerStage, process: int, operation: str, name: str, body: Any = None) -> tuple[int, Any]:
    call = start(stage, process, operation, name, body)
    stage.settle()
    status, answer = call.answer
    return status, json.loads(answer)


def code_of(answer: tuple[int, Any]) -> str:
    return str(answer[1]["error"]["code"])


def is_shared(stage: BrokerStage, name: str) -> bool:
    return stage.topics.topics([name])[0] is not None


@pytest.fixture
def stage() -> BrokerStage:
    return BrokerStage()


@pytest.mark.parametrize("process", [0, 1, BROKER])
def test_later_appends_of_a_new_name_do_not_overtake_the_first(stage: BrokerStage, process: int) -> None:
    calls = []
    for turn in range(30):
        calls.append(start(stage, process, "append", "t0", ONE))
        # The thread of the catalog runs now and then, so answers come in between.
        if turn % 3 == 0:
            for shard in stage.shards:
                shard.settle()
        if turn % 7 == 0:
            for thread in stage.threads:
                thread.run_one()
    stage.settle()
    assert [json.loads(one.answer[1])["first_seq"] for one in calls] == list(range(1, 31))


def test_requests_for_a_name_wait_for_its_creation_for_a_bounded_time(stage: BrokerStage) -> None:
    routing = stage.workers[BROKER].brokers
    assert isinstance(routing, BrokerProcessRouting)
    routing.operations.names._find_local = lambda name, reply: None
    calls = [start(stage, BROKER, "put_topic", "t0", SHARED)]
    stage.settle()
    calls.append(start(stage, 0, "append", "t0", ONE))
    stage.settle()
    assert [one.answers for one in calls] == [[], []]
    stage.pass_time(CREATION_SECONDS * 1000 + 10)
    assert [one.answer[0] for one in calls] == [503, 503]


def test_a_creation_of_a_local_name_refuses_only_those_that_create(stage: BrokerStage) -> None:
    stage.owner("t0").append("t0", 1)
    put = start(stage, BROKER, "put_topic", "t0", SHARED)
    for thread in stage.threads:
        thread.run_one()
    stage.shards[BROKER].settle()
    calls = [start(stage, BROKER, "topic_state", "t0") for _ in range(3)]
    stage.settle()
    assert put.answer[0] == 409
    assert [one.answer[0] for one in calls] == [200, 200, 200]


def test_a_shared_topic_does_not_take_the_name_of_a_departed_one(stage: BrokerStage) -> None:
    number = stage.number_of("t0")
    state = stage.shards[number].shard.state
    state.departed["t0"] = Departed("t0", topic_id("t0"), 1, SEALED, "other", 2, 0)
    answer = ask(stage, number, "put_topic", "t0", SHARED)
    assert answer[0] >= 400
    assert not is_shared(stage, "t0")
    assert ask(stage, BROKER, "put_topic", "t0", SHARED)[0] == 409
    assert not is_shared(stage, "t0")


def test_a_name_of_which_a_local_creation_is_under_way_is_local(stage: BrokerStage) -> None:
    number = stage.number_of("t0")
    new_names = stage.shards[number].shard.state.new_names
    new_names._granted["t0"] = Grant(1, 1)
    assert code_of(ask(stage, BROKER, "put_topic", "t0", SHARED)) == "topic_exists_incompatible"
    assert not is_shared(stage, "t0")
    del new_names._granted["t0"]
    assert ask(stage, BROKER, "put_topic", "t0", SHARED)[0] == 201


@pytest.mark.parametrize("process", [0, 1, BROKER])
@pytest.mark.parametrize("queue", ["t0", "c1"])
def test_a_name_that_gets_dead_letters_is_no_shared_topic(
    stage: BrokerStage, process: int, queue: str
) -> None:
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
    assert ask(stage, BROKER, "put_topic", queue, config)[0] == 201
    refused = ask(stage, process, "put_topic", "dead", SHARED)
    assert code_of(refused) == "topic_exists_incompatible"
    assert "dead letters" in refused[1]["error"]["message"]
    assert ask(stage, process, "append", "dead", {**ONE, "config": SHARED})[0] == 409
    assert not is_shared(stage, "dead")
    # A name without such a queue, and one whose queue has another one now.
    assert ask(stage, process, "put_topic", "alive", SHARED)[0] == 201
    assert ask(stage, BROKER, "put_topic", queue, {"dead_letter": "others"})[0] == 200
    assert ask(stage, process, "put_topic", "dead", SHARED)[0] == 201


def test_a_shard_that_is_away_delays_no_creation_of_a_name_of_another_one(stage: BrokerStage) -> None:
    stage.cut_off(1 - stage.number_of("t0"))
    assert ask(stage, BROKER, "put_topic", "t0", SHARED)[0] == 201


def test_a_broker_does_not_ask_the_catalog_for_each_append_to_a_local_topic(stage: BrokerStage) -> None:
    assert ask(stage, BROKER, "append", "t0", ONE)[0] == 201
    before = stage.catalog.calls["topics"]
    for seq in (2, 3, 4):
        assert ask(stage, BROKER, "append", "t0", ONE)[1]["first_seq"] == seq
    assert stage.catalog.calls["topics"] == before


def test_a_name_that_was_local_lately_may_become_a_shared_one(stage: BrokerStage) -> None:
    assert ask(stage, BROKER, "append", "t0", ONE)[0] == 201
    assert ask(stage, BROKER, "delete_topic", "t0")[0] == 200
    stage.create_shared("t0")
    assert ask(stage, BROKER, "append", "t0", ONE)[1]["durability"] == "fsync"


def test_a_feature_of_local_topics_notices_that_another_node_deleted_the_topic(stage: BrokerStage) -> None:
    stage.create_shared("t0")
    assert code_of(ask(stage, 0, "list_cursors", "t0")) == "not_supported"
    topic = stage.topics.topics(["t0"])[0]
    assert topic is not None
    stage.topics.forget("t0", topic.incarnation)
    stage.pass_time(ROW_SECONDS * 1000 + 10)
    assert code_of(ask(stage, 0, "list_cursors", "t0")) == "topic_not_found"
    assert ask(stage, 0, "append", "t0", ONE)[0] == 201


@pytest.mark.parametrize("seed", range(60))
def test_a_name_that_is_created_at_two_brokers_at_once_has_one_kind(seed: int) -> None:
    rng = Random(seed)
    stage = BrokerStage(brokers=2)
    calls: list[tuple[object, RecordedCall]] = []
    for _ in range(4):
        kind = rng.choice(("local", "shared"))
        body = SHARED if kind == "shared" else {}
        calls.append((kind, start(stage, rng.randrange(4), "put_topic", "t0", body)))
        # Threads and loops get on by any amount between two requests.
        for _ in range(rng.randrange(6)):
            if rng.random() < 0.4:
                rng.choice(stage.threads).run_one()
            else:
                rng.choice(stage.shards).loop.run_turn()
    stage.settle()
    answers = [(kind, call.answer[0]) for kind, call in calls]
    is_local = "t0" in stage.owner("t0").shard.state.topics
    assert is_local != is_shared(stage, "t0"), answers
    assert {kind for kind, status in answers if status == 201} == {"local" if is_local else "shared"}
