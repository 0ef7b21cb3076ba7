"""The shared topic that is one partition of a topic, as `/produce` and `/consume` name them.

Partition 0 of `orders` is the shared topic `orders`, and partition 3 is `orders:3`. The way back is
`partition_of`, so a topic that is itself named like a partition has no partition 0:

    >>> name_of_partition("orders", 0), name_of_partition("orders", 3), name_of_partition("a:1", 12)
    ('orders', 'orders:3', 'a:1:12')
    >>> partition_of("a:1:12")
    ('a:1', 12)
    >>> name_of_partition("orders:3", 0).message
    'topic: "orders:3" is partition 3 of topic "orders"; send that topic and partition'
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from shared.contract.errors import Refusal, invalid
from shared.contract.names import refuse_topic_name
from topicsd.catalog.shared.seed_documents import TopicKeys, partition_of

PARTITION_MAX: Final = (1 << 31) - 1

_keys_of: Final = lru_cache(4096)(TopicKeys)

__all__ = ["PARTITION_MAX", "index_key", "name_of_partition", "partition_of"]


def name_of_partition(topic: str, partition: int) -> str | Refusal:
    """Return the name of the shared topic, or a refusal that names `topic` or `partition`."""
    if not 0 <= partition <= PARTITION_MAX:
        return invalid("partition", f"must be from 0 to {PARTITION_MAX}, got {partition}", PARTITION_MAX)
    if partition:
        name = f"{topic}:{partition}"
        return refuse_topic_name(topic) or refuse_topic_name(name, "partition") or name
    whole, number = partition_of(topic)
    if number:
        rule = f'"{topic}" is partition {number} of topic "{whole}"; send that topic and partition'
        return invalid("topic", rule)
    return refuse_topic_name(topic) or topic


def index_key(name: str, last_seq: int) -> str:
    """Return the key of an extent in the layout of the leaderless log.

    >>> index_key("orders:3", 42)
    'llog/orders/partitions/3/index/00000000000000000042'
    """
    return _keys_of(name).index(last_seq)
