"""Several brokers, one store and one catalog on virtual time: nothing lost, nothing twice, whatever fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.brokers.broken_brokers import BROKEN_RULES, Patch
from tests.harness.brokers.broker_episode import BrokerEpisode
from tests.harness.cluster.histories.episode import Report
from tests.harness.cluster.virtual_time import digest_elsewhere

pytestmark = pytest.mark.usefixtures("quiet_log")

SEEDS, DEEP_SEEDS = 14, 10_000
BROKEN_SEEDS = 60
DIGEST = """
import sys
from tests.harness.brokers.broker_episode import BrokerEpisode
print(BrokerEpisode(sys.argv[1]).run().digest)
"""


def run_seeds(seeds: range) -> Counter[str]:
    """Run the seeds; print and return what happened."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        report = run_seed(f"s{seed}")
        counts += report.counts
        counts["events"] += report.steps
        counts["requests"] += report.requests
    print(f"{len(seeds)} seeds")
    for name, count in sorted(counts.items()):
        print(f"{count:>9,} {name}")
    return counts


def run_seed(seed: str) -> Report:
    episode = BrokerEpisode(seed)
    try:
        return episode.run()
    except BaseException as error:
        error.add_note(f'seed "{seed}", the last of its trace:')
        for line in episode.world.trace[-40:]:
            error.add_note(line)
        raise


def test_brokers_lose_nothing_and_append_nothing_twice() -> None:
    counts = run_seeds(range(SEEDS))
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
        "request: catalog: late",
        "request: catalog: lost answer",
        "request: store: late",
        "request: store: lost answer",
    ):
        assert counts[happened], happened


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_SEEDS, 500))
def test_brokers_lose_nothing_in_thousands_of_histories(first: int) -> None:
    run_seeds(range(first, first + 500))


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_of_a_broker_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    for seed in range(BROKEN_SEEDS):
        try:
            BrokerEpisode(f"s{seed}").run()
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
