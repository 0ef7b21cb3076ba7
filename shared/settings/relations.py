"""What must hold between settings, and what is wrong with those that were given.

Each value is within its own bounds already (`shared/settings/setting.py`); these rules are about two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from shared.settings.setting import render_value
from shared.settings.settings import DECLARED, Settings

EPHEMERAL: Final = "ephemeral"


class Relation(msgspec.Struct, frozen=True):
    """Two settings of which the first may not be larger than the second."""

    smaller: str
    larger: str
    reason: str


RELATIONS: Final = (
    Relation("max_meta_bytes", "max_record_bytes", "the meta is a part of the record"),
    Relation("max_record_bytes", "max_waiting_bytes", "the largest record has to be let in by an idle shard"),
)


class SettingProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong with what the server was told."""

    source: str
    """What a person would look for: a variable, a flag, or a file and the key in it."""
    value: str | None
    sentence: str

    def __str__(self) -> str:
        told = self.source if self.value is None else f"{self.source}={self.value!r}"
        return f"{told}: {self.sentence}"


def broken_relations(settings: Settings, sources: Mapping[str, str]) -> list[SettingProblem]:
    """What does not go together, though each value is within its own bounds.

    `sources` says where the values of which settings came from; the others are told by their variables.
    """
    problems = []
    by_name = {field.name: field for field in DECLARED}
    for relation in RELATIONS:
        smaller, larger = by_name[relation.smaller], by_name[relation.larger]
        value, bound = getattr(settings, smaller.name), getattr(settings, larger.name)
        if value > bound:
            told = f"{sources.get(larger.name, larger.variable)}={render_value(larger, bound)}"
            sentence = f"must be at most {told}: {relation.reason}"
            source = sources.get(smaller.name, smaller.variable)
            problems.append(SettingProblem(source, render_value(smaller, value), sentence))
    return problems


def in_memory(settings: Settings, sources: Mapping[str, str]) -> Settings | list[SettingProblem]:
    """The settings of a server without a disk, or what excludes that. `sources` are those that were given."""
    problems = []
    because = "the server keeps everything in memory"
    if settings.default_durability != EPHEMERAL and "default_durability" in sources:
        sentence = f"must be {EPHEMERAL}: {because}"
        problems.append(SettingProblem(sources["default_durability"], settings.default_durability, sentence))
    if settings.cold_dir:
        source = sources.get("cold_dir", "cold_dir")
        problems.append(SettingProblem(source, settings.cold_dir, f"must be empty: {because}"))
    return problems or msgspec.structs.replace(settings, default_durability=EPHEMERAL)


assert broken_relations(Settings(), {}) == []
