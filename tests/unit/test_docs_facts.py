"""What the documents state about the project and about other programs is true, or at least well-formed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from shared.settings.settings import settings_table
from shared.settings.sources import ConfigFile, load_settings

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
PAGES = {
    path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8")
    for path in [README, PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
}
README_LINES_MAX = 80
# Their commands need root, another machine or a network, replace this environment, or do not end.
NOT_RUN = {
    "README.md",
    "docs/quickstart.md",
    "docs/develop/adding-a-setting.md",
    "docs/develop/dependencies.md",
    "docs/ops/backup.md",
    "docs/ops/install.md",
    "docs/ops/reverse-proxy.md",
    "docs/ops/systemd.md",
    "docs/spark/cluster.md",
}


def fences(page: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGES[page], re.MULTILINE | re.DOTALL)


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if fences(page, language)]


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table of a page whose first heading is this."""
    found = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGES[page], re.MULTILINE)
    assert found is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def test_the_table_of_settings_is_the_one_that_the_code_makes() -> None:
    page = PAGES["docs/ops/configuration.md"]
    found = re.search(r"<!-- settings: .*? -->\n\n(.*?)\n<!-- end of settings -->", page, re.DOTALL)
    assert found is not None
    assert found[1] + "\n" == settings_table()


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= README_LINES_MAX


def test_the_classes_of_durability_are_the_same_everywhere() -> None:
    assert table("README.md", "class") == table("docs/concepts.md", "class")


def test_the_numbers_of_the_readme_are_those_of_the_run_that_it_names() -> None:
    named = re.search(r"Run `([^`]+)`", PAGES["README.md"])
    assert named is not None
    results = (PROJECT / "loadtest" / "results" / "bench.jsonl").read_text().splitlines()
    (run,) = (run for run in map(json.loads, results) if run["at"] == named[1])
    lines = {line["title"]: line for line in run["lines"]}
    rows = table("README.md", "load")
    assert len(rows) >= 5
    for title, rate, p99 in rows:
        number, _, unit = rate.partition(" ")
        line = lines[title]
        assert line["unit"] == unit
        assert float(number.replace(",", "")) == pytest.approx(line["value"], rel=0.005), title
        assert p99.endswith(" ms")
        assert float(p99.removesuffix(" ms")) == pytest.approx(line["p99_us"] / 1000, rel=0.02), title


def test_commands_are_left_out_of_the_tests_only_where_they_cannot_run() -> None:
    assert set(pages_with("sh")) == NOT_RUN


@pytest.mark.parametrize("page", pages_with("toml"))
def test_a_configuration_file_is_accepted(page: str) -> None:
    for text in fences(page, "toml"):
        assert load_settings({}, {}, ConfigFile(page, text)).settings.api_keys


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_a_configuration_of_prometheus_is_yaml_with_our_path(page: str) -> None:
    (text,) = fences(page, "yaml")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["metrics_path"] == "/v0/metrics"


def test_the_configuration_of_nginx_is_balanced_and_every_directive_ends() -> None:
    (text,) = fences("docs/ops/reverse-proxy.md", "nginx")
    words = re.sub(r'"[^"]*"', "text", text)
    depth = 0
    for statement, end in re.findall(r"([^;{}]*)([;{}])", words):
        depth += {"{": 1, "}": -1, ";": 0}[end]
        assert depth >= 0
        assert bool(statement.strip()) is (end != "}"), statement
        assert "\n" not in statement.strip(), statement
    assert depth == 0


def test_the_configuration_of_caddy_is_balanced() -> None:
    (text,) = (one for one in fences("docs/ops/reverse-proxy.md", "text") if "reverse_proxy" in one)
    assert text.count("{") == text.count("}") == 3


def test_the_picture_is_well_formed_and_described() -> None:
    root = ElementTree.parse(PROJECT / "docs" / "overview.svg").getroot()
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"title", "desc", "style"} <= names
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
    assert re.search(r"!\[[^\]]{20,}\]\(docs/overview\.svg\)", PAGES["README.md"])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_link_of_a_page_outside_the_site_leads_to_a_file(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page])
    assert targets
    assert [target for target in targets if not (PROJECT / target).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_path_of_a_machine_is_in_a_document(page: str) -> None:
    assert not re.search(r"/(home|root|tmp|work|Users)/", PAGES[page])
