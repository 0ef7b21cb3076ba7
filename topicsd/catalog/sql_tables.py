"""The tables of the SQL catalogs: their columns, and the statements that both engines understand.

Parameters are written `:name`, as SQLite has them. Table names begin with `topicsd_`, since a database may
be shared with other programs. A topic id has 64 bits and no sign, which no SQL integer has, so it is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topicsd.catalog.catalog import Extent, ExtentObject, TopicRow

TOPIC_COLUMNS: Final = TopicRow.__struct_fields__
EXTENT_COLUMNS: Final = ("topic", *Extent.__struct_fields__)

_TOPIC: Final = ", ".join(TOPIC_COLUMNS)
_EXTENT: Final = ", ".join(Extent.__struct_fields__)

SELECT_TOPIC: Final = f"SELECT {_TOPIC} FROM topicsd_topics WHERE name = :name"

INSERT_TOPIC: Final = (
    f"INSERT INTO topicsd_topics ({_TOPIC}) VALUES ({', '.join(f':{one}' for one in TOPIC_COLUMNS)})"
)

# All columns but the name: one statement serves every verb.
UPDATE_TOPIC: Final = (
    f"UPDATE topicsd_topics SET {', '.join(f'{one} = :{one}' for one in TOPIC_COLUMNS[1:])}"
    " WHERE name = :name"
)

DELETE_TOPIC: Final = "DELETE FROM topicsd_topics WHERE name = :name"

SELECT_FORGOTTEN: Final = (
    "SELECT count(*) FROM topicsd_forgotten WHERE name = :name AND incarnation = :incarnation"
)

INSERT_FORGOTTEN: Final = "INSERT INTO topicsd_forgotten (name, incarnation) VALUES (:name, :incarnation)"

SELECT_TOPICS: Final = (
    f"SELECT {_TOPIC} FROM topicsd_topics"
    " WHERE name > :after AND name >= :prefix AND substr(name, 1, length(:prefix)) = :prefix"
    " ORDER BY name LIMIT :limit"
)

# The extents that begin at or before a seq are found from the last of them, by the primary key.
_FROM: Final = (
    "topic = :name AND last_seq >= :first AND first_seq >= coalesce("
    "(SELECT max(first_seq) FROM topicsd_extents WHERE topic = :name AND first_seq <= :first), 0)"
)

SELECT_EXTENTS_FROM: Final = (
    f"SELECT {_EXTENT} FROM topicsd_extents WHERE {_FROM} ORDER BY first_seq LIMIT :limit"
)

SELECT_EXTENTS_BETWEEN: Final = (
    f"SELECT {_EXTENT} FROM topicsd_extents WHERE {_FROM} AND first_seq <= :last ORDER BY first_seq"
)

INSERT_EXTENT: Final = (
    f"INSERT INTO topicsd_extents ({', '.join(EXTENT_COLUMNS)})"
    f" VALUES ({', '.join(f':{one}' for one in EXTENT_COLUMNS)})"
)

DELETE_EXTENT: Final = "DELETE FROM topicsd_extents WHERE topic = :topic AND first_seq = :first_seq"

DELETE_EXTENTS: Final = "DELETE FROM topicsd_extents WHERE topic = :name"

_objects = msgspec.json.Decoder(tuple[ExtentObject, ...])


def topic_parameters(row: TopicRow) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "topic_id": f"{row.topic_id:016x}"}


def extent_parameters(topic: str, extent: Extent) -> dict[str, Any]:
    objects = msgspec.json.encode(extent.objects).decode()
    return {**msgspec.structs.asdict(extent), "topic": topic, "objects": objects}


def topic_row(values: Sequence[Any]) -> TopicRow:
    name, topic_id, *others = values
    return TopicRow(name, int(topic_id, 16), *others)


def extent_row(values: Sequence[Any]) -> Extent:
    first_seq, last_seq, objects, *others = values
    return Extent(first_seq, last_seq, _objects.decode(objects), *others)
