"""The decisions of all verbs: pure functions from the row as it is to the row as it has to be.

Every catalog reads the row, calls one of these functions, and writes its result in the same transaction. A
result that equals the row is the sign of a repeated call: nothing is written.

The fence is checked before anything else, so a node that lost a topic learns that, and not that its change
has a wrong range.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ChangeRefused,
    Extent,
    Fenced,
    Lookup,
    Ownership,
    TopicRow,
)


class ExtentChange(NamedTuple):
    """What `publish_extents` writes; both lists are empty when the change was made before."""

    row: TopicRow
    add: Sequence[Extent]
    remove: Sequence[Extent]


def looked_up(row: TopicRow | None, ownership: Ownership) -> Lookup:
    return Lookup(row, row is not None and row.ownership == ownership and row.state == "owned")


def created(
    row: TopicRow | None,
    name: str,
    topic_id: int,
    incarnation: int,
    node: str,
    ceiling: int,
    is_forgotten: bool = False,
) -> TopicRow:
    """Return the row of a new topic, or the row as it is when this call was made before.

    The repeated call may have a higher ceiling: its node has given out seqs since. `is_forgotten` says that
    this incarnation was adopted and then forgotten (K6).
    """
    if row is None and is_forgotten:
        raise Fenced(name, None)
    if row is None:
        return TopicRow(name, topic_id, incarnation, node, 1, ceiling, 1, 0, "owned", None)
    return raised(row, name, Ownership(node, incarnation, 1), ceiling)


def raised(row: TopicRow | None, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
    row = check_fence(row, name, ownership)
    return replace(row, ceiling=ceiling) if ceiling > row.ceiling else row


def published(
    row: TopicRow | None,
    name: str,
    ownership: Ownership,
    present: Sequence[Extent],
    add: Sequence[Extent],
    remove: Sequence[Extent],
) -> ExtentChange:
    """Decide a change of extents; `present` are the extents of the catalog that overlap those given.

    add    remove  present          result
    A      any     equals A         done before
    -      R       none, R trimmed  done before
    A      -       none             append, when A begins after exported_to
    A      R       equals R         replace, when A and R have the same range
    A      R       equals R         replace and append, when R are the last ones, and A ends after them
    -      R       equals R         trim, when R begins at exported_from
    else                            ChangeRefused
    """
    row = check_fence(row, name, ownership)
    add, remove, present = list(add), list(remove), list(present)
    if add and present == add:
        return ExtentChange(row, (), ())
    if not add and not present and remove[-1].last_seq < row.exported_from:
        return ExtentChange(row, (), ())
    if present != remove:
        raise ChangeRefused(f"topic {name}: the extents to remove are not those of the catalog")
    if add and add[-1].last_seq > row.ceiling:
        raise ChangeRefused(f"topic {name}: the extent ends above the ceiling {row.ceiling}")
    if not remove:
        return ExtentChange(_appended(row, add), add, ())
    if not add:
        if remove[0].first_seq != row.exported_from:
            raise ChangeRefused(f"topic {name}: only the first extents can be removed without others")
        return ExtentChange(replace(row, exported_from=remove[-1].last_seq + 1), (), remove)
    first, last = remove[0].first_seq, remove[-1].last_seq
    ends_later = last == row.exported_to < add[-1].last_seq
    if add[0].first_seq != first or not (add[-1].last_seq == last or ends_later):
        raise ChangeRefused(f"topic {name}: the extents to add have another range than those to remove")
    return ExtentChange(replace(row, exported_to=max(row.exported_to, add[-1].last_seq)), add, remove)


def _appended(row: TopicRow, add: Sequence[Extent]) -> TopicRow:
    first, last = add[0].first_seq, add[-1].last_seq
    if row.has_extents and first != row.exported_to + 1:
        raise ChangeRefused(f"topic {row.name}: an extent begins at {first}, not at {row.exported_to + 1}")
    # Without extents a topic may begin anywhere: its first records may be evicted before it is exported.
    if first <= row.exported_to:
        raise ChangeRefused(f"topic {row.name}: an extent begins at {first}, exported before")
    return replace(row, exported_from=row.exported_from if row.has_extents else first, exported_to=last)


def changed_range(add: Sequence[Extent], remove: Sequence[Extent]) -> tuple[int, int]:
    """Check the form of a change, and return the first and the last seq of both lists."""
    if not add and not remove:
        raise ChangeRefused("no extent to add or to remove")
    for extents in (add, remove):
        if len(extents) > EXTENTS_AT_ONCE:
            raise ChangeRefused(f"{len(extents)} extents in one change, at most {EXTENTS_AT_ONCE}")
        if any(not 1 <= extent.first_seq <= extent.last_seq for extent in extents):
            raise ChangeRefused("an extent must have a first seq of at least 1, and a last seq not below it")
        if any(one.last_seq + 1 != other.first_seq for one, other in pairwise(extents)):
            raise ChangeRefused("extents must be contiguous and in order")
    both = [*add, *remove]
    return min(one.first_seq for one in both), max(one.last_seq for one in both)


def sealed(row: TopicRow | None, name: str, ownership: Ownership, last_seq: int, key: str) -> TopicRow:
    # A key is used for one seal, so a row with ours says that it was made, also when the topic has been
    # adopted by now.
    if row is not None and row.incarnation == ownership.incarnation and row.sealed_key == key:
        return row
    row = check_fence(row, name, ownership)
    if last_seq != row.exported_to:
        raise ChangeRefused(f"topic {name}: exported to {row.exported_to}, and not to its end {last_seq}")
    return replace(row, ceiling=last_seq, state="sealed", sealed_key=key)


def adopted(
    row: TopicRow | None, name: str, node: str, incarnation: int, owner_epoch: int, accept_loss: bool
) -> TopicRow:
    target = Ownership(node, incarnation, owner_epoch + 1)
    if row is not None and row.ownership == target and row.state == "owned":
        return row
    if row is None or (row.incarnation, row.owner_epoch) != (incarnation, owner_epoch):
        raise Fenced(name, row)
    if row.state == "owned" and not accept_loss:
        raise Fenced(name, row)
    return replace(row, owner=node, owner_epoch=owner_epoch + 1, state="owned")


def check_forget(row: TopicRow | None, name: str, ownership: Ownership) -> None:
    """Raise Fenced unless the row may be removed, or is not there. A sealed topic may be removed too."""
    if row is not None and row.ownership != ownership:
        raise Fenced(name, row)


def leaves_mark(row: TopicRow | None) -> bool:
    """Return whether a row that is removed must not be created again (K6)."""
    return row is not None and row.owner_epoch > 1


def check_fence(row: TopicRow | None, name: str, ownership: Ownership) -> TopicRow:
    """Return the row if it is owned by exactly this ownership; raise Fenced otherwise."""
    if row is None or row.ownership != ownership or row.state != "owned":
        raise Fenced(name, row)
    return row
