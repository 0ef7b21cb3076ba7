"""The metrics of one broker: one table, as a JSON snapshot and as Prometheus text.

A counter only grows, and begins at 0 with the process. The price of the requests is an estimate at list
prices (`shared/contract/store_prices.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from shared.contract.store_prices import PRICES_DATE
from shared.text.prometheus import family_header
from topicsd.broker.home.homes import Homes
from topicsd.broker.upkeep.upkeep_counts import upkeep_lines
from topicsd.service.cluster.about import BrokerSources

PREFIX: Final = "topicsd_broker"


class BrokerMetric(NamedTuple):
    section: str
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[BrokerSources], float]


def _counter(section: str, name: str, text: str, read: Callable[[BrokerSources], float]) -> BrokerMetric:
    return BrokerMetric(section, name, "counter", text, read)


def _gauge(section: str, name: str, text: str, read: Callable[[BrokerSources], float]) -> BrokerMetric:
    return BrokerMetric(section, name, "gauge", text, read)


def _homes(one: BrokerSources, read: Callable[[Homes], int]) -> int:
    """Return a number of the homes; 0 for a broker without them."""
    homes = one.broker.committer.homes
    return 0 if homes is None else read(homes)


METRICS: Final = (
    _gauge("http", "connections", "Connections of clients.", lambda one: one.connections()),
    _counter("http", "appends", "Answered appends.", lambda one: one.request_counts().appends.count),
    _counter(
        "http",
        "reads",
        "Answered reads, with those that waited.",
        lambda one: one.request_counts().reads.count + one.request_counts().waited_reads.count,
    ),
    _counter("http", "others", "Other answered requests.", lambda one: one.request_counts().others.count),
    _counter("produce", "requests", "Requests with records.", lambda one: one.broker.counts.produce_requests),
    _counter("produce", "records", "Committed records.", lambda one: one.broker.counts.produce_records),
    _counter("produce", "bytes", "Their bytes.", lambda one: one.broker.counts.produce_bytes),
    _counter(
        "produce",
        "errors",
        "Groups of records for one topic that were refused.",
        lambda one: one.broker.counts.produce_errors,
    ),
    _counter(
        "produce",
        "throttled",
        "Those of them that were refused because the queue was full.",
        lambda one: one.broker.counts.produce_throttled,
    ),
    _counter("consume", "requests", "Requests for records.", lambda one: one.broker.counts.consume_requests),
    _counter("consume", "records", "Records in answers.", lambda one: one.broker.counts.consume_records),
    _counter("consume", "bytes", "Their bytes.", lambda one: one.broker.counts.consume_bytes),
    _counter("consume", "errors", "Reads that were refused.", lambda one: one.broker.counts.consume_errors),
    _counter(
        "consume",
        "waits",
        "Reads that waited for new records.",
        lambda one: one.broker.counts.consume_waits,
    ),
    _gauge(
        "batcher",
        "queue_bytes",
        "Bytes of records that wait for the store and the catalog.",
        lambda one: one.broker.batcher.pending_bytes,
    ),
    _gauge(
        "batcher",
        "queue_seconds",
        "Age of the oldest of them.",
        lambda one: round(one.broker.batcher.pending_seconds, 3),
    ),
    _counter("batcher", "groups", "Groups that joined a blob.", lambda one: one.broker.batcher.totals.groups),
    _counter("batcher", "records", "Their records.", lambda one: one.broker.batcher.totals.records),
    _counter("batcher", "flushes", "Blobs that were closed.", lambda one: one.broker.batcher.totals.blobs),
    _counter(
        "batcher",
        "refused",
        "Groups that were refused because the queue was full.",
        lambda one: one.broker.batcher.totals.refused,
    ),
    _gauge(
        "blobs", "in_flight", "Blobs that are put or committed.", lambda one: one.broker.committer.in_flight
    ),
    _counter(
        "blobs",
        "bytes",
        "Bytes of records in blobs, as frames.",
        lambda one: one.broker.batcher.totals.bytes_appended,
    ),
    _counter(
        "blobs",
        "put_failures",
        "Blobs that could not be put.",
        lambda one: one.broker.committer.totals.put_failures,
    ),
    _counter("blobs", "commit_repeats", "Repeated commits.", lambda one: one.broker.committer.totals.repeats),
    _counter(
        "blobs",
        "commits_in_doubt",
        "Parts whose outcome is not known.",
        lambda one: one.broker.committer.totals.in_doubt,
    ),
    _counter(
        "blobs",
        "condemned",
        "Blobs that vacuum had condemned, and that were put again.",
        lambda one: one.broker.committer.totals.condemned,
    ),
    _counter(
        "homes",
        "sent",
        "Commits that were sent to the homes of their topics.",
        lambda one: _homes(one, lambda homes: homes.totals.sent),
    ),
    _counter(
        "homes",
        "passed_over",
        "Commits that were made here since the home was silent or refused.",
        lambda one: _homes(one, lambda homes: homes.totals.passed_over),
    ),
    _counter(
        "homes",
        "taken",
        "Commits that were made for other brokers.",
        lambda one: _homes(one, lambda homes: homes.home.taken_count),
    ),
    _counter(
        "homes",
        "refused",
        "Commits of other brokers that were refused, most of them since their time was over or not known.",
        lambda one: _homes(one, lambda homes: homes.home.refused_count),
    ),
    _counter("catalog", "requests", "Requests.", lambda one: one.catalog_totals.requests.total()),
    _counter("catalog", "failures", "Requests without an answer.", lambda one: one.catalog_totals.failures),
    _gauge(
        "catalog",
        "away_seconds",
        "Seconds since which it does not answer; 0 while it does.",
        lambda one: one.catalog_totals.away_seconds,
    ),
    _counter("store", "put", "Objects that were put.", lambda one: one.store.totals.creates),
    _counter("store", "range_get", "Reads of ranges.", lambda one: one.store.totals.reads),
    _counter("store", "info", "Requests for the state of an object.", lambda one: one.store.totals.infos),
    _counter("store", "list", "Pages of listings.", lambda one: one.store.totals.lists),
    _counter("store", "delete", "Deleted objects.", lambda one: one.store.totals.deletes),
    _counter("store", "failures", "Requests without an answer.", lambda one: one.store.totals.failures),
    _counter("store", "bytes_written", "Bytes put.", lambda one: one.store.totals.bytes_written),
    _counter("store", "bytes_read", "Bytes read.", lambda one: one.store.totals.bytes_read),
    _counter(
        "billing_estimate",
        "requests_dollars",
        "List price of the requests so far.",
        lambda one: round(one.store.totals.dollars(one.store.prices), 9),
    ),
    _counter(
        "tail_cache", "hits", "Lookups that the tail cache answered.", lambda one: one.broker.cache.hits
    ),
    _counter("tail_cache", "misses", "Lookups that it did not.", lambda one: one.broker.cache.misses),
    _gauge("tail_cache", "bytes", "Memory in use.", lambda one: one.broker.cache.size_bytes),
    _counter("heads", "polls", "Polls of the heads of topics.", lambda one: one.broker.heads.polls),
    _counter(
        "heads",
        "notices",
        "Commits that the catalog reported.",
        lambda one: one.broker.heads.notices,
    ),
    _gauge(
        "heads",
        "waiting_topics",
        "Topics with reads that wait for new records.",
        lambda one: one.broker.heads.waiting,
    ),
)


def snapshot(one: BrokerSources) -> dict[str, object]:
    """Return the metrics as JSON, with what identifies the broker."""
    identity, upkeep = one.identity, one.upkeep()
    sections: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        sections.setdefault(metric.section, {})[metric.name] = metric.read(one)
    sections["catalog"]["requests_by_verb"] = dict(sorted(one.catalog_totals.requests.items()))
    sections["billing_estimate"]["prices_date"] = PRICES_DATE
    return {
        "broker_id": identity.broker_id,
        "node": identity.node,
        "host": identity.host,
        "port": identity.port,
        "weight": identity.weight,
        "roles": list(identity.roles),
        "started_at_ms": identity.started_ms,
        "uptime_ms": _uptime_ms(one),
        "batch": {
            "max_bytes": one.limits.batch_bytes,
            "max_delay_ms": round(one.limits.batch_seconds * 1000),
            "max_delay_low_ms": round(one.limits.urgent_batch_seconds * 1000),
            "queue_bytes": one.limits.pending_bytes,
            "queue_age_ms": round(one.limits.pending_seconds * 1000),
        },
        **sections,
        "compaction": {} if upkeep is None else msgspec.to_builtins(upkeep),
    }


def prometheus(one: BrokerSources) -> str:
    """Return the same as Prometheus text."""
    identity = one.identity
    labels = f'broker="{identity.broker_id}"'
    roles = ",".join(identity.roles)
    lines = _family("info", "gauge", "1, with the roles and the address of the broker.")
    lines.append(f'{PREFIX}_info{{{labels},roles="{roles}",address="{identity.address}"}} 1')
    lines += _family("uptime_ms", "gauge", "Time since the start of the broker.")
    lines.append(f"{PREFIX}_uptime_ms{{{labels}}} {_uptime_ms(one)}")
    for metric in METRICS:
        suffix = "_total" if metric.kind == "counter" else ""
        name = f"{metric.section}_{metric.name}{suffix}"
        lines += _family(name, metric.kind, metric.help)
        lines.append(f"{PREFIX}_{name}{{{labels}}} {metric.read(one)}")
    lines += _family("catalog_requests_by_verb_total", "counter", "Requests to the catalog, by verb.")
    lines += [
        f'{PREFIX}_catalog_requests_by_verb_total{{{labels},verb="{verb}"}} {count}'
        for verb, count in sorted(one.catalog_totals.requests.items())
    ]
    upkeep = one.upkeep()
    if upkeep is not None:
        lines += upkeep_lines(upkeep, labels)
    return "\n".join(lines) + "\n"


def report(one: BrokerSources) -> bytes:
    """Return the numbers of a broker that its cluster shows, as JSON."""
    counts, batcher = one.broker.counts, one.broker.batcher
    return msgspec.json.encode(
        {
            "records_in": counts.produce_records,
            "bytes_in": counts.produce_bytes,
            "records_out": counts.consume_records,
            "bytes_out": counts.consume_bytes,
            "queue_bytes": batcher.pending_bytes,
            "queue_seconds": round(batcher.pending_seconds, 3),
            "requests_dollars": round(one.store.totals.dollars(one.store.prices), 9),
        }
    )


def _uptime_ms(one: BrokerSources) -> int:
    return int((one.clock.monotonic() - one.started) * 1000)


def _family(name: str, kind: str, text: str) -> list[str]:
    return family_header(f"{PREFIX}_{name}", kind, text)
