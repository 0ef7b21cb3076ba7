"""Placement: the shard of a topic, by a rule for all topics and a table of exceptions.

The rule is rendezvous hashing over the topic id: every shard gets a score for the id, and the highest score
wins. Growing from N to N+1 shards moves 1/(N+1) of the topics, all of them to the new shard, because the
scores of the other shards do not change. The cost is N hashes of 8 bytes; a placement is computed once per
connection or request line, and N is the number of cores.

The score of shard s is `xxh3_64(id as 8 bytes little-endian, seed = s)`. The lowest shard wins among equal
scores. The vectors below are published: clients that compute the shard themselves must get the same values,
and a change of one of them strands the data of every existing directory.

>>> from shared.contract.names import topic_id
>>> for name in ("orders", "orders.eu", "jobs:mail", "a", "Z9", "metrics-2024", "x" * 255):
...     number = topic_id(name)
...     print(f"{name[:12]:12} {number:016x} {shard_of(number, 2)} {shard_of(number, 5)}")
orders       a88ccdc9fa4974fb 0 0
orders.eu    45199b9c79b0d24d 0 3
jobs:mail    5d5f1029cccde99b 0 3
a            e6c632b61e964e1f 1 1
Z9           2a7f6763e6831e9a 1 1
metrics-2024 0bd4ed2cdca9260f 1 1
xxxxxxxxxxxx 2be953982ac8bd9d 1 2

The exceptions are topics that were moved to another shard. They are in `PLACEMENT.json` in the data
directory, which has this content; without the file there are no exceptions::

    {"format": 1, "version": 3, "shards": 2, "exceptions": {"orders": 1}, "unmoved": {"a": 1},
     "former_shards": 5, "former_from": 9223372036854775808, "target_shards": 3, "epoch_floor": 17,
     "checksum": "xxh3_64 of the others"}

The fields after `exceptions` are of a reshard (`router/resharding/reshard.py`); `epoch_floor` stays after it.

T1  The file is replaced as a whole, and only its replacement changes the shard of a topic. So any number of
    topics moves at once, and the number of shards that the rule counts changes with them.
T2  `shards` is the count of the rule. It may be lower than the number of shards that the layout names: new
    shards own nothing until the topics of the rule have been moved.
T3  Each replacement has a higher version. An exception stays when its topic is deleted: another shard could
    give the next incarnation an epoch that the topic has had already. A reshard raises `epoch_floor` above
    all epochs given so far, new topics of all shards get higher ones, and so it may drop the exception.
T4  A topic has an entry before a second shard gets a copy of it, also when the rule says the same. So a shard
    that has a topic for which an entry names another shard has a leftover, and drops it.
T5  An unmoved topic is an exception that a reshard is to move to its shard by the rule. A reshard works in
    the order of topic ids: the former rule, with `former_shards`, holds for ids from `former_from` on. So the
    file is small whatever the number of topics, and it is the only journal of a reshard.
T6  `target_shards` is the number that was requested while the rule has another one. It places no topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec
import xxhash

from shared.contract.names import refuse_topic_name, topic_id

PLACEMENT_NAME: Final = "PLACEMENT.json"
PLACEMENT_FORMAT: Final = 1

ID_END: Final = 1 << 64
NO_SHARD: Final = -1
"""The shard of every topic on a node without shards."""


class PlacementError(Exception):
    """A placement file that cannot be used; the text names the file."""


class PlacementDamaged(PlacementError):
    """A placement file that can be written again from the topics of the shards."""


class FormerRule(NamedTuple):
    """The rule before a reshard: so many shards, for topic ids from `first_id` on."""

    shard_count: int = 1
    first_id: int = ID_END


class OwnerLookup(Protocol):
    def owner_of(self, name: str) -> int: ...


class Placement:
    """The shard of every topic: `shard_count` shards of the rule, and exceptions by topic name.

    `unmoved` names the exceptions that a reshard is to remove, and `former` is the rule before it. `target`
    is the number of shards that it is to reach when the rule has another one, else 0.
    """

    __slots__ = (
        "_by_id",
        "epoch_floor",
        "exceptions",
        "former",
        "shard_count",
        "target",
        "unmoved",
        "version",
    )

    def __init__(
        self,
        shard_count: int,
        exceptions: Mapping[str, int] | None = None,
        version: int = 0,
        unmoved: Collection[str] = (),
        epoch_floor: int = 0,
        former: FormerRule = FormerRule(),  # noqa: B008  # a tuple
        target: int = 0,
    ) -> None:
        assert shard_count >= 0
        self.shard_count = shard_count
        self.exceptions = dict(exceptions or {})
        self.version = version
        self.unmoved = frozenset(unmoved)
        assert self.unmoved <= self.exceptions.keys()
        self.epoch_floor = epoch_floor
        self.former = former
        self.target = 0 if target == shard_count else target
        self._by_id = {topic_id(name): shard for name, shard in self.exceptions.items()}

    def shard_of(self, topic_id: int) -> int:
        """Return the shard, from 0, that owns the topic with this id, or `NO_SHARD`."""
        if self._by_id:
            shard = self._by_id.get(topic_id)
            if shard is not None:
                return shard
        return self.rule_shard_of(topic_id)

    def rule_shard_of(self, topic_id: int) -> int:
        """Return the shard at which the rule places the topic with this id, whatever the exceptions say."""
        former = self.former
        if not self.shard_count:
            return NO_SHARD
        return shard_of(topic_id, self.shard_count if topic_id < former.first_id else former.shard_count)

    def _next(self, exceptions: Mapping[str, int], unmoved: Collection[str], step: int = 1) -> Placement:
        version = self.version + step
        epoch_floor, former, target = self.epoch_floor, self.former, self.target
        return Placement(self.shard_count, exceptions, version, unmoved, epoch_floor, former, target)

    def with_target(self, shard_count: int) -> Placement:
        """Return the next version, with this number of shards as the target of a reshard.

        >>> requested = Placement(2).with_target(5)
        >>> requested.target, requested.shard_count, requested.resharded(5, ID_END, {}, {}, (), 0).target
        (5, 2, 0)
        """
        placement = self._next(self.exceptions, self.unmoved)
        placement.target = 0 if shard_count == self.shard_count else shard_count
        return placement

    def owner_of(self, name: str) -> int:
        """Return the shard that owns the topic."""
        return self.shard_of(topic_id(name))

    def changed(self, shards: Mapping[str, int]) -> Placement:
        """Return the next version, in which these topics have entries with these shards.

        >>> moved = Placement(2).changed({"orders": 1})
        >>> moved.changed({"orders": 0}).exceptions, moved.changed({"a": 1}).version
        ({'orders': 0}, 2)
        """
        exceptions = dict(sorted({**self.exceptions, **shards}.items()))
        moved = {name for name, shard in shards.items() if self.exceptions.get(name) != shard}
        return self._next(exceptions, self.unmoved - moved)

    def without_entries(self, names: Collection[str]) -> Placement:
        """Return this version without the entries of these topics that say the same as the rule.

        Only when no shard has a copy of such a topic of another one (T4).

        >>> Placement(2).changed({"orders": 0, "a": 0}).without_entries(["orders", "a"]).exceptions
        {'a': 0}
        """
        same = {name for name in names if self.exceptions.get(name) == self.rule_shard_of(topic_id(name))}
        exceptions = {name: shard for name, shard in self.exceptions.items() if name not in same}
        return self._next(exceptions, self.unmoved - same, step=0)

    def has_entry_of_rule(self) -> bool:
        """Return whether an exception says the same as the rule."""
        return any(self.rule_shard_of(topic_id(name)) == shard for name, shard in self.exceptions.items())

    def is_of_rule(self, shard: int) -> bool:
        """Return whether the rule places topics at the shard; false for one that is being retired."""
        return shard < self.shard_count

    def settled(self, shard_count: int) -> Placement:
        """Return the next version, under the rule for so many shards, without entries that say the same.

        Only when no shard has a copy of a topic of another one (T4).

        >>> Placement(2).changed({"orders": 0, "a": 0}).settled(2).exceptions
        {'a': 0}
        """
        exceptions = {
            name: shard
            for name, shard in self.exceptions.items()
            if shard_of(topic_id(name), shard_count) != shard
        }
        return Placement(shard_count, exceptions, self.version + 1, epoch_floor=self.epoch_floor)

    def resharded(
        self,
        shard_count: int,
        first_id: int,
        locations: Mapping[str, int],
        departed: Mapping[str, int],
        hidden: Collection[str],
        epoch_floor: int,
    ) -> Placement:
        """Return the next version, under the rule for so many shards, in which no topic has moved.

        The present rule stays for topic ids from `first_id` on, or its former one. `locations` are the shards
        of all topics that are not where the new rule places them, and `departed` the shards that know topics
        to be on another node. `hidden` are topics of which a second copy exists, so their entries stay (T4).
        Topics that were moved on purpose stay exceptions, unless their shard is not one of the rule.

        >>> grown = Placement(2).resharded(5, ID_END, {"orders.eu": 0}, {}, (), 17)
        >>> grown.shard_count, grown.owner_of("orders.eu"), sorted(grown.unmoved), grown.epoch_floor
        (5, 0, ['orders.eu'], 17)
        >>> grown.changed({"orders.eu": 3}).resharded(5, ID_END, {}, {}, (), 17).exceptions
        {}
        """
        is_same = shard_count == self.shard_count
        assert is_same or self.former.first_id == ID_END, "another reshard has to end first"
        former_count = self.former.shard_count if is_same else self.shard_count
        former = FormerRule(former_count, first_id) if first_id < ID_END else FormerRule()
        ruled = Placement(shard_count, former=former)
        exceptions, unmoved = {}, set()
        for name in sorted({*self.exceptions, *locations, *departed, *hidden}):
            rule_shard = ruled.rule_shard_of(topic_id(name))
            known = departed.get(name, self.exceptions.get(name, rule_shard))
            shard = locations.get(name, known)
            is_moved = known == shard and name in self.exceptions and name not in self.unmoved
            # An entry of the present rule is left by a relocation: it was not chosen.
            is_moved = is_moved and shard != self.rule_shard_of(topic_id(name))
            is_chosen = is_moved or (name in departed and name not in locations)
            if is_chosen and shard < shard_count and shard != rule_shard:
                exceptions[name] = shard
            elif name in locations or name in departed:
                exceptions[name] = shard
                unmoved.add(name)
            elif name in hidden:
                exceptions[name] = rule_shard
        epoch_floor = max(epoch_floor, self.epoch_floor)
        version, target = self.version + 1, self.target or self.shard_count
        return Placement(shard_count, exceptions, version, unmoved, epoch_floor, former, target)


class _PlacementContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: int
    version: int
    shards: int
    exceptions: dict[str, int]
    """Without the unmoved topics."""
    unmoved: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    former_shards: int | msgspec.UnsetType = msgspec.UNSET
    former_from: int | msgspec.UnsetType = msgspec.UNSET
    target_shards: int | msgspec.UnsetType = msgspec.UNSET
    epoch_floor: int | msgspec.UnsetType = msgspec.UNSET
    checksum: str = ""


class _PlacementFormat(msgspec.Struct):
    format: int


def shard_of(topic_id: int, shard_count: int) -> int:
    """Return the shard, from 0, at which the rule places the topic with this id."""
    assert 0 <= topic_id < ID_END
    assert shard_count >= 1
    id_bytes = topic_id.to_bytes(8, "little")
    owner = 0
    owner_score = -1
    for shard in range(shard_count):
        score = xxhash.xxh3_64_intdigest(id_bytes, shard)
        if score > owner_score:
            owner = shard
            owner_score = score
    return owner


def encode_placement(placement: Placement) -> bytes:
    assert placement.version >= 1
    is_resharding = placement.former.first_id < ID_END
    file = _PlacementContent(
        format=PLACEMENT_FORMAT,
        version=placement.version,
        shards=placement.shard_count,
        exceptions={
            name: shard for name, shard in placement.exceptions.items() if name not in placement.unmoved
        },
        unmoved={name: placement.exceptions[name] for name in sorted(placement.unmoved)} or msgspec.UNSET,
        former_shards=placement.former.shard_count if is_resharding else msgspec.UNSET,
        former_from=placement.former.first_id if is_resharding else msgspec.UNSET,
        target_shards=placement.target or msgspec.UNSET,
        epoch_floor=placement.epoch_floor or msgspec.UNSET,
    )
    return msgspec.json.format(msgspec.json.encode(_with_checksum(file))) + b"\n"


def decode_placement(text: bytes, path: str, shard_count: int) -> Placement:
    """Return the placement in a file, for a directory of `shard_count` shards; raise PlacementError."""
    try:
        number = msgspec.json.decode(text, type=_PlacementFormat).format
        if number != PLACEMENT_FORMAT:
            raise PlacementError(
                f"{path}: unknown format {number}; this program reads format {PLACEMENT_FORMAT}"
            )
        file = msgspec.json.decode(text, type=_PlacementContent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlacementDamaged(f"{path}: damaged: {error}") from None
    if file != _with_checksum(file):
        raise PlacementDamaged(f"{path}: damaged: its checksum does not match")
    problem = _problem(file, shard_count)
    if problem:
        raise PlacementDamaged(f"{path}: {problem}")
    unmoved = file.unmoved or {}
    former = FormerRule()
    if file.former_shards is not msgspec.UNSET and file.former_from is not msgspec.UNSET:
        former = FormerRule(file.former_shards, file.former_from)
    exceptions = {**file.exceptions, **unmoved}
    epoch_floor, target = file.epoch_floor or 0, file.target_shards or 0
    return Placement(file.shards, exceptions, file.version, unmoved, epoch_floor, former, target)


def _problem(file: _PlacementContent, shard_count: int) -> str:
    """Return what is wrong with a file whose checksum matches, or an empty string."""
    if file.version < 1:
        return f"version: must be at least 1, got {file.version}"
    if not 1 <= file.shards <= shard_count:
        return f"shards: must be 1 to {shard_count}, as many as the layout names, got {file.shards}"
    if not 1 <= (file.former_shards or 1) <= shard_count:
        return f"former_shards: must be 1 to {shard_count}, got {file.former_shards}"
    if not 0 <= (file.former_from or 0) < ID_END:
        return f"former_from: must be a topic id, got {file.former_from}"
    if (file.target_shards or 1) < 1:
        return f"target_shards: must be at least 1, got {file.target_shards}"
    for field, entries in (("exceptions", file.exceptions), ("unmoved", file.unmoved or {})):
        for name, shard in entries.items():
            if refuse_topic_name(name) is not None:
                return f"{field}: {name!r} is not the name of a topic"
            if not 0 <= shard < shard_count:
                return f'{field}["{name}"]: must be a shard from 0 to {shard_count - 1}, got {shard}'
    return ""


def _with_checksum(file: _PlacementContent) -> _PlacementContent:
    without_checksum = msgspec.json.encode(msgspec.structs.replace(file, checksum=""))
    return msgspec.structs.replace(file, checksum=xxhash.xxh3_64_hexdigest(without_checksum))
