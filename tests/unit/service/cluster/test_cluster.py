"""What a broker says of itself and its cluster, and the heartbeats of its node."""

from __future__ import annotations

import json
from collections import deque

import pytest

from shared.contract.errors import Refusal
from shared.runtime.clock import SystemClock
from tests.harness.brokers.one_broker import OneBroker
from tests.harness.machine.fake_store import FakeStore
from tests.harness.output.prometheus_text import parse
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.metered_catalog import VERBS, CatalogTotals, metered
from topicsd.catalog.shared.shared_catalog import BrokerNode, SharedTopic
from topicsd.service.cluster.about import BrokerIdentity, BrokerSources
from topicsd.service.cluster.broker_metrics import METRICS, prometheus, report, snapshot
from topicsd.service.cluster.cluster_answer import cluster_answer
from topicsd.service.cluster.membership import BEAT_SECONDS, EXPIRE_SECONDS, Membership
from topicsd.service.request_counts import RequestCounts
from topicsd.store.metered import MeteredStore

IDENTITY = BrokerIdentity("9f3c", 0, "http://[::1]:4000", 2.0, ("write", "read"), 1000)


class PricedStore(FakeStore):
    url = "s3://bucket"


def sources(one: OneBroker) -> BrokerSources:
    totals = CatalogTotals(one.clock.monotonic)
    totals.requests["commit"] = 3
    return BrokerSources(
        IDENTITY,
        one.broker,
        one.limits,
        MeteredStore(PricedStore()),
        totals,
        one.clock,
        one.clock.monotonic(),
        lambda: RequestCounts(SystemClock()),
        lambda: 4,
        lambda: UpkeepCounts(merged=5),
    )


def node(name: str, weight: float = 1.0, report: bytes = b"{}") -> BrokerNode:
    return BrokerNode(name, f"http://{name}:4000", weight, ("read",), 5, report, 7)


def topic(name: str) -> SharedTopic:
    return SharedTopic(name, 1, "OPEN", 0, 0, 0, 0, 0, b"{}", 1)


def test_nodes_have_their_share_of_the_homes() -> None:
    topics = [topic(f"t{number}") for number in range(1000)]
    answer = cluster_answer([node("a"), node("b", 3.0), node("c", 0.0)], topics)
    nodes = answer["nodes"]
    assert isinstance(nodes, list)
    assert [one["share"] for one in nodes] == [0.25, 0.75, 0.0]
    homes = [one["homes"] for one in nodes]
    assert sum(homes) == answer["topics_counted"] == 1000
    assert 200 < homes[0] < 300
    assert homes[2] == 0


def test_a_cluster_without_weights_or_with_unreadable_reports_is_shown() -> None:
    answer = cluster_answer([node("a", 0.0, b"\xff")], [topic("t")])
    nodes = answer["nodes"]
    assert isinstance(nodes, list)
    assert (nodes[0]["share"], nodes[0]["homes"], nodes[0]["report"]) == (0.0, 0, {})


def test_the_snapshot_and_the_text_have_the_same_numbers() -> None:
    one = OneBroker()
    one.broker.counts.produce_records = 12
    of_broker = sources(one)
    document = json.loads(json.dumps(snapshot(of_broker)))
    text = prometheus(of_broker)
    parse(text)
    assert (document["host"], document["port"]) == ("::1", 4000)
    assert document["catalog"]["requests_by_verb"] == {"commit": 3}
    assert document["compaction"]["merged"] == 5
    assert 'topics_compactor_merged_total{broker="broker-0-9f3c"} 5\n' in text
    assert 'topics_compactor_stage_seconds_total{broker="broker-0-9f3c",stage="put"} 0.000000\n' in text
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        value = document[metric.section][metric.name]
        assert (
            f'topicsd_broker_{metric.section}_{metric.name}{suffix}{{broker="broker-0-9f3c"}} {value}' in text
        )
    assert json.loads(report(of_broker))["records_in"] == 12


def test_a_metered_catalog_counts_each_verb_and_notices_silence() -> None:
    one = OneBroker()
    totals = CatalogTotals(one.clock.monotonic)
    catalog = metered(one.catalog, totals)
    assert {"commit", "heartbeat", "list", "extents_from"} <= set(VERBS)
    catalog.topics(["a"])
    one.catalog.faults["topics"] = deque(["lost request"])
    with pytest.raises(CatalogUnavailable):
        catalog.topics(["a"])
    one.clock.advance(5000)
    assert (totals.requests["topics"], totals.failures, totals.away_seconds) == (2, 1, 5)
    catalog.topics(["a"])
    assert totals.away_seconds == 0


def test_a_node_joins_beats_and_leaves() -> None:
    one = OneBroker()
    membership = Membership(IDENTITY, one.catalog, one.pools.lookups, one.loop, lambda: b'{"x":1}')
    membership.start()
    one.settle()
    (alive,) = one.catalog.nodes()
    assert (alive.name, alive.weight, alive.report) == ("9f3c", 2.0, b'{"x":1}')
    one.advance(EXPIRE_SECONDS * 3000)
    assert len(one.catalog.nodes()) == 1
    left: list[bool] = []
    membership.leave(lambda: left.append(True))
    one.settle()
    assert left == [True]
    assert one.catalog.nodes() == []
    one.advance(EXPIRE_SECONDS * 1000)
    assert one.catalog.nodes() == []


def test_a_lost_heartbeat_is_followed_by_the_next_one() -> None:
    one = OneBroker()
    one.catalog.faults["heartbeat"] = deque(["lost request"])
    membership = Membership(IDENTITY, one.catalog, one.pools.lookups, one.loop, lambda: b"{}")
    membership.start()
    one.settle()
    assert one.catalog.nodes() == []
    one.advance(BEAT_SECONDS * 1000 + 10)
    assert len(one.catalog.nodes()) == 1


def test_a_broker_refuses_by_name_what_is_none_of_its_roles() -> None:
    one = OneBroker(roles=("read",))
    one.create("a")
    (refusal,) = one.append("a", b"1")
    assert isinstance(refusal, Refusal)
    assert "do not write" in refusal.message
    writer = OneBroker(roles=("write",))
    writer.create("a")
    writer.appended("a", b"1")
    answers: list[TopicRecords] = []
    writer.broker.read(SharedRead([TopicRead("a", 1)]), answers.extend)
    (answer,) = answers
    assert answer.refusal is not None
    assert "do not read" in answer.refusal.message
