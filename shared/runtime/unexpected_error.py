"""The refusal for an unexpected error: logged under an id; the client receives only the id."""

from __future__ import annotations

import logging
import secrets

from shared.contract.errors import INTERNAL, Refusal


def refuse_unexpected_error(logger: logging.Logger, what: str, error: BaseException | None) -> Refusal:
    error_id = secrets.token_hex(4)
    logger.error("unexpected error %s: %s", error_id, what, exc_info=error)
    return Refusal(INTERNAL, f"unexpected error, {error_id} in the log")
