"""Errors that no code expects, as refusals."""

from __future__ import annotations

import errno
import logging

import pytest

from shared.contract.errors import INTERNAL, STORAGE_FULL
from shared.runtime.unexpected_error import refuse_unexpected_error

logger = logging.getLogger("test")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_refused_by_its_name(number: int, caplog: pytest.LogCaptureFixture) -> None:
    refusal = refuse_unexpected_error(logger, "adopt", OSError(number, "no room"))
    assert (refusal.code, refusal.retry_after_ms is not None) == (STORAGE_FULL, True)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"adopt: refused: the disk is full: [Errno {number}] no room"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("a bug"), None])
def test_another_error_is_in_the_log_under_an_id(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = refuse_unexpected_error(logger, "adopt", error)
    assert refusal.code == INTERNAL
    error_id = refusal.message.removeprefix("unexpected error, ").removesuffix(" in the log")
    assert caplog.records[0].getMessage() == f"unexpected error {error_id}: adopt"
