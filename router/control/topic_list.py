"""The list of all topics, or of all routes, merged from the shards in name order.

Each shard is asked for one entry more than the page holds, after the last name of the previous page. That is
enough to find the smallest names of all shards, so the cost of a page does not grow with the number of
topics. A shard that does not answer is named in the response, never omitted silently.

A key may be limited to certain name prefixes. In name order the names of a prefix are consecutive, so the
list for such a key is the lists of its prefixes one after the other.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from shared.contract.errors import Refusal, invalid, not_ready
from shared.contract.names import is_topic_name

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 1000

TOPIC: Final = "topic"
"""The field of the name in an entry of the list of topics."""

TopicList = list[dict[str, Any]] | None
"""None when the shard does not answer."""
ListShard = Callable[[int, str, str, int], Awaitable[TopicList]]
"""Called with the shard, the prefix, the name to begin after, and the number of entries."""


class ListQuery(NamedTuple):
    prefix: str
    after: str
    page_size: int
    is_partial: bool


class ListPage(NamedTuple):
    entries: list[dict[str, Any]]
    next_cursor: str | None
    missing_shards: list[int]
    is_shared_missing: bool = False
    """Whether the shared topics are missing, since no broker answers."""


async def list_page(
    list_shard: ListShard,
    shard_count: int,
    query: ListQuery,
    prefixes: Sequence[str] = (),
    name_field: str = TOPIC,
    has_refused_to_start: Callable[[int], bool] = lambda shard: False,
    broker: int | None = None,
) -> ListPage | Refusal:
    """Return one page of the list over all shards, and of a broker with this owner number.

    `prefixes` are those of the key of the request; an empty sequence allows all names.
    `has_refused_to_start` is called for missing shards: the refusal suggests no retry when waiting cannot
    help.
    """
    entries: list[dict[str, Any]] = []
    missing: set[int] = set()
    owners = [*range(shard_count), *([] if broker is None else [broker])]
    for prefix in covering_prefixes(query.prefix, prefixes):
        limit = query.page_size + 1 - len(entries)
        if limit <= 0:
            break
        shards = [owner for owner in owners if owner not in missing]
        lists = await asyncio.gather(*(list_shard(shard, prefix, query.after, limit) for shard in shards))
        merged: list[dict[str, Any]] = []
        for shard, one in zip(shards, lists, strict=True):
            if one is None:
                missing.add(shard)
            else:
                merged += one
        merged.sort(key=lambda entry: str(entry[name_field]))
        entries += merged[:limit]
    is_retry_useful = not any(map(has_refused_to_start, missing))
    is_shared_missing = broker in missing
    missing.discard(-1 if broker is None else broker)
    if (missing or is_shared_missing) and not query.is_partial:
        return _missing(sorted(missing), is_shared_missing, is_retry_useful)
    is_last = len(entries) <= query.page_size
    entries = entries[: query.page_size]
    cursor = None if is_last else cursor_after(str(entries[-1][name_field]))
    return ListPage(entries, cursor, sorted(missing), is_shared_missing)


def covering_prefixes(prefix: str, allowed: Sequence[str]) -> list[str]:
    """Return the prefixes that cover the requested and allowed names, in name order.

    No prefix is within another.

    >>> covering_prefixes("", ["b", "a.", "a.x", "c"])
    ['a.', 'b', 'c']
    >>> covering_prefixes("a.x", ["a"]), covering_prefixes("a", ["b"]), covering_prefixes("a", [])
    (['a.x'], [], ['a'])
    """
    if not allowed:
        return [prefix]
    both = {prefix if prefix.startswith(one) else one for one in allowed if _overlap(prefix, one)}
    return [one for one in sorted(both) if not any(one != other and one.startswith(other) for other in both)]


def cursor_after(name: str) -> str:
    """Return the cursor of the page after a name.

    >>> cursor_after("orders"), name_of_cursor("b3JkZXJz"), name_of_cursor("b3JkZXJzIQ")
    ('b3JkZXJz', 'orders', None)
    """
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def name_of_cursor(cursor: str, is_name: Callable[[str], bool] = is_topic_name) -> str | None:
    """Return the name in a cursor; None for a text that `cursor_after` cannot return."""
    try:
        name = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return name if is_name(name) and cursor_after(name) == cursor else None


def bad_cursor() -> Refusal:
    return invalid("cursor", "must be the next_cursor of an earlier page")


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _missing(shards: list[int], is_shared_missing: bool, is_retry_useful: bool) -> Refusal:
    names = ", ".join(map(str, shards))
    which = [f"shard {names}" if len(shards) == 1 else f"shards {names}"] if shards else []
    which += ["the shared topics"] if is_shared_missing else []
    verb = "is" if len(shards) == 1 and not is_shared_missing else "are"
    message = f"{' and '.join(which)} {verb} unavailable; add ?partial=true for an incomplete list"
    detail: dict[str, object] = {"missing_shards": shards}
    if is_shared_missing:
        detail["missing_shared"] = True
    return not_ready(message, detail, is_retry_useful=is_retry_useful)
