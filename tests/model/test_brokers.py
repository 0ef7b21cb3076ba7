"""Several brokers, one store and one catalog on virtual time: nothing lost, nothing twice, whatever fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness.brokers.broken_brokers import BROKEN_RULES, Patch
from tests.harness.brokers.broken_catalogs import BROKEN_CATALOGS, grants_every_claim
from tests.harness.brokers.broken_homes import BROKEN_HOMES
from tests.harness.brokers.broken_schedulers import BROKEN_SCHEDULERS
from tests.harness.brokers.broker_episode import BrokerEpisode
from tests.harness.brokers.broker_homes import HomeEpisode, open_keys_in_memory
from tests.harness.brokers.broker_machine import MakeCatalog, open_sqlite
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.brokers.scheduled_upkeep import ScheduledEpisode
from tests.harness.cluster.histories.episode import Report
from tests.harness.cluster.virtual_time import digest_elsewhere

pytestmark = pytest.mark.usefixtures("quiet_log")

SEEDS, DEEP_SEEDS = 24, 10_000
SCHEDULED_SEEDS, DEEP_SCHEDULED_SEEDS = 4, 1000
HOME_SEEDS, DEEP_HOME_SEEDS = 6, 2000
SAME_SEEDS = 3
BROKEN_SEEDS = 60
RARE = {
    "forgets_producers": 27,
    "commits_condemned_blobs": 13,
    "compacts_without_claims_and_checks": 300,
    "visits_in_the_order_of_the_listing": 2,
    "takes_a_silent_home_for_one_that_refused": 4,
    "commits_at_any_time": 20,
}
"""Broken rules that few histories meet: the first one that does."""
MakeEpisode = Callable[..., BrokerEpisode]
DIGEST = """
import sys
from tests.harness.brokers.broker_episode import BrokerEpisode
print(BrokerEpisode(sys.argv[1]).run().digest)
"""


def run_seeds(
    seeds: range, make_catalog: MakeCatalog, make_episode: MakeEpisode = BrokerEpisode
) -> Counter[str]:
    """Run the seeds over a catalog; print and return what happened."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        report = run_seed(f"s{seed}", make_catalog, make_episode)
        counts += report.counts
        counts["events"] += report.steps
        counts["requests"] += report.requests
    print(f"{len(seeds)} seeds")
    for name, count in sorted(counts.items()):
        print(f"{count:>9,} {name}")
    return counts


def run_seed(seed: str, make_catalog: MakeCatalog, make_episode: MakeEpisode = BrokerEpisode) -> Report:
    episode = make_episode(seed, make_catalog=make_catalog)
    try:
        return episode.run()
    except BaseException as error:
        error.add_note(f'seed "{seed}", the last of its trace:')
        for line in episode.world.trace[-40:]:
            error.add_note(line)
        raise


def test_brokers_lose_nothing_and_append_nothing_twice() -> None:
    counts = run_seeds(range(SEEDS), open_sqlite)
    assert counts["acknowledged records judged"] > 500 * SEEDS
    assert counts["records read"] > 1000 * SEEDS
    for happened in (
        "repeated appends",
        "append: unknown",
        "append: failed",
        "blobs condemned",
        "objects deleted",
        "compaction: merged",
        "fault: long stop",
        "fences judged",
        "full waits judged",
        "bounds checked",
        "request: catalog: late",
        "request: catalog: lost answer",
        "request: store: late",
        "request: store: lost answer",
        "request: notice: sent",
        "request: notice: lost",
        "request: notice: doubled",
    ):
        assert counts[happened], happened


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_SEEDS, 500))
def test_brokers_lose_nothing_in_thousands_of_histories(first: int) -> None:
    run_seeds(range(first, first + 500), open_sqlite if first % 1000 else MemoryTopics)


def test_schedulers_find_merge_and_vacuum_everything() -> None:
    counts = run_seeds(range(SCHEDULED_SEEDS), open_sqlite, ScheduledEpisode)
    for happened in (
        "topics judged",
        "idle visits",
        "fault: drain",
        "scheduler: busy",
        "scheduler: failed",
        "scheduler: merged",
        "scheduler: vacuums",
    ):
        assert counts[happened], happened


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_SCHEDULED_SEEDS, 100))
def test_schedulers_find_merge_and_vacuum_everything_in_many_histories(first: int) -> None:
    run_seeds(range(first, first + 100), open_sqlite if first % 200 else MemoryTopics, ScheduledEpisode)


@pytest.mark.parametrize(
    ("seed", "make_episode"),
    [*((seed, BrokerEpisode) for seed in range(SAME_SEEDS)), (0, ScheduledEpisode)],
)
def test_a_sqlite_catalog_has_the_same_histories_as_the_model(seed: int, make_episode: MakeEpisode) -> None:
    model, sqlite = (run_seed(f"same {seed}", make, make_episode) for make in (MemoryTopics, open_sqlite))
    assert model.digest == sqlite.digest
    assert model == sqlite


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_of_a_broker_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    report_broken(rule, MemoryTopics, monkeypatch)


@pytest.mark.parametrize("rule", BROKEN_SCHEDULERS)
def test_a_broken_rule_of_a_scheduler_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    report_broken(rule, MemoryTopics, monkeypatch, ScheduledEpisode)


def test_brokers_with_homes_lose_nothing_and_append_nothing_twice() -> None:
    counts = run_seeds(range(HOME_SEEDS), MemoryTopics, HomeEpisode)
    for happened in ("lost request", "lost answer", "slow", "taken", "refused", "passed over"):
        assert counts[f"homes: {happened}"], happened
    counts = run_seeds(range(1), open_keys_in_memory, HomeEpisode)
    assert counts["homes: taken"]


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_HOME_SEEDS, 100))
def test_brokers_with_homes_lose_nothing_in_many_histories(first: int) -> None:
    run_seeds(range(first, first + 100), MemoryTopics, HomeEpisode)


@pytest.mark.parametrize("rule", BROKEN_HOMES)
def test_a_broken_rule_of_a_home_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    report_broken(rule, MemoryTopics, monkeypatch, HomeEpisode)


@pytest.mark.parametrize("rule", BROKEN_CATALOGS)
def test_a_broken_rule_of_a_catalog_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    report_broken(rule, open_sqlite, monkeypatch)


def test_histories_hold_although_every_compactor_gets_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    grants_every_claim(monkeypatch)
    counts = run_seeds(range(3), open_sqlite)
    assert counts["compaction: merged"]


def report_broken(
    rule: Patch,
    make_catalog: MakeCatalog,
    monkeypatch: pytest.MonkeyPatch,
    make_episode: MakeEpisode = BrokerEpisode,
) -> None:
    rule(monkeypatch)
    first = RARE.get(rule.__name__, 0)
    for seed in range(first, first + BROKEN_SEEDS):
        try:
            make_episode(f"s{seed}", make_catalog=make_catalog).run()
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{BROKEN_SEEDS} histories with {rule.__name__} were accepted")


@pytest.mark.parametrize("seed", ["a", "b"])
def test_the_same_seed_has_the_same_trace(seed: str) -> None:
    first, second = BrokerEpisode(seed), BrokerEpisode(seed)
    first.run()
    second.run()
    assert len(first.world.trace) > 100
    assert first.world.trace == second.world.trace


def test_the_same_seed_has_the_same_trace_in_another_process() -> None:
    digests = {digest_elsewhere(DIGEST, "d", hash_seed) for hash_seed in ("1", "2")}
    assert len(digests) == 1
