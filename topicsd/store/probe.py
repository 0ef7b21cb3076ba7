"""The probe of a store at a start: refuse a store that would lose data (R6).

Some servers that speak S3 ignore the condition of a PUT and answer 200, so two nodes would each believe that
they created the object. Others answer ranges with the whole object. Both are found here, with one small
object.
"""

from __future__ import annotations

import secrets
from typing import Final

from shared.runtime.retries import Retries
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectExists, ObjectStore, StoreRefused

PROBES: Final = "probe"
"""The folder of the objects of probes in a store."""
_CONTENT: Final = b"topicsd checks what this store can do"


def probe_store(store: ObjectStore, retries: Retries) -> None:
    """Check create-only, ranged reads, listing and deletion.

    Raises StoreRefused with the missing ability, or StoreUnavailable.
    """
    folder = f"{PROBES}/{secrets.token_hex(8)}"
    key = f"{folder}/object"
    create_object(store, key, [_CONTENT], retries)
    try:
        try:
            create_object(store, key, [_CONTENT], retries)
        except ObjectExists:
            pass
        else:
            raise StoreRefused(
                f"{store.url}: the store ignores the condition of a PUT (If-None-Match), so two nodes could "
                "overwrite each other's objects; use a store with conditional writes"
            )
        if (part := _read(store, key, retries)) != _CONTENT[8:14]:
            raise StoreRefused(
                f"{store.url}: the store ignores the range of a GET: {len(part)} bytes for a range of 6"
            )
        if key not in [info.key for info in store.list(f"{folder}/")]:
            raise StoreRefused(f"{store.url}: the store does not list an object that it has just created")
    finally:
        repeat_request(lambda: store.delete(key), retries)


def _read(store: ObjectStore, key: str, retries: Retries) -> bytes:
    return repeat_request(lambda: store.read(key, 8, 6), retries)
