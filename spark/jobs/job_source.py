"""The input of a job: topics of a directory or a server, between two positions.

Positions are those of the source's stream reader (`stream_offset.py`), which computes them. A job therefore
begins, ends and reports loss as a stream with a checkpoint would, by `path` and by `url` alike; it only reads
the records in between as one batch.

The begin or the end is a word (`earliest`, `latest`), a time, or JSON of seqs:

    >>> position_options("earliest"), position_options('{"orders":23}')
    ({'startingOffsets': 'earliest'}, {'startingOffsets': '{"orders":23}'})
    >>> position_options("2026-11-18T10:00")["startingTimestamp"], position_options("1700000000000")
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
from spark.source.stream_offset import TopicOffset, TopicOffsets, decode, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SELECTION_OPTIONS = ("subscribe", "subscribePattern")


class TopicRange(NamedTuple):
    """The range of one topic, from `start` up to `end`, exclusive."""

    epoch: int
    start: int
    end: int


def position_options(position: str) -> dict[str, str]:
    text = position.strip()
    if text.lower() in ("earliest", "latest") or text.startswith("{"):
        return {"startingOffsets": text}
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise SourceError(
                "must be earliest, latest, a time such as 2026-11-18T10:00 or in milliseconds since 1970, "
                f'or seqs as JSON such as {{"orders":23}}, got {text!r}'
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

    def selects(self, topic: str) -> bool:
        return self._selection.matches(topic)

    def positions(self, position: str) -> TopicOffsets:
        """Return the position of each existing topic."""
        return decode(self._stream(position_options(position)).initialOffset())

    def ends(self, starts: TopicOffsets) -> TopicOffsets:
        """Return the readable end of each topic, new ones included.

        Raises DataLoss if a topic in `starts` is gone or was recreated, unless the options allow it.
        """
        return decode(self._stream({}).latestOffset(encode(starts)))

    def ranges(self, begin: str, end: str, known: TopicOffsets | None = None) -> dict[str, TopicRange]:
        """Return the ranges between two positions and after the known ones, empty ranges included."""
        known = {name: position for name, position in (known or {}).items() if self.selects(name)}
        starts = self.positions(begin)
        ends = self.ends({**starts, **known})
        bounds = ends if end.strip().lower() == "latest" else self.positions(end)
        result = {}
        for name, first in starts.items():
            last, bound = ends.get(name), bounds.get(name)
            if last is None or bound is None:
                continue
            position = known.get(name, first)
            # A recreated topic is read from its beginning.
            start = position.offset if position.epoch == last.epoch else first.offset
            result[name] = TopicRange(last.epoch, start, max(start, min(last.offset, bound.offset)))
        return result

    def check_epochs(self, ranges: Mapping[str, TopicRange]) -> None:
        """Raise SourceError if a name now means another topic: a batch reads by names and seqs."""
        now = self.ends({name: TopicOffset(one.epoch, one.end) for name, one in ranges.items()})
        for name, one in ranges.items():
            if name in now and now[name].epoch != one.epoch:
                raise SourceError(f'topic "{name}": recreated during the read; run the job again')

    def frame(self, session: SparkSession, ranges: Mapping[str, TopicRange], schema: str) -> DataFrame:
        """Return the records of the ranges, at least one of which is not empty, with these columns."""
        filled = {name: one for name, one in ranges.items() if one.start < one.end}
        options = {name: value for name, value in self.options.items() if name not in SELECTION_OPTIONS}
        return (
            session.read.format("topicsd")
            .schema(schema)
            .options(**options)
            .option("subscribe", ",".join(filled))
            .option("startingOffsets", _json({name: one.start for name, one in filled.items()}))
            .option("endingOffsets", _json({name: one.end for name, one in filled.items()}))
            .load()
        )

    def _stream(self, options: dict[str, str]) -> Any:
        return TopicsdSource({**self.options, **options}).streamReader(StructType())


def _json(seqs: dict[str, int]) -> str:
    return msgspec.json.encode(seqs).decode()
