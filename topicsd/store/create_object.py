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

import random
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topicsd.store.object_store import ObjectExists, ObjectStore, StoreUnavailable

FIRST_PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0


class Retries(NamedTuple):
    """How long a request is repeated; `wait` may raise to end the retries early."""

    monotonic: Callable[[], float]
    wait: Callable[[float], object]
    seconds: float
    """The time after which no further try is made."""
    random: Callable[[], float] = random.random


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

    repeat(attempt, retries)


def repeat(attempt: Callable[[], object], retries: Retries) -> None:
    """Call `attempt` until it raises no StoreUnavailable, or the time of `retries` has passed."""
    until = retries.monotonic() + retries.seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            attempt()
        except StoreUnavailable:
            # Any part of the pause: writers that failed together must not return together.
            seconds = pause * retries.random()
            if retries.monotonic() + seconds >= until:
                raise
            retries.wait(seconds)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        else:
            return
