"""The answer of `GET /v0/store`: what is in the object store, the requests so far, and what they cost.

The numbers are the sums over the shards and brokers on the board, each since the start of its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from shared.contract.store_prices import PRICES, PRICES_DATE
from shared.ipc.board import Slot

MONTH_SECONDS: Final = 30.4375 * 86_400
GIB: Final = 1 << 30


def store_answer(url: str, slots: Sequence[Slot], uptime_ms: int) -> dict[str, object]:
    """Return the state of the store; without a store its kind is `none`."""
    if not url:
        return {"kind": "none"}
    parts = urlsplit(url)
    prices = PRICES[parts.scheme]
    creates, lists = _sum(slots, "store_creates_total"), _sum(slots, "store_lists_total")
    reads, infos = _sum(slots, "store_reads_total"), _sum(slots, "store_infos_total")
    exported_bytes = _sum(slots, "exported_bytes")
    dollars = prices.requests(creates + lists, reads + infos)
    stored = exported_bytes / GIB * prices.gib_month
    per_month = dollars / max(uptime_ms / 1000, 1.0) * MONTH_SECONDS
    return {
        "url": parts._replace(query="").geturl(),
        "kind": parts.scheme,
        "state": "away" if is_store_away(slots) else "ok",
        "exported": {"segments": _sum(slots, "exported_segments"), "bytes": exported_bytes},
        "exports": {
            "waiting_segments": _sum(slots, "export_waiting_segments"),
            "waiting_bytes": _sum(slots, "export_waiting_bytes"),
            "oldest_seconds": max(slot.export_oldest_seconds for slot in slots),
            "segments": _sum(slots, "export_segments_total"),
            "bytes": _sum(slots, "export_bytes_total"),
            "merged_segments": _sum(slots, "merged_segments_total"),
            "failures": _sum(slots, "export_failures_total"),
            "last_failure_ms": max(slot.export_failed_ms for slot in slots),
        },
        "catalog": _catalog_answer(slots),
        "deletes_waiting": _sum(slots, "objects_to_delete"),
        "requests": {
            "create": creates,
            "read": reads,
            "info": infos,
            "list": lists,
            "delete": _sum(slots, "store_deletes_total"),
            "failed": _sum(slots, "store_failures_total"),
        },
        "bytes_read": _sum(slots, "store_bytes_read_total"),
        "bytes_written": _sum(slots, "store_bytes_written_total"),
        "cache": {
            "hits": _sum(slots, "store_cache_hits_total"),
            "misses": _sum(slots, "store_cache_misses_total"),
            "bytes": _sum(slots, "store_cache_bytes"),
        },
        "cost": {
            "requests_dollars": round(dollars, 6),
            "month_dollars": round(stored + per_month, 4),
            "prices_date": PRICES_DATE,
        },
    }


def _catalog_answer(slots: Sequence[Slot]) -> dict[str, object]:
    away_seconds = max((slot.catalog_away_seconds for slot in slots), default=0)
    return {
        "state": "none" if not any(slot.has_catalog for slot in slots) else "away" if away_seconds else "ok",
        "away_seconds": away_seconds,
        "requests": _sum(slots, "catalog_requests_total"),
        "failed": _sum(slots, "catalog_failures_total"),
        "waiting": _sum(slots, "catalog_waiting"),
        "near_ceiling": _sum(slots, "topics_near_ceiling"),
        "departed": _sum(slots, "topics_departed"),
    }


def problems_of(slots: Sequence[Slot], brokers: Sequence[Slot] = ()) -> str:
    """Return what the operator has to know although all shards serve; empty when nothing is wrong."""
    problems = []
    if is_store_away(slots):
        problems.append("the object store does not answer: exports and reads of its segments wait")
    elif any(slot.is_export_away for slot in slots):
        problems.append("exports wait for the object store or the catalog")
    if any(slot.catalog_away_seconds for slot in slots):
        problems.append("the catalog does not answer: topics are writable up to their ceilings")
    if count := _sum(slots, "topics_near_ceiling"):
        problems.append(f"{count} topics have used most of the seqs that the catalog granted")
    if any(slot.catalog_away_seconds for slot in brokers):
        problems.append("the catalog does not answer a broker: shared topics wait")
    return "; ".join(problems)


def is_store_away(slots: Sequence[Slot]) -> bool:
    """Return whether a shard pauses its exports because the object store is not usable."""
    return any(slot.is_store_away for slot in slots)


def _sum(slots: Sequence[Slot], name: str) -> int:
    return sum(getattr(slot, name) for slot in slots)
