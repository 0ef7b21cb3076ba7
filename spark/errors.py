"""What the data source says to the person who runs a query: one sentence, which Spark shows as the error."""

from __future__ import annotations


class SourceError(Exception):
    """An option, a directory or a state of a topic with which the query cannot go on."""


class DamagedRecord(SourceError):
    """Bytes of a record are not as they were written."""


class DataLoss(SourceError):
    """Records that the query asked for are gone, and nobody deleted them on purpose."""
