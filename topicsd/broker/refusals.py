"""The refusals of requests for shared topics."""

from __future__ import annotations

from shared.contract.errors import (
    CATALOG_UNAVAILABLE,
    GONE,
    IN_DOUBT,
    PRODUCER_GAP,
    RETRY_AFTER_MS,
    STORAGE_FAILED,
    TOPIC_FENCED,
    TOPIC_NOT_FOUND,
    Refusal,
)


def no_such_topic(name: str) -> Refusal:
    return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist')


def topic_fenced(name: str) -> Refusal:
    return Refusal(TOPIC_FENCED, f'topic "{name}" is fenced: it takes no records until it is opened again')


def topic_replaced(name: str) -> Refusal:
    """Refuse a read of a topic that was deleted and made again while it was read."""
    return Refusal(GONE, f'topic "{name}" was deleted and made again; read it from its first record')


def producer_gap(name: str, producer: str) -> Refusal:
    message = f'producer "{producer}": its numbers do not follow those of its last write to topic "{name}"'
    return Refusal(PRODUCER_GAP, message, {"field": "producer"})


def no_catalog(cause: OSError) -> Refusal:
    """Refuse a request for which nothing was done, since the catalog does not answer."""
    message = f"the catalog does not answer, retry after 1 s: {cause}"
    return Refusal(CATALOG_UNAVAILABLE, message, retry_after_ms=RETRY_AFTER_MS)


def commit_in_doubt(cause: OSError) -> Refusal:
    message = f"the catalog did not answer the commit: the records may or may not have been appended: {cause}"
    return Refusal(IN_DOUBT, message, retry_after_ms=RETRY_AFTER_MS)


def store_failed(cause: OSError) -> Refusal:
    """Refuse records that the store will not accept, or cannot return."""
    return Refusal(STORAGE_FAILED, f"the object store failed: {cause}")
