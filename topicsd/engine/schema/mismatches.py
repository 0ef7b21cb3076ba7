"""The counts of records that broke the schema of their topic, and the log of those that were accepted."""

from __future__ import annotations

import logging
from typing import Final

from shared.runtime.log_setup import fields

logger = logging.getLogger("topicsd.engine")

LOG_SECONDS: Final = 60.0
TOPICS_MAX: Final = 1000


class SchemaMismatches:
    """The records of one shard that broke the schema of their topic since the start."""

    def __init__(self) -> None:
        self.refused = 0
        """Writes that were refused because of a record."""
        self.accepted = 0
        """Records that were accepted nevertheless, by the mode `warn`."""
        self._quiet_until: dict[str, float] = {}

    def accept(self, topic: str, count: int, message: str, now: float) -> None:
        """Count accepted records; log a topic at most once in `LOG_SECONDS`."""
        self.accepted += count
        quiet = self._quiet_until
        if now < quiet.get(topic, 0.0):
            return
        if len(quiet) >= TOPICS_MAX:
            quiet.clear()
        quiet[topic] = now + LOG_SECONDS
        logger.warning("schema: record accepted that breaks it: %s", message, extra=fields(topic=topic))
