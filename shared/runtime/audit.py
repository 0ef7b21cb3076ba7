"""The audit log: a line for each change of configuration, with the key that made it and where it came from.

A line names the operation of the endpoint, what it changed, the key by its name or id, the address of the
client, and the status of the answer. It has no body and no secret. The logger is `topicsd.audit`, so that
`TOPICS_LOG=warning,topicsd.audit=info` keeps these lines alone.
"""

from __future__ import annotations

import logging
from typing import Final

from shared.contract.api_keys import ApiKey
from shared.runtime.log_setup import fields

AUDIT: Final = "topicsd.audit"
NO_KEY: Final = "none"
"""The label of the key of a request without one."""

logger = logging.getLogger(AUDIT)


def key_label(key: ApiKey | None) -> str:
    """Return the name of a key, or its id if it has none."""
    return NO_KEY if key is None else key.name or key.id


def audit(operation: str, name: str, key: str, address: str, status: int = 200) -> None:
    """Log a change, or the refusal of one; `name` is empty for a change of the whole server."""
    about = {"name": name} if name else {}
    logger.info(
        "audit: %s",
        operation,
        extra=fields(**about, key=key, address=address or "unknown", status=status),
    )
