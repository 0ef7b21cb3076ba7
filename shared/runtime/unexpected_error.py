"""The refusal for an unexpected error: logged under an id; the client receives only the id.

A full disk may be met by any work that writes files, and is no bug: its refusal says so.
"""

from __future__ import annotations

import errno
import logging
import secrets
from typing import Final

from shared.contract.errors import INTERNAL, RETRY_AFTER_MS, STORAGE_FULL, Refusal

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def refuse_unexpected_error(logger: logging.Logger, what: str, error: BaseException | None) -> Refusal:
    if isinstance(error, OSError) and error.errno in _FULL:
        logger.warning("%s: refused: the disk is full: %s", what, error)
        return Refusal(
            STORAGE_FULL, "the disk is full: make room, and repeat the request", retry_after_ms=RETRY_AFTER_MS
        )
    error_id = secrets.token_hex(4)
    logger.error("unexpected error %s: %s", error_id, what, exc_info=error)
    return Refusal(INTERNAL, f"unexpected error, {error_id} in the log")
