"""The only place where objects are created: a conditional PUT whose outcome is always known (R4).

A request to create an object has more outcomes than yes and no, and this function removes the others:

* The answer says that the key is taken, but the store only asked for a retry (HTTP 409), and clients report
  both alike. So the object is looked up: if there is none, the request is repeated.
* The key is taken by ourselves: an earlier try succeeded and its answer was lost. Each call has a random put
  id, which is stored in the object's metadata and compared.
* No answer, or one that asks for a pause: the request is repeated until the deadline, with growing and random
  pauses. The retries are ours and not those of the client library, which would hide a takeover for minutes.

When the deadline has passed, StoreUnavailable is raised: the object may exist or not, and may still appear.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from shared.runtime.retries import Pauses, Retries, repeat
from topicsd.store.object_store import ObjectExists, ObjectStore, StoreUnavailable

T = TypeVar("T")

PAUSES: Final = Pauses(0.1, 5.0)


def create_object(store: ObjectStore, key: str, parts: Sequence[bytes], retries: Retries) -> None:
    """Create an object, once. Raises ObjectExists, StoreUnavailable or StoreRefused."""
    put_id = secrets.token_hex(16)

    def attempt() -> None:
        try:
            store.create(key, parts, put_id)
        except ObjectExists:
            try:
                info = store.info(key)
            except FileNotFoundError:
                raise StoreUnavailable(f"{store.url}/{key}: the store asked to try again") from None
            if info.put_id != put_id:
                raise

    repeat_request(attempt, retries)


def repeat_request(attempt: Callable[[], T], retries: Retries) -> T:
    """Call `attempt` until it raises no StoreUnavailable, or the time of `retries` has passed."""
    return repeat(attempt, retries, StoreUnavailable, PAUSES)
