"""Statements of the documents about the project and other programs are true or well-formed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from shared.settings.settings import DECLARED, settings_table
from shared.settings.sources import ConfigFile, load_settings
from spark.jobs.command_line import parse
from topicsd.__main__ import main

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
PAGES = {
    path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8")
    for path in [README, PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
}
README_LINES_MAX = 80
# Their commands need root, another machine or a network, replace this environment, or never end.
NOT_RUN = {
    "README.md",
    "docs/quickstart.md",
    "docs/guides/browsers.md",
    "docs/develop/adding-a-setting.md",
    "docs/develop/dependencies.md",
    "docs/ops/backup.md",
    "docs/ops/install.md",
    "docs/ops/reshard.md",
    "docs/ops/reverse-proxy.md",
    "docs/ops/systemd.md",
    "docs/spark/cluster.md",
}
# Variables that are not settings: the path of the file, Spark's key, the test length, and a prefix.
OTHER_VARIABLES = {"TOPICS_CONFIG", "TOPICS_API_KEY", "TOPICS_TEST_DEEP", "TOPICS_NAME"}
PROGRAMS = {"topicsd": main, "python -m spark": parse}


def fences(page: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGES[page], re.MULTILINE | re.DOTALL)


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if fences(page, language)]


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table of a page whose first heading is this."""
    match = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGES[page], re.MULTILINE)
    assert match is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines()]


def test_the_table_of_settings_is_generated_by_the_code() -> None:
    page = PAGES["docs/ops/configuration.md"]
    match = re.search(r"<!-- settings: .*? -->\n\n(.*?)\n<!-- end of settings -->", page, re.DOTALL)
    assert match is not None
    assert match[1] + "\n" == settings_table()


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= README_LINES_MAX


def test_the_classes_of_durability_are_the_same_everywhere() -> None:
    assert table("README.md", "class") == table("docs/concepts.md", "class")


def test_the_numbers_of_the_readme_match_the_named_run() -> None:
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


def test_the_diagram_is_well_formed_and_described() -> None:
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


def test_every_variable_that_a_document_names_exists() -> None:
    known = {field.variable for field in DECLARED} | OTHER_VARIABLES
    named = {
        (page, variable)
        for page, text in PAGES.items()
        for variable in re.findall(r"\bTOPICS_[A-Z_]*[A-Z]\b(?!_)", text)
    }
    assert len(named) > 60
    assert {one for one in named if one[1] not in known} == set()


def test_every_metric_that_a_document_names_is_described() -> None:
    described = set(re.findall(r"`(topics_\w+)`", PAGES["docs/api/health-and-metrics.md"]))
    named = {(page, name) for page, text in PAGES.items() for name in re.findall(r"\btopics_\w+", text)}
    assert {one for one in named if one[1] not in described} == set()


@pytest.mark.parametrize("program", ["topicsd", "python -m spark"])
def test_every_flag_that_a_document_names_exists(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    named: dict[str, set[str]] = {}
    for text in PAGES.values():
        for command, rest in re.findall(rf"\b{program} ([a-z]+)\b([^\n`|#]*)", text):
            named.setdefault(command, set()).update(re.findall(r" (--[a-z-]+)", rest))
    assert len(named) >= 5
    for command, flags in named.items():
        with pytest.raises(SystemExit):
            PROGRAMS[program]([command, "--help"])
        shown = capsys.readouterr().out
        assert [flag for flag in flags if flag not in shown] == [], command


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_browser_example_has_valid_syntax(tmp_path: Path) -> None:
    (text,) = fences("docs/guides/watching.md", "js")
    (tmp_path / "page.js").write_text(text)
    checked = subprocess.run(["node", "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert checked.stderr == ""
