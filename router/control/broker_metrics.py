"""The table of the metrics of each broker, whose values are on the board and may be 0.5 s old."""

from __future__ import annotations

from typing import Final

from router.control.metrics_table import ShardMetric, counter, gauge

BROKER_METRICS: Final[tuple[ShardMetric, ...]] = (
    gauge(
        "topics_broker_connections", "Connections of clients to the broker.", lambda slot: slot.connections
    ),
    counter(
        "topics_broker_records_in_total",
        "Records of shared topics that were committed.",
        lambda slot: slot.broker_records_in_total,
    ),
    counter("topics_broker_bytes_in_total", "Their bytes.", lambda slot: slot.broker_bytes_in_total),
    counter(
        "topics_broker_records_out_total",
        "Records of shared topics in answers to reads.",
        lambda slot: slot.broker_records_out_total,
    ),
    counter("topics_broker_bytes_out_total", "Their bytes.", lambda slot: slot.broker_bytes_out_total),
    counter(
        "topics_broker_refused_total",
        "Groups of records for one topic that were refused.",
        lambda slot: slot.broker_refused_total,
    ),
    counter(
        "topics_broker_blobs_total",
        "Objects with records that were written.",
        lambda slot: slot.broker_blobs_total,
    ),
    counter("topics_broker_blob_bytes_total", "Their bytes.", lambda slot: slot.broker_blob_bytes_total),
    gauge(
        "topics_broker_queue_bytes",
        "Bytes of records that wait for the object store and the catalog.",
        lambda slot: slot.broker_pending_bytes,
    ),
    gauge("topics_broker_queue_ms", "Age of the oldest of them.", lambda slot: slot.broker_pending_ms),
    counter(
        "topics_broker_tail_hits_total",
        "Lookups that the tail cache answered.",
        lambda slot: slot.broker_tail_hits_total,
    ),
    counter(
        "topics_broker_tail_misses_total",
        "Lookups that it did not answer.",
        lambda slot: slot.broker_tail_misses_total,
    ),
    gauge(
        "topics_broker_waiting_topics",
        "Topics with reads that wait for new records.",
        lambda slot: slot.broker_waiting_topics,
    ),
    counter(
        "topics_broker_catalog_requests_total",
        "Requests to the catalog.",
        lambda slot: slot.catalog_requests_total,
    ),
    counter(
        "topics_broker_catalog_failures_total",
        "Requests to the catalog without an answer.",
        lambda slot: slot.catalog_failures_total,
    ),
    gauge(
        "topics_broker_catalog_away_seconds",
        "Seconds since which the catalog does not answer; 0 while it does.",
        lambda slot: slot.catalog_away_seconds,
    ),
    counter(
        "topics_broker_store_creates_total",
        "Objects that were put into the store.",
        lambda slot: slot.store_creates_total,
    ),
    counter("topics_broker_store_reads_total", "Reads of objects.", lambda slot: slot.store_reads_total),
    counter(
        "topics_broker_store_failures_total",
        "Requests to the store without an answer.",
        lambda slot: slot.store_failures_total,
    ),
)
