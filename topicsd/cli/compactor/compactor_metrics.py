"""The metrics of a compactor, as a document and as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from shared.text.prometheus import family_header
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts
from topicsd.store.metered import MeteredStore

_GAUGES: Final = ("topics", "pending_topics", "pending_records")
_HELP: Final = {
    "passes": "Passes over the topics.",
    "runs": "Visits of topics.",
    "recovered": "Compactions of processes that ended, which were finished.",
    "merged": "Objects that were made of slices.",
    "merged_extents": "Slices that were merged.",
    "merged_bytes": "Bytes of the objects that were made.",
    "busy": "Visits that found the topic claimed by another process.",
    "refused": "Compactions that the catalog refused.",
    "failed": "Visits, listings and vacuums that failed.",
    "blocked_extents": "Slices that stop the compaction of their topic.",
    "trims": "Trims by retention.",
    "trimmed_records": "Records that retention removed.",
    "vacuums": "Vacuums of the store.",
    "vacuumed_objects": "Objects that vacuums deleted.",
    "vacuumed_bytes": "Bytes of the objects that vacuums deleted.",
    "topics": "Shared topics that are known.",
    "pending_topics": "Topics with records that are not compacted.",
    "pending_records": "Records that are not compacted.",
}


class StoreRequests(msgspec.Struct, frozen=True):
    """The requests to the store since the start, and their price."""

    creates: int
    reads: int
    infos: int
    lists: int
    deletes: int
    failures: int
    bytes_read: int
    bytes_written: int
    dollars: float


class CompactorDocument(msgspec.Struct, frozen=True):
    name: str
    uptime_seconds: float
    upkeep: UpkeepCounts
    store: StoreRequests


def document(
    name: str, uptime_seconds: float, counts: UpkeepCounts, store: MeteredStore
) -> CompactorDocument:
    totals = store.totals
    requests = StoreRequests(
        creates=totals.creates,
        reads=totals.reads,
        infos=totals.infos,
        lists=totals.lists,
        deletes=totals.deletes,
        failures=totals.failures,
        bytes_read=totals.bytes_read,
        bytes_written=totals.bytes_written,
        dollars=totals.dollars(store.prices),
    )
    return CompactorDocument(name, round(uptime_seconds, 3), counts, requests)


def prometheus_text(metrics: CompactorDocument) -> str:
    return "".join(f"{line}\n" for line in _lines(metrics))


def _lines(metrics: CompactorDocument) -> Iterator[str]:
    for field, text in _HELP.items():
        is_gauge = field in _GAUGES
        name = f"topics_compactor_{field}" + ("" if is_gauge else "_total")
        yield from family_header(name, "gauge" if is_gauge else "counter", text)
        yield f"{name} {getattr(metrics.upkeep, field)}"
    name = "topics_compactor_stage_seconds_total"
    yield from family_header(name, "counter", "Time of the requests of each stage.")
    for stage, seconds in metrics.upkeep.stage_seconds.items():
        yield f'{name}{{stage="{stage}"}} {seconds:.6f}'
    name = "topics_compactor_store_requests_total"
    yield from family_header(name, "counter", "Requests to the object store.")
    store = metrics.store
    for kind in ("creates", "reads", "infos", "lists", "deletes"):
        yield f'{name}{{kind="{kind}"}} {getattr(store, kind)}'
    for field, value, text in (
        ("store_bytes_read", store.bytes_read, "Bytes read from the object store."),
        ("store_bytes_written", store.bytes_written, "Bytes written to the object store."),
        ("store_failures", store.failures, "Requests that the object store did not answer."),
        ("store_dollars", f"{store.dollars:.6f}", "Price of the requests at list prices."),
    ):
        name = f"topics_compactor_{field}_total"
        yield from (*family_header(name, "counter", text), f"{name} {value}")
