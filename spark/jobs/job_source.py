"""The input of a job: topics of a directory or a server, between two positions.

Positions are those of the source's stream reader (`stream_offset.py`), which computes them. A job therefore
begins, ends and reports loss as a stream with a checkpoint would, by `path` and by `url` alike; it only reads
the records in between as one batch.

The begin or the end is a word (`earliest`, `latest`), a time, or JSON of seqs:

    >>> where_options("earliest"), where_options('{"orders":23}')
    ({'startingOffsets': 'earliest'}, {'startingOffsets': '{"orders":23}'})
    >>> where_options("2026-11-18T10:00")["startingTimestamp"], where_options("1700000000000")
    ('1794996000000', {'startingTimestamp': '1700000000000', 'startingOffsetsByTimestampStrategy': 'latest'})
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql.types import StructType

from spark.errors import SourceError
from spark.source.read_options import parse_options
from spark.source.source import TopicsdSource
from spark.source.stream_offset import Place, Places, decode, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAYS = ("subscribe", "subscribePattern")


class Stretch(NamedTuple):
    """The range of one topic, from `start` up to `end`, exclusive."""

    epoch: int
    start: int
    end: int


def where_options(where: str) -> dict[str, str]:
    text = where.strip()
    if text.lower() in ("earliest", "latest") or text.startswith("{"):
        return {"startingOffsets": text}
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise SourceError(
                f"{text!r} is no place in a topic; it is earliest, latest, a time as 2026-11-18T10:00 "
                'or in milliseconds since 1970, or JSON of seqs like {"orders":23}'
            ) from None
        # A time without a zone is in UTC, like everything the jobs print.
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        text = str(int(at.timestamp() * 1000))
    return {"startingTimestamp": text, "startingOffsetsByTimestampStrategy": "latest"}


class JobSource:
    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the options of a read, except those for its begin and end."""
        self.options = dict(options)
        self._selection = parse_options(self.options, is_stream=True).selection

    def wants(self, topic: str) -> bool:
        return self._selection.matches(topic)

    def places(self, where: str) -> Places:
        """Return the position of each existing topic."""
        return decode(self._stream(where_options(where)).initialOffset())

    def ends(self, starts: Places) -> Places:
        """Return the readable end of each topic, new ones included.

        Raises DataLoss if a topic in `starts` is gone or was recreated, unless the options allow it.
        """
        return decode(self._stream({}).latestOffset(encode(starts)))

    def stretches(self, begin: str, end: str, known: Places | None = None) -> dict[str, Stretch]:
        """Return the ranges between two positions and after the known ones, empty ranges included."""
        known = {name: place for name, place in (known or {}).items() if self.wants(name)}
        starts = self.places(begin)
        ends = self.ends({**starts, **known})
        bounds = ends if end.strip().lower() == "latest" else self.places(end)
        found = {}
        for name, first in starts.items():
            last, bound = ends.get(name), bounds.get(name)
            if last is None or bound is None:
                continue
            place = known.get(name, first)
            # A recreated topic is read from its beginning.
            start = place.offset if place.epoch == last.epoch else first.offset
            found[name] = Stretch(last.epoch, start, max(start, min(last.offset, bound.offset)))
        return found

    def check_epochs(self, stretches: Mapping[str, Stretch]) -> None:
        """Raise SourceError if a name now means another topic: a batch reads by names and seqs."""
        now = self.ends({name: Place(one.epoch, one.end) for name, one in stretches.items()})
        for name, one in stretches.items():
            if name in now and now[name].epoch != one.epoch:
                raise SourceError(f'topic "{name}" was made anew while it was read; start this again')

    def frame(self, session: SparkSession, stretches: Mapping[str, Stretch], schema: str) -> DataFrame:
        """Return the records of the ranges, at least one of which is not empty, with these columns."""
        wanted = {name: one for name, one in stretches.items() if one.start < one.end}
        options = {name: value for name, value in self.options.items() if name not in WAYS}
        return (
            session.read.format("topicsd")
            .schema(schema)
            .options(**options)
            .option("subscribe", ",".join(wanted))
            .option("startingOffsets", _json({name: one.start for name, one in wanted.items()}))
            .option("endingOffsets", _json({name: one.end for name, one in wanted.items()}))
            .load()
        )

    def _stream(self, where: dict[str, str]) -> Any:
        return TopicsdSource({**self.options, **where}).streamReader(StructType())


def _json(seqs: dict[str, int]) -> str:
    return msgspec.json.encode(seqs).decode()
