"""Every setting of the server, declared once: a field of `Settings` with default, unit, bounds and help.

All the rest is derived from that declaration: the name in the environment (`TOPICS_` and the field in
capitals), how its text is read, which values are refused, and the table in the README. A setting that is
added is one field more and nothing else.

A wrong environment is told in one go: `load` collects every problem before it raises, because a person who
repairs one variable a restart loses patience before the last. A variable that begins with `TOPICS_` and is no
setting is a problem too: a typing error must not quietly mean the default. Only `TOPICS_TEST_` is passed
over, which belongs to the test suite.

The bounds are for people. Code that builds `Settings` itself may step outside, as tests do that want a
tiny log file.

What it must not know: what a setting does to the part of the server that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

import msgspec

from shared.setting import (
    GIB,
    KIB,
    MIB,
    PREFIX,
    Declared,
    Setting,
    declared,
    parse_value,
    render_bounds,
    render_value,
)

TEST_PREFIX: Final = "TOPICS_TEST_"

# A frame gives the length of a tag and of a node 16 bits, and its own length 32.
LENGTH16_MAX: Final = (1 << 16) - 1
LENGTH32_MAX: Final = (1 << 32) - 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a running server was told, checked."""

    data_dir: Annotated[str, Setting(help="Where the data lives.", unit="path", minimum=1)] = "./topics-data"

    shards: Annotated[
        int,
        Setting(
            help="How many shards a new data directory gets; 0 is one for each core. "
            "A directory keeps the number it was made with.",
            unit="shards",
            minimum=0,
            maximum=1024,
        ),
    ] = 0

    wal_file_bytes: Annotated[
        int,
        Setting(
            help="Size of a file of the log, reserved on the disk before it is used.",
            unit="bytes",
            minimum=64 * KIB,
            maximum=4 * GIB,
        ),
    ] = 64 * MIB

    max_batch_records: Annotated[
        int,
        Setting(help="Records in one write.", unit="records", minimum=1, maximum=1_000_000),
    ] = 10_000

    max_record_bytes: Annotated[
        int,
        Setting(help="`data` and `meta` of one record together.", unit="bytes", minimum=1, maximum=64 * MIB),
    ] = 1 * MIB

    max_meta_bytes: Annotated[
        int,
        Setting(help="`meta` of one record.", unit="bytes", minimum=0, maximum=1 * MIB),
    ] = 16 * KIB

    max_tag_bytes: Annotated[
        int,
        Setting(help="The tag of a record.", unit="bytes", minimum=1, maximum=LENGTH16_MAX),
    ] = 256

    max_node_bytes: Annotated[
        int,
        Setting(help="The node of a record.", unit="bytes", minimum=1, maximum=LENGTH16_MAX),
    ] = 128

    max_limit: Annotated[
        int,
        Setting(help="Records in the answer to one read.", unit="records", minimum=1, maximum=100_000),
    ] = 1000

    max_idempotency_keys: Annotated[
        int,
        Setting(
            help="Idempotency keys that a shard remembers, at about 200 bytes of memory each; "
            "0 is unlimited.",
            unit="keys",
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 8_000_000

    max_topics: Annotated[
        int,
        Setting(
            help="Topics that may exist; 0 is unlimited.", unit="topics", minimum=0, maximum=1_000_000_000
        ),
    ] = 100_000

    sync_interval_ms: Annotated[
        int,
        Setting(
            help="How often, at least, data of class `disk` is synced in the background while there is any.",
            unit="ms",
            minimum=1,
            maximum=1000,
        ),
    ] = 50

    max_waiting_bytes: Annotated[
        int,
        Setting(
            help="Bytes that may be written and not yet synced before new writes are throttled; from half of "
            "it on every write waits for the disk.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=4 * GIB,
        ),
    ] = 128 * MIB

    max_waiting_requests: Annotated[
        int,
        Setting(
            help="Writes that may wait for a sync before new ones are throttled.",
            unit="requests",
            minimum=1,
            maximum=10_000_000,
        ),
    ] = 100_000


class Relation(msgspec.Struct, frozen=True):
    """Two settings of which the first may not be larger than the second."""

    smaller: str
    larger: str
    reason: str


RELATIONS: Final = (
    Relation("max_meta_bytes", "max_record_bytes", "the meta is a part of the record"),
    Relation("max_record_bytes", "max_waiting_bytes", "the largest record has to be let in by an idle shard"),
)

DECLARED: Final[tuple[Declared, ...]] = declared(Settings)
BY_VARIABLE: Final[dict[str, Declared]] = {field.variable: field for field in DECLARED}


class SettingProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong with what the server was told."""

    variable: str
    value: str | None
    sentence: str

    def __str__(self) -> str:
        told = self.variable if self.value is None else f"{self.variable}={self.value!r}"
        return f"{told}: {self.sentence}"


class SettingsError(ValueError):
    """Everything that is wrong with what the server was told."""

    def __init__(self, problems: list[SettingProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def load(environ: Mapping[str, str]) -> Settings:
    """The settings that an environment asks for; SettingsError names all that is wrong with it."""
    values: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(TEST_PREFIX):
            continue
        text = environ[variable]
        field = BY_VARIABLE.get(variable)
        if field is None:
            # Without its value: what somebody meant to be a key would land in the log.
            problems.append(SettingProblem(variable, None, _unknown(variable)))
            continue
        try:
            values[field.name] = parse_value(field, text)
        except ValueError as error:
            problems.append(SettingProblem(variable, text, str(error)))
    if problems:
        raise SettingsError(problems)
    settings = Settings(**values)
    problems = broken_relations(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def broken_relations(settings: Settings) -> list[SettingProblem]:
    """What does not go together, though each value is within its own bounds."""
    problems = []
    by_name = {field.name: field for field in DECLARED}
    for relation in RELATIONS:
        smaller, larger = by_name[relation.smaller], by_name[relation.larger]
        value, bound = getattr(settings, smaller.name), getattr(settings, larger.name)
        if value > bound:
            sentence = f"must be at most {larger.variable}={render_value(larger, bound)}: {relation.reason}"
            problems.append(SettingProblem(smaller.variable, render_value(smaller, value), sentence))
    return problems


def settings_table() -> str:
    """All settings as a table of Markdown, as the README shows it."""
    rows = ["| variable | default | unit | bounds | what it is |", "|---|---|---|---|---|"]
    for field in DECLARED:
        default = f"`{render_value(field, field.default)}`"
        rows.append(
            f"| `{field.variable}` | {default} | {field.setting.unit} | {_table_bounds(field)} "
            f"| {field.setting.help} |"
        )
    return "\n".join(rows) + "\n"


def _unknown(variable: str) -> str:
    nearest = get_close_matches(variable, BY_VARIABLE, n=1, cutoff=0.0)
    return f"there is no such setting; the nearest name is {nearest[0]}"


def _table_bounds(field: Declared) -> str:
    # The bounds of a text are of its length, which a column beside the numbers would not say.
    return "" if field.kind is str else render_bounds(field)


def _check_declarations() -> None:
    assert broken_relations(Settings()) == []
    largest = {field.name: field.setting.maximum or 0 for field in DECLARED}
    assert largest["max_tag_bytes"] <= LENGTH16_MAX
    assert largest["max_node_bytes"] <= LENGTH16_MAX
    # Half is left for the frame's own fields, so that the longest legal frame is far from the 32 bits.
    parts = largest["max_record_bytes"] + largest["max_tag_bytes"] + largest["max_node_bytes"]
    assert parts <= LENGTH32_MAX // 2


_check_declarations()
