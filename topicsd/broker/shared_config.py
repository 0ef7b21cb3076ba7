"""The configuration of a shared topic, which the catalog keeps as JSON.

Times, sizes and counts mean what they mean for local topics (`shared/contract/topic_config.py`): 0 is off or
unlimited. Fields of a newer release are ignored, and its classes of latency are normal ones.

    >>> config = merge_shared_config(None, TopicConfigPatch(ttl_ms="1h", latency="low"))
    >>> config.ttl_ms, config.latency, decode_shared_config(encode_shared_config(config)) == config
    (3600000, 'low', True)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal, invalid, not_supported
from shared.contract.topic_config import TopicConfigPatch, refuse_counts, resolve_units
from topicsd.catalog.shared.shared_catalog import REPEATED_MS

IDEMPOTENCY_WINDOW_MS_MAX: Final = REPEATED_MS // 3
"""The catalog recognises a repetition longer, but a commit itself may take another third (W2)."""


class SharedTopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    placement: Literal["shared"] = "shared"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    latency: str = "normal"
    """"low", or else what is normal: a newer release may have more classes."""
    idempotency_window_ms: int = 120_000
    """At least so long is a key remembered; with 0, keys are ignored."""


encode_shared_config: Final = msgspec.json.Encoder().encode
decode_shared_config: Final = msgspec.json.Decoder(SharedTopicConfig).decode

config_of: Final = lru_cache(4096)(decode_shared_config)
"""Return the configuration of some JSON; most topics have the same few."""

# What a shared topic does anyway may be said.
_FIXED: Final = {"type": "log", "discard": "old", "durable": True, "durability": "fsync"}


def merge_shared_config(
    existing: SharedTopicConfig | None, patch: TopicConfigPatch
) -> SharedTopicConfig | Refusal:
    """Return the configuration after `patch`, or a refusal; `existing` is None for a new topic."""
    given = {name: getattr(patch, name) for name in patch.__struct_fields__}
    changes = {name: value for name, value in given.items() if value is not UNSET}
    for name, value in changes.items():
        if name not in SharedTopicConfig.__struct_fields__ and value != _FIXED.get(name):
            return not_supported(value if name == "type" else name, name)
    if changes.pop("placement", "shared") != "shared":
        message = 'placement: must stay "shared", got "local": it cannot change'
        return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"field": "placement"})
    refusal = resolve_units(changes) or refuse_counts(changes)
    if refusal is not None:
        return refusal
    if changes.get("idempotency_window_ms", 0) > IDEMPOTENCY_WINDOW_MS_MAX:
        rule = f"must be at most {IDEMPOTENCY_WINDOW_MS_MAX} in a shared topic"
        return invalid("idempotency_window_ms", rule, IDEMPOTENCY_WINDOW_MS_MAX)
    kept = {name: changes[name] for name in SharedTopicConfig.__struct_fields__ if name in changes}
    return msgspec.structs.replace(existing or SharedTopicConfig(), **kept)
