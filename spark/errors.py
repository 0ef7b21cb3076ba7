"""Errors of the data source: one sentence for the user, which Spark shows as the error."""

from __future__ import annotations


class SourceError(Exception):
    """An option, a directory or a topic state with which the query cannot continue."""


class DamagedRecord(SourceError):
    """A record whose bytes do not match what was written."""


class DataLoss(SourceError):
    """Requested records that are gone without having been deleted on purpose."""
