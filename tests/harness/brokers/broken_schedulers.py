"""Rules that a scheduler of upkeep breaks, one each: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import MutableSequence
from random import Random
from typing import Any, Final

import pytest

from tests.harness.brokers import scheduled_upkeep
from tests.harness.brokers.broken_brokers import Patch
from topicsd.broker.steps import Pool, Resume, Wait
from topicsd.broker.upkeep import scheduler
from topicsd.broker.upkeep.scheduler import UpkeepLimits, UpkeepScheduler
from topicsd.catalog.shared.shared_catalog import Claim, SharedTopic


def _use(monkeypatch: pytest.MonkeyPatch, broken: type[UpkeepScheduler]) -> None:
    monkeypatch.setattr(scheduled_upkeep, "UpkeepScheduler", broken)


def _with_limits(args: tuple[Any, ...], **changed: Any) -> tuple[Any, ...]:
    """Return the arguments of a scheduler with other limits."""
    return tuple(one._replace(**changed) if isinstance(one, UpkeepLimits) else one for one in args)


class _Changed:
    """A catalog with some other verbs."""

    def __init__(self, real: Any, **verbs: Any) -> None:
        self._real = real
        self.__dict__.update(verbs)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._real, verb)


def visits_a_topic_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has two schedulers of one name."""

    class Doubled(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.other = UpkeepScheduler(*args)

        def start(self) -> None:
            super().start()
            self.other.start()

    _use(monkeypatch, Doubled)


def has_more_workers_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*_with_limits(args, workers=8))

    _use(monkeypatch, Greedy)


def visits_with_a_wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*_with_limits(args, has_catalog_clock=True))

    _use(monkeypatch, Careless)


def keeps_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            clock, loop, store, catalog, *others = args

            def release(claim: Claim) -> None:
                catalog.topics([claim.topic])

            super().__init__(clock, loop, store, _Changed(catalog, release=release), *others)

    _use(monkeypatch, Keeping)


def lists_the_topics_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outdated(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            clock, loop, store, catalog, *others = args
            pages: dict[str, list[SharedTopic]] = {}

            def list_topics(prefix: str, after: str, limit: int) -> list[SharedTopic]:
                if after not in pages:
                    pages[after] = catalog.list(prefix, after, limit)
                return pages[after]

            super().__init__(clock, loop, store, _Changed(catalog, list=list_topics), *others)

    _use(monkeypatch, Outdated)


def ends_with_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails has no end."""

    class Stuck(Pool):
        def call(self, job: Any) -> Wait:
            def start(resume: Resume) -> None:
                def end(outcome: Any) -> None:
                    if not isinstance(outcome, OSError):
                        resume(outcome)

                wait(end)

            wait = super().call(job)
            return start

    monkeypatch.setattr(scheduler, "Pool", Stuck)


def visits_all_topics_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "IDLE_SECONDS", 1.0)


def visits_in_the_order_of_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ordered(Random):
        def shuffle(self, x: MutableSequence[Any]) -> None:
            pass

    class Unshuffled(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            changed: Any = [Ordered(1) if isinstance(one, Random) else one for one in args]
            super().__init__(*changed)

    _use(monkeypatch, Unshuffled)


def never_vacuums(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoarding(UpkeepScheduler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*_with_limits(args, vacuum_seconds=0))

    _use(monkeypatch, Hoarding)


BROKEN_SCHEDULERS: Final[tuple[Patch, ...]] = (
    visits_a_topic_twice_at_once,
    has_more_workers_than_it_may,
    visits_with_a_wrong_clock,
    keeps_its_claims,
    lists_the_topics_once,
    ends_with_the_first_error,
    visits_all_topics_in_each_pass,
    visits_in_the_order_of_the_listing,
    never_vacuums,
)
