"""Several nodes, one store and one catalog on virtual time: nothing lost, nothing twice, whatever fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.cluster.engine_node import EngineNode
from tests.harness.cluster.histories.episode import Episode, MakeNode, Report
from tests.harness.cluster.models.broken_engine import BROKEN_RULES, Patch
from tests.harness.cluster.models.broken_nodes import BROKEN
from tests.harness.cluster.models.model_node import ModelNode
from tests.harness.cluster.network import Network
from tests.harness.cluster.shared_store import SharedStore, StoreClient
from tests.harness.cluster.virtual_time import Process, World, digest_elsewhere
from topicsd.engine.ownership import owned
from topicsd.engine.upkeep import merging
from topicsd.store.object_store import StoreRefused
from topicsd.store.probe import probe_store

pytestmark = pytest.mark.usefixtures("quiet_log")

SEEDS, DEEP_SEEDS = 80, 4000
SHARD_SEEDS, DEEP_SHARD_SEEDS = 25, 2000
BROKEN_SEEDS = 150
SMALL_BLOCK_SEEDS = 8
MERGE_SEEDS = 10
BROKEN_RULE_SEEDS = 40
DIGEST = """
import sys
from tests.harness.cluster.histories.episode import Episode
print(Episode(sys.argv[1]).run().digest)
"""


def run_seeds(seeds: range, make_node: MakeNode = ModelNode) -> Counter[str]:
    """Run the seeds; print and return what happened."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        report = run_seed(f"s{seed}", make_node)
        counts += report.counts
        counts["events"] += report.steps
        counts["requests"] += report.requests
    print(f"{len(seeds)} seeds")
    for name, count in sorted(counts.items()):
        print(f"{count:>9,} {name}")
    return counts


def run_seed(seed: str, make_node: MakeNode) -> Report:
    episode = Episode(seed, make_node)
    try:
        return episode.run()
    except BaseException as error:
        error.add_note(f'seed "{seed}", the last of its trace:')
        for line in episode.world.trace[-40:]:
            error.add_note(line)
        raise


def test_nodes_that_follow_the_rules_lose_nothing() -> None:
    counts = run_seeds(range(SEEDS))
    assert counts["acknowledged records judged"] > 100 * SEEDS
    for happened in (
        "acknowledged and lost with a node",
        "objects deleted",
        "move: adopt",
        "move: adopt with loss",
        "request: catalog: late",
        "request: catalog: lost answer",
        "request: store: late",
        "request: store: lost answer",
    ):
        assert counts[happened], happened
    for verb in ("create", "publish", "seal", "adopt", "raise"):
        assert counts[f"end before {verb}"] + counts[f"end before answer {verb}"], verb


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_SEEDS, 500))
def test_nodes_that_follow_the_rules_lose_nothing_in_thousands_of_histories(first: int) -> None:
    run_seeds(range(first, first + 500))


def test_nodes_with_shards_lose_nothing() -> None:
    counts = run_seeds(range(SHARD_SEEDS), EngineNode)
    assert counts["acknowledged records judged"] > 100 * SHARD_SEEDS
    for happened in (
        "objects deleted",
        "move: adopt",
        "move: adopt with loss",
        "client: repeated",
        "client: claimed",
    ):
        assert counts[happened], happened


@pytest.mark.deep
@pytest.mark.parametrize("first", range(10_000, 10_000 + DEEP_SHARD_SEEDS, 100))
def test_nodes_with_shards_lose_nothing_in_thousands_of_histories(first: int) -> None:
    run_seeds(range(first, first + 100), EngineNode)


@pytest.mark.parametrize("node", BROKEN)
def test_a_node_that_breaks_a_rule_is_reported(node: type[ModelNode]) -> None:
    for seed in range(BROKEN_SEEDS):
        try:
            Episode(f"s{seed}", node).run()
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{BROKEN_SEEDS} histories of {node.__name__} were accepted")


def test_nodes_with_small_blocks_of_seqs_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "BLOCK_MIN", 60)
    run_seeds(range(SMALL_BLOCK_SEEDS), EngineNode)


def test_nodes_that_merge_often_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "GROWTH", 2)
    counts = run_seeds(range(MERGE_SEEDS), EngineNode)
    assert counts["extents merged"] > MERGE_SEEDS


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_of_the_engine_is_reported(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    for seed in range(BROKEN_RULE_SEEDS):
        try:
            Episode(f"s{seed}", EngineNode).run()
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{BROKEN_RULE_SEEDS} histories with {rule.__name__} were accepted")


@pytest.mark.parametrize("make_node", [ModelNode, EngineNode])
@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_the_same_seed_has_the_same_trace(seed: str, make_node: MakeNode) -> None:
    first, second = Episode(seed, make_node), Episode(seed, make_node)
    first.run()
    second.run()
    assert len(first.world.trace) > 100
    assert first.world.trace == second.world.trace


def test_the_same_seed_has_the_same_trace_in_another_process() -> None:
    digests = {digest_elsewhere(DIGEST, "d", hash_seed) for hash_seed in ("1", "2")}
    assert digests == {Episode("d").run().digest + "\n"}


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with World("probe") as world:
        store = SharedStore(world, skew_ms=0)
        network, process = Network(world), Process(world, "n")
        client = StoreClient(network, process, "n", store)
        outcomes: list[object] = []
        retries = process.retries(30.0)
        store.ignores_conditions = True
        process.run_fiber(lambda: probe_store(client, retries), outcomes.append)
        world.run_for(60_000)
        store.ignores_conditions = False
        process.run_fiber(lambda: probe_store(client, retries), outcomes.append)
        world.run_for(60_000)
    refusal, answer = outcomes
    assert isinstance(refusal, StoreRefused)
    assert "ignores the condition of a PUT" in str(refusal)
    assert answer is None
