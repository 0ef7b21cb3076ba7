"""The refusals of requests for shared topics."""

from __future__ import annotations

from shared.contract.errors import (
    CATALOG_UNAVAILABLE,
    GONE,
    IDEMPOTENCY_MISMATCH,
    IN_DOUBT,
    PRODUCER_GAP,
    RETRY_AFTER_MS,
    STORAGE_FAILED,
    TOPIC_FENCED,
    TOPIC_NOT_FOUND,
    Refusal,
    not_ready,
)


def no_role(role: str) -> Refusal:
    """Refuse what the brokers of this node do not do, and those of other nodes may."""
    message = f"the brokers of this node do not {role}: TOPICS_BROKER_ROLES leaves it out; ask another node"
    return not_ready(message, {"role": role}, is_retry_useful=False)


def no_such_topic(name: str) -> Refusal:
    return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist')


def topic_changed(name: str) -> Refusal:
    """Refuse records for an incarnation that is gone; a repetition is for the present topic, if any."""
    return not_ready(f'topic "{name}" was deleted, and perhaps made again; repeat the request')


def topic_fenced(name: str) -> Refusal:
    return Refusal(TOPIC_FENCED, f'topic "{name}" is fenced: it takes no records until it is opened again')


def topic_replaced(name: str) -> Refusal:
    """Refuse a read of a topic that was deleted and made again while it was read."""
    return Refusal(GONE, f'topic "{name}" was deleted and made again; read it from its first record')


def producer_gap(name: str, producer: str, next_number: int) -> Refusal:
    message = f'producer "{producer}": its next number in topic "{name}" is {next_number}'
    return Refusal(PRODUCER_GAP, message, {"field": "producer", "next_seq": next_number})


def key_mismatch() -> Refusal:
    message = "idempotency_key: was used for other records; use another key for another write"
    return Refusal(IDEMPOTENCY_MISMATCH, message, {"field": "idempotency_key"})


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
