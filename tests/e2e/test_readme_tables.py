"""The tables of the README about topics and refusals say what the code has, all of it."""

from __future__ import annotations

import json
import re

import msgspec

from shared.contract.errors import STATUS
from shared.contract.topic_config import TopicConfig
from tests.harness.command_run import PROJECT

README = (PROJECT / "README.md").read_text(encoding="utf-8")


def rows(title: str, heading: str) -> list[list[str]]:
    """The cells of a table, below its first heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## )", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    table = re.search(rf"^\| {heading} \|.*?\n\|---.*?\n(.*?)\n\n", found[1], re.DOTALL | re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def test_every_setting_of_a_topic_is_told_with_its_default() -> None:
    section = "Topics, and what is answered"
    told = {name.strip("`"): json.loads(default.strip("`")) for name, default, _ in rows(section, "field")}
    defaults = msgspec.to_builtins(TopicConfig())
    of_queues = re.search(r"^Queues have (.*?) too\.$", README, re.MULTILINE)
    assert of_queues is not None
    queue_fields = set(re.findall(r"`(\w+)`", of_queues[1]))
    assert told == {name: value for name, value in defaults.items() if name not in queue_fields}
    assert queue_fields < set(defaults)


def test_every_code_of_a_refusal_is_told_with_its_status() -> None:
    told: dict[str, set[int]] = {}
    for statuses, codes, _ in rows("Topics, and what is answered", "status"):
        for code in re.findall(r"`(\w+)`", codes):
            told[code] = {int(status) for status in statuses.split(",")}
    assert told.keys() == STATUS.keys()
    assert [code for code, statuses in told.items() if STATUS[code] not in statuses] == []
