"""The configuration of a topic: patches from clients, the stored form, and their merge.

`TopicConfig` is the configuration that a topic has. The log stores every field of it, so a changed default in
a later release changes no existing topic. A payload from an older release lacks the fields added since; they
get their defaults. The default of a new field must therefore mean what topics did before the field existed.
Fields of a newer release are ignored. `durable` is not stored: it follows from the durability class.

`TopicConfigPatch` is the form that a client sends. The topic keeps its value of each field that the patch
lacks.

`merge_config` is pure. It clamps the numbers that the API clamps, and refuses other numbers outside their
bounds and changes that a topic can never make.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal, invalid
from shared.contract.json_bounds import DATA_DEPTH_MAX, is_too_deep
from shared.contract.names import refuse_topic_name
from shared.text.message import size_text
from shared.text.units import duration_ms, size_bytes

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
OrderBy = Literal["tag"]
FairBy = Literal["tag"]
SchemaMode = Literal["off", "warn", "reject"]
TopicPlacement = Literal["local", "shared"]
LatencyClass = Literal["normal", "low"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]
DURABILITIES: Final[tuple[Durability, ...]] = get_args(Durability)

# The maximum that every stored form can hold: msgpack and the frame have signed 64 bits.
NUMBER_MAX: Final = (1 << 63) - 1

SCHEMA_BYTES_MAX: Final = 64 << 10

# 0 means off or unlimited for each of these fields.
COUNTED_FIELDS: Final = ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries")

QUEUE_FIELDS: Final = (
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "dead_letter",
    "leases_durable",
    "order_by",
    "paused",
    "retry",
    "fair_by",
)

DURATION_FIELDS: Final = ("ttl_ms", "idempotency_window_ms", "lease_ms", "claim_jitter_ms")
SIZE_FIELDS: Final = ("cap_bytes",)

CLAMPED_FIELDS: Final[dict[str, tuple[int, int]]] = {
    "priority": (-1000, 1000),
    "lease_ms": (100, 86_400_000),
    "claim_jitter_ms": (0, 5000),
}


RETRY_MS_MAX: Final = 86_400_000
RETRY_FACTOR_MAX: Final = 1000.0
_RETRY_FACTOR: Final = 2.0
_RETRY_MS: Final = 3_600_000


class RetryPolicy(msgspec.Struct, frozen=True):
    """The back-off of a queue: how long a job that was not done waits for its next delivery."""

    base_ms: int
    factor: float
    max_ms: int

    def wait_ms(self, deliveries: int) -> int:
        """Return how long a job waits after so many deliveries: `base_ms * factor ** (deliveries - 1)`.

        >>> policy = RetryPolicy(1000, 2.0, 5000)
        >>> [policy.wait_ms(deliveries) for deliveries in (1, 2, 3, 4, 10_000)]
        [1000, 2000, 4000, 5000, 5000]
        """
        try:
            return int(min(self.base_ms * self.factor ** (deliveries - 1), self.max_ms))
        except OverflowError:
            return self.max_ms


class RetryPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A back-off as a client sends it. Durations may be texts with a unit."""

    base_ms: int | str
    factor: float = _RETRY_FACTOR
    max_ms: int | str | UnsetType = UNSET


def retry_policy(patch: RetryPatch) -> RetryPolicy | Refusal:
    """Return the back-off that a client wants, or a refusal that names the field and its bound."""
    base_ms = duration_ms("retry.base_ms", patch.base_ms)
    if isinstance(base_ms, Refusal):
        return base_ms
    if not 1 <= base_ms <= RETRY_MS_MAX:
        return invalid("retry.base_ms", f"must be from 1 to {RETRY_MS_MAX}, got {base_ms}", RETRY_MS_MAX)
    unchecked = max(base_ms, _RETRY_MS) if patch.max_ms is UNSET else patch.max_ms
    max_ms = duration_ms("retry.max_ms", unchecked)
    if isinstance(max_ms, Refusal):
        return max_ms
    if not base_ms <= max_ms <= RETRY_MS_MAX:
        rule = f"must be from retry.base_ms, which is {base_ms}, to {RETRY_MS_MAX}, got {max_ms}"
        return invalid("retry.max_ms", rule, RETRY_MS_MAX)
    if not 1 <= patch.factor <= RETRY_FACTOR_MAX:
        return invalid("retry.factor", f"must be from 1 to {RETRY_FACTOR_MAX:g}, got {patch.factor:g}")
    return RetryPolicy(base_ms, patch.factor, max_ms)


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration. Caps count live records; `cap_bytes` counts payload and framing."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    protect_cursors: bool = False
    order_by: OrderBy | None = None
    paused: bool = False
    retry: RetryPolicy | None = None
    fair_by: FairBy | None = None
    schema: str | None = None
    """A JSON Schema as text, so that configurations can be compared and shared."""
    schema_mode: SchemaMode = "reject"

    @property
    def durable(self) -> bool:
        """Return whether an acknowledgement means that the record is synced to the disk."""
        return self.durability == "fsync"

    def members(self) -> dict[str, Any]:
        """Return the fields as a client sees them."""
        fields = msgspec.structs.asdict(self)
        if self.schema is not None:
            fields["schema"] = msgspec.json.decode(self.schema)
        return fields


class TopicConfigPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's changes to a configuration. `durability` overrides `durable`, its shorthand.

    Durations and sizes may be texts with a unit. null means 0 in a field where 0 means off. `placement` and
    `latency` are of shared topics, whose configuration the brokers have. `force` is not stored: it allows a
    schema that rejects what the one before accepted.
    """

    placement: TopicPlacement | UnsetType = UNSET
    latency: LatencyClass | UnsetType = UNSET
    type: TopicType | UnsetType = UNSET
    ttl_ms: int | str | UnsetType | None = UNSET
    cap_records: int | UnsetType | None = UNSET
    cap_bytes: int | str | UnsetType | None = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | str | UnsetType | None = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | str | UnsetType = UNSET
    claim_jitter_ms: int | str | UnsetType | None = UNSET
    max_deliveries: int | UnsetType | None = UNSET
    dead_letter: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    protect_cursors: bool | UnsetType = UNSET
    order_by: OrderBy | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET
    retry: RetryPatch | UnsetType | None = UNSET
    fair_by: FairBy | UnsetType | None = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    schema_mode: SchemaMode | UnsetType = UNSET
    force: bool | UnsetType = UNSET


def merge_config(
    existing: TopicConfig | None,
    patch: TopicConfigPatch,
    topic_name: str,
    default_durability: Durability = "disk",
) -> TopicConfig | Refusal:
    """Return the configuration after `patch`, or a refusal; `existing` is None for a new topic."""
    without_sync = default_durability if existing is None and default_durability != "fsync" else "disk"
    changes = _changes(patch, without_sync)
    refusal = (
        _refuse_shared(changes, is_new=existing is None)
        or resolve_units(changes)
        or refuse_counts(changes)
        or _refuse_dead_letter(changes, topic_name)
        or _resolve_retry(changes)
        or _resolve_schema(changes)
    )
    if refusal is not None:
        return refusal
    for name, (low, high) in CLAMPED_FIELDS.items():
        if changes.get(name) is not None:
            changes[name] = min(max(changes[name], low), high)
    merged = msgspec.structs.replace(existing or TopicConfig(durability=default_durability), **changes)
    refusal = None if existing is None else _refuse_transition(existing, merged)
    return refusal or _refuse_queue_fields(changes, merged, existing, topic_name) or merged


def _changes(patch: TopicConfigPatch, without_sync: Durability) -> dict[str, Any]:
    """Return the fields of `TopicConfig` that the patch sets, with `durable` as its class."""
    given = {name: getattr(patch, name) for name in patch.__struct_fields__}
    changes = {name: value for name, value in given.items() if value is not UNSET}
    durable = changes.pop("durable", None)
    if durable is not None:
        changes.setdefault("durability", "fsync" if durable else without_sync)
    return changes


def refuse_durable(patch: TopicConfigPatch) -> Refusal | None:
    """Refuse every class but ephemeral, for a server without a disk."""
    field = "durability" if patch.durability not in (UNSET, "ephemeral") else "durable"
    if field == "durable" and patch.durable is not True:
        return None
    allowed = '"ephemeral"' if field == "durability" else "false"
    return invalid(field, f"must be {allowed}: this server keeps everything in memory (--memory)")


def _refuse_shared(changes: dict[str, Any], *, is_new: bool) -> Refusal | None:
    """Refuse to make a local topic a shared one; remove the fields that only shared topics have."""
    if changes.pop("placement", "local") == "shared":
        if not is_new:
            return _incompatible("placement", "local", "shared", "it cannot change")
        return invalid("placement", 'must be "local": this server has no brokers, which need an object store')
    if "latency" in changes:
        return invalid("latency", 'only shared topics have it; add "placement":"shared" to create one')
    return None


def resolve_units(changes: dict[str, Any]) -> Refusal | None:
    """Replace texts by the numbers that they mean, and null by 0 in fields where 0 means off."""
    for name in (*COUNTED_FIELDS, "claim_jitter_ms"):
        if name in changes and changes[name] is None:
            changes[name] = 0
    for names, parse in ((DURATION_FIELDS, duration_ms), (SIZE_FIELDS, size_bytes)):
        for name in names:
            if isinstance(changes.get(name), str):
                number = parse(name, changes[name])
                if isinstance(number, Refusal):
                    return number
                changes[name] = number
    return None


def refuse_counts(changes: dict[str, Any]) -> Refusal | None:
    for name in COUNTED_FIELDS:
        value = changes.get(name, 0)
        if not 0 <= value <= NUMBER_MAX:
            bound = f"at least 0, got {value}" if value < 0 else f"at most {NUMBER_MAX}"
            return invalid(name, f"must be {bound}")
    return None


def _refuse_dead_letter(changes: dict[str, Any], topic_name: str) -> Refusal | None:
    dead_letter = changes.get("dead_letter")
    if dead_letter is None:
        return None
    if dead_letter == topic_name:
        return invalid("dead_letter", "must be another topic than the queue itself")
    return refuse_topic_name(dead_letter, "dead_letter")


def _resolve_retry(changes: dict[str, Any]) -> Refusal | None:
    """Replace the back-off by the one that it means."""
    if changes.get("retry") is None:
        return None
    policy = retry_policy(changes["retry"])
    if isinstance(policy, Refusal):
        return policy
    changes["retry"] = policy
    return None


def _resolve_schema(changes: dict[str, Any]) -> Refusal | None:
    """Replace the schema by its text; remove `force`, which no configuration has."""
    if changes.pop("force", False) and "schema" not in changes:
        return invalid("force", "must be sent with schema, whose change it allows")
    if changes.get("schema") is None:
        return None
    text = msgspec.json.encode(changes["schema"])
    if len(text) > SCHEMA_BYTES_MAX:
        rule = f"must be at most {size_text(SCHEMA_BYTES_MAX)}, got {size_text(len(text))}"
        return invalid("schema", rule, SCHEMA_BYTES_MAX)
    if is_too_deep(text, DATA_DEPTH_MAX):
        return invalid("schema", f"must be nested at most {DATA_DEPTH_MAX} levels deep", DATA_DEPTH_MAX)
    changes["schema"] = text.decode()
    return None


def _refuse_queue_fields(
    changes: dict[str, Any], merged: TopicConfig, existing: TopicConfig | None, topic_name: str
) -> Refusal | None:
    """Refuse to set queue fields of a log; a log may repeat the values that it reports."""
    if merged.type == "queue":
        return None
    unset = TopicConfig()
    before = existing or unset
    for name in QUEUE_FIELDS:
        if name in changes and changes[name] not in (getattr(before, name), getattr(unset, name)):
            hint = '; to create a queue, add "type":"queue"' if existing is None else ""
            return invalid(name, f'only queues have it, and topic "{topic_name}" is a log{hint}')
    return None


def _refuse_transition(existing: TopicConfig, merged: TopicConfig) -> Refusal | None:
    if merged.type != existing.type:
        return _incompatible("type", existing.type, merged.type, "it cannot change")
    # Without an order, several jobs of one tag may be leased at the same time.
    if merged.type == "queue" and merged.order_by != existing.order_by:
        return _incompatible("order_by", existing.order_by, merged.order_by, "it cannot change")
    # Without it, the tags of waiting jobs are not kept.
    if merged.type == "queue" and merged.fair_by != existing.fair_by:
        return _incompatible("fair_by", existing.fair_by, merged.fair_by, "it cannot change")
    # An ephemeral topic has no records in the log, so recovery could not distinguish its past from a loss.
    if (merged.durability == "ephemeral") != (existing.durability == "ephemeral"):
        return _incompatible(
            "durability",
            existing.durability,
            merged.durability,
            "a topic cannot become ephemeral or stop being so",
        )
    return None


def _incompatible(field: str, old: str | None, new: str | None, reason: str) -> Refusal:
    old_text, new_text = ("null" if value is None else f'"{value}"' for value in (old, new))
    return Refusal(
        TOPIC_EXISTS_INCOMPATIBLE,
        f"{field}: must stay {old_text}, got {new_text}: {reason}",
        {"field": field},
    )
