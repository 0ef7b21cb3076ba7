"""Print at the end of a test run how many crashes and faults the sweeps tried."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from tests.harness.server.everything import Everything, build
from tests.harness.sweeps import attempts


def pytest_configure() -> None:
    """Have SIGINT end programs of the tests also when the run itself is in the background of a shell."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """Return the directory of everything; tests that change it use a copy."""
    return build(tmp_path_factory.mktemp("everything"))


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Silence the log: thousands of recoveries write tens of thousands of lines."""
    logger = logging.getLogger("topicsd")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = attempts.summary()
    if lines:
        terminalreporter.section("sweeps")
        for line in lines:
            terminalreporter.write_line(line)
