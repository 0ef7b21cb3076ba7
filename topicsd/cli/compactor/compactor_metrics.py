"""The metrics of a compactor, as a document and as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shared.text.prometheus import family_header
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts, upkeep_lines
from topicsd.store.metered import MeteredStore


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
    yield from upkeep_lines(metrics.upkeep)
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
