"""Rules that homes break, one each: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.harness.brokers.broken_brokers import Patch
from topicsd.broker.home.home import Home
from topicsd.broker.home.homes import HomeReply, Homes
from topicsd.broker.home.messages import HomeRequest
from topicsd.broker.steps import Steps
from topicsd.catalog.shared.shared_catalog import Slice

COMMIT: Final = Homes.commit


def takes_a_silent_home_for_one_that_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the direct commit finds is taken for the outcome, although the home may have committed."""

    def commit(self: Homes, name: str, key: str, slices: Sequence[Slice], until: float) -> Steps[HomeReply]:
        reply = yield from COMMIT(self, name, key, slices, until)
        return reply._replace(may_arrive=False)

    monkeypatch.setattr(Homes, "commit", commit)


def commits_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that was stopped commits what it got long ago."""

    def is_in_time(self: Home, request: HomeRequest) -> bool:
        return bool(request.run)

    monkeypatch.setattr(Home, "is_in_time", is_in_time)


BROKEN_HOMES: Final[tuple[Patch, ...]] = (
    takes_a_silent_home_for_one_that_refused,
    commits_at_any_time,
)
