"""Rules between two settings, and the problems of settings that break them.

The bounds of each single value are checked before (`shared/settings/setting.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from shared.settings.brokers import chosen_brokers
from shared.settings.setting import render_value, show_value
from shared.settings.settings import DECLARED, Settings

EPHEMERAL: Final = "ephemeral"

_BY_NAME: Final = {field.name: field for field in DECLARED}


class Relation(msgspec.Struct, frozen=True):
    """Two settings of which the first must not exceed the second."""

    smaller: str
    larger: str
    reason: str


RELATIONS: Final = (
    Relation("max_meta_bytes", "max_record_bytes", "meta is part of the record"),
    Relation("max_record_bytes", "max_waiting_bytes", "an idle shard must accept the largest record"),
)


class SettingProblem(msgspec.Struct, frozen=True):
    """A problem with one given setting."""

    source: str
    """Source as a user looks for it: a variable, a flag, or a file and the key in it."""
    value: str | None
    sentence: str
    is_quoted: bool = True
    """False for the value of a configuration file that is not a text."""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.source}: {self.sentence}"
        shown = repr(self.value) if self.is_quoted else self.value
        return f"{self.source}={shown}: {self.sentence}"


def broken_relations(settings: Settings, sources: Mapping[str, str]) -> list[SettingProblem]:
    """Return the problems between settings that are each within their own bounds.

    `sources` names the sources of settings that were set; messages name the others by their variables.
    """
    problems = []
    for relation in RELATIONS:
        smaller, larger = _BY_NAME[relation.smaller], _BY_NAME[relation.larger]
        value, bound = getattr(settings, smaller.name), getattr(settings, larger.name)
        if value > bound:
            limit = f"{sources.get(larger.name, larger.variable)}={render_value(larger, bound)}"
            sentence = f"must be at most {limit}: {relation.reason}"
            source = sources.get(smaller.name, smaller.variable)
            problems.append(SettingProblem(source, render_value(smaller, value), sentence))
    if settings.cold_dir and settings.store_url:
        store = sources.get("store_url", "store_url")
        sentence = f"must be empty: {store} is set, and both name the store of old segments"
        problems.append(SettingProblem(sources.get("cold_dir", "cold_dir"), settings.cold_dir, sentence))
    return problems + _problems_of_brokers(settings, sources)


def _problems_of_brokers(settings: Settings, sources: Mapping[str, str]) -> list[SettingProblem]:
    """Return what is wrong with brokers, or without them; a server in memory is `in_memory`'s."""
    if settings.memory:
        return []
    if settings.brokers > 0 and not settings.store_url:
        sentence = "must be 0 or auto: brokers need an object store; set TOPICS_STORE_URL"
        return [SettingProblem(sources.get("brokers", "brokers"), str(settings.brokers), sentence)]
    if settings.shards == 0 and not chosen_brokers(settings):
        fix = "set TOPICS_BROKERS=1" if settings.store_url else "set TOPICS_STORE_URL"
        sentence = f"must be at least 1: a node without shards needs brokers; {fix}"
        return [SettingProblem(sources.get("shards", "shards"), "0", sentence)]
    return []


def in_memory(settings: Settings, sources: Mapping[str, str]) -> Settings | list[SettingProblem]:
    """Return the settings of a server without a disk, or the settings given that exclude it."""
    problems = []
    because = "the server keeps everything in memory"
    if settings.default_durability != EPHEMERAL and "default_durability" in sources:
        sentence = f"must be {EPHEMERAL}: {because}"
        problems.append(SettingProblem(sources["default_durability"], settings.default_durability, sentence))
    if settings.brokers > 0:
        sentence = f"must be 0 or auto: {because}"
        problems.append(SettingProblem(sources.get("brokers", "brokers"), str(settings.brokers), sentence))
    if settings.shards == 0:
        problems.append(
            SettingProblem(sources.get("shards", "shards"), "0", f"must be at least 1: {because}")
        )
    for name in ("cold_dir", "store_url", "catalog_url"):
        field = _BY_NAME[name]
        if value := getattr(settings, name):
            source = sources.get(name, name)
            problems.append(SettingProblem(source, show_value(field, value), f"must be empty: {because}"))
    return problems or msgspec.structs.replace(settings, default_durability=EPHEMERAL)


assert broken_relations(Settings(), {}) == []
