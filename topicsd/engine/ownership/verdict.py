"""The decision about a topic at a start: whether this node may serve it, from its row in the catalog.

    rule       row                                            the topic
    sealed     sealed                                         has departed: sealed
    local log  names this ownership, and has no later seqs    is served
    local log  names this ownership, exported past the head   has departed: outdated
    catalog    names another owner, owner epoch or topic      has departed: moved
    empty      none, and never asked for                      is new: its row is created
    empty      none, although there was one                   has departed: forgotten

The local log is enough to decide while the catalog does not answer: the node gives out no seq above a ceiling
that the catalog has, so another owner has none of its seqs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from topicsd.catalog.catalog import TopicRow
from topicsd.engine.ownership.departed import FORGOTTEN, MOVED, OUTDATED, SEALED
from topicsd.engine.topic import Topic

Rule = Literal["sealed", "local log", "catalog", "empty"]


class Verdict(NamedTuple):
    """The rule that applied, and the state of a departed topic; None for one that is served."""

    rule: Rule
    state: str | None = None


def verdict(topic: Topic, row: TopicRow | None, node_id: str) -> Verdict:
    """Decide about a topic from its row.

    A row of an earlier topic of the same name that was deleted here must have been excluded before.
    """
    owned = topic.ownership
    epoch = 0 if owned is None else owned.owner_epoch
    if row is None:
        return Verdict("empty", FORGOTTEN if epoch else None)
    # With epoch 0 the answer to `create` was lost: the row has the first epoch.
    is_ours = (row.owner, row.incarnation) == (node_id, topic.epoch) and row.owner_epoch == (epoch or 1)
    if row.state == "sealed":
        return Verdict("sealed", SEALED)
    if not is_ours:
        return Verdict("catalog", MOVED)
    if topic.head < row.exported_to:
        return Verdict("local log", OUTDATED)
    return Verdict("local log")
