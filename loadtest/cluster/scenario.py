"""A scenario: the shape of a cluster, its load and its clients, with a default for every field."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

SCENARIOS: Final = Path(__file__).with_name("scenarios")
SUFFIXES: Final = (".toml", ".json")

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
HEADER_BYTES: Final = 64
"""Room for what identifies a record; see `records`."""


class ScenarioError(Exception):
    """A scenario that cannot be run; the text names the field and the rule."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name = "default"
    # -- the cluster
    nodes: Count = 1
    program: Literal["topicsd", "bare"] = "topicsd"
    """What a node runs: the server, or the bare program that it is compared with."""
    catalog: Literal["sqlite", "postgresql", "etcd", "oxia"] = "sqlite"
    store: Literal["file", "s3"] = "file"
    linger_ms: Count = 250
    """How long a broker collects records before it puts them into the store."""
    batch_max_bytes: Count = 8 << 20
    latency: Literal["normal", "low"] = "normal"
    """The latency class of the partitions; brokers collect those of class `low` for `linger_ms` too."""
    settings: dict[str, str] = {}
    """More settings of the nodes, `TOPICS_…`."""
    # -- the partitions
    topics: Count = 1
    partitions: Count = 4
    """Of each topic."""
    owners: Count = 1
    """The nodes that a partition may be sent to."""
    selection: Literal["round_robin", "least_inflight"] = "round_robin"
    """The choice among the owners that are up."""
    seed: int = 0
    """Of the owner sets."""
    # -- the load
    seconds: Seconds = 10.0
    producers: Amount = 4
    consumers: Amount = 1
    """Each partition is read by one of them."""
    record_bytes: Annotated[int, msgspec.Meta(ge=HEADER_BYTES)] = 100
    records_per_request: Count = 100
    records_per_second: Amount = 0
    """Of all producers; 0 is as fast as the answers come."""
    readers: Literal["owners", "others"] = "owners"
    """Whether a partition is read at its owners or at the nodes that it is never written to."""
    consume: Literal["tail", "catch_up"] = "tail"
    """Whether consumers read while producers write, or begin when those have ended."""
    max_wait_ms: Amount = 500
    min_bytes: Amount = 1
    max_bytes: Count = 8 << 20
    partition_max_bytes: Count = 1 << 20
    request_timeout_seconds: Seconds = 30.0
    drain_seconds: Seconds = 30.0
    """How long consumers may need for the rest after the last write."""
    client_processes: Count = 1
    # -- what is recorded
    sample_seconds: Seconds = 30.0
    trace_share: Share = 0.01
    """The share of requests that are written to `request-traces.jsonl`."""
    keep: bool = False
    """Keep the cluster up after a run."""

    @property
    def node_names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]

    @property
    def topic_partitions(self) -> list[tuple[str, int]]:
        return [
            (f"load-{topic}", partition)
            for topic in range(self.topics)
            for partition in range(self.partitions)
        ]


def load_scenario(name_or_path: str, changes: dict[str, Any]) -> Scenario:
    """Return a scenario of `scenarios/` or of a file, with `changes` instead of its fields."""
    path = Path(name_or_path)
    if path.suffix not in SUFFIXES:
        path = next((one for suffix in SUFFIXES if (one := SCENARIOS / f"{path}{suffix}").exists()), path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(scenario_names())
        raise ScenarioError(f"scenario {name_or_path}: {error.strerror}; known are {known}") from error
    fields: dict[str, Any]
    try:
        fields = tomllib.loads(text) if path.suffix == ".toml" else msgspec.json.decode(text, type=dict)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise ScenarioError(f"scenario {path}: {error}") from error
    return make_scenario({"name": path.stem, **fields, **changes})


def make_scenario(fields: dict[str, Any]) -> Scenario:
    """Check fields and add the defaults.

    >>> make_scenario({"nodes": 2, "owners": 3})
    Traceback (most recent call last):
    loadtest.cluster.scenario.ScenarioError: owners: must be at most nodes (2), got 3
    """
    try:
        scenario = msgspec.convert(fields, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(str(error)) from error
    if scenario.owners > scenario.nodes:
        raise ScenarioError(f"owners: must be at most nodes ({scenario.nodes}), got {scenario.owners}")
    if scenario.readers == "others" and scenario.owners == scenario.nodes:
        raise ScenarioError('readers: "others" needs a node that owns nothing; owners must be below nodes')
    partitions = scenario.topics * scenario.partitions
    if scenario.client_processes > partitions:
        raise ScenarioError(f"client_processes: must be at most the number of partitions ({partitions})")
    if not scenario.producers and scenario.consume == "tail" and not scenario.consumers:
        raise ScenarioError("producers: must be at least 1 when there are no consumers")
    wrong = [name for name in scenario.settings if not name.startswith("TOPICS_")]
    if wrong:
        raise ScenarioError(f"settings.{wrong[0]}: must begin with TOPICS_")
    return scenario


def scenario_names() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.iterdir() if path.suffix in SUFFIXES)
