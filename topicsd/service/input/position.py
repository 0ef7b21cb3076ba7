"""The position in a request: `after_seq`, its alias `from_seq`, or one that is looked up."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, UnsetType

from shared.contract.errors import Refusal, excluded, invalid
from shared.contract.query import query_number, query_text
from shared.contract.seek import Seek, seek_of
from shared.contract.topic_config import NUMBER_MAX
from shared.runtime.clock import Clock
from shared.text.units import instant_ms, number_in

Seq: TypeAlias = int | UnsetType | None


def one_position(prefix: str, from_seq: Seq, after_seq: Seq) -> int | Refusal | None:
    """Return the seq after which a request begins, or None without one.

    >>> [one_position("", *given) for given in ((5, None), (None, 5), (5, 5), (None, None))]
    [5, 5, 5, None]
    >>> one_position("topics.a.", 4, 5).message
    'topics.a.after_seq: must equal from_seq, which is its other name, got 5 and 4; send one of them'
    """
    is_new_name = after_seq is not UNSET and after_seq is not None
    name, seq = ("after_seq", after_seq) if is_new_name else ("from_seq", from_seq)
    if seq is UNSET or seq is None:
        return None
    field = prefix + name
    if not 0 <= seq <= NUMBER_MAX:
        bound = f"at least 0, got {seq}" if seq < 0 else f"at most {NUMBER_MAX}"
        return invalid(field, f"must be {bound}")
    if from_seq is not UNSET and from_seq is not None and from_seq != seq:
        got = f"got {seq} and {from_seq}"
        return invalid(field, f"must equal from_seq, which is its other name, {got}; send one of them")
    return seq


def query_seek(query: str, clock: Clock) -> Seek | Refusal | None:
    """Return the position by time or from the end in a query, or None without one."""
    text, last = query_text(query, "from_ts"), query_number(query, "last")
    from_ts = None if text is None else instant_ms("from_ts", number_in(text), clock.now_ms())
    if isinstance(from_ts, Refusal):
        return from_ts
    if from_ts is not None and not 0 <= from_ts <= NUMBER_MAX:
        return invalid("from_ts", "must be 1970 or later")
    if isinstance(last, Refusal):
        return last
    if from_ts is not None and last is not None:
        return excluded("last", "from_ts")
    return seek_of(from_ts, last)
