"""`topicsd config show` prints the settings of `topicsd serve`, without secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shared.settings.settings import DECLARED
from tests.harness.output.command_run import run_command, run_here

SECRET = "hush-hush-hush-hush"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "topics.toml"
    path.write_text(f'api_keys = "{SECRET}"\nport = 3\nwal_file_bytes = "1 MiB"\nhost = "::1"\n')
    return path


def shown(*arguments: object) -> dict[str, Any]:
    ran = run_here("config", "show", "--json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    return {one["name"]: one for one in ran.json["settings"]}


def test_every_setting_is_shown_with_its_origin(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "2")
    monkeypatch.setenv("TOPICS_HOST", "::2")
    settings = shown("--config", config_file, "--port", "1", "--probe-auth")
    assert list(settings) == [field.name for field in DECLARED]
    assert (settings["port"]["value"], settings["port"]["origin"]) == (1, "--port")
    assert (settings["host"]["value"], settings["host"]["origin"]) == ("::2", "TOPICS_HOST")
    assert settings["wal_file_bytes"]["value"] == 1 << 20
    assert settings["wal_file_bytes"]["origin"] == str(config_file)
    assert (settings["fronts"]["value"], settings["fronts"]["origin"]) == (1, "default")
    assert (settings["probe_auth"]["value"], settings["probe_auth"]["origin"]) == (True, "--probe-auth")
    assert settings["drain_seconds"]["variable"] == "TOPICS_DRAIN_SECONDS"
    assert settings["drain_seconds"]["flag"] == "--drain-seconds"


def test_the_file_can_be_named_by_a_variable_and_the_flag_wins(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_CONFIG", str(config_file))
    assert shown()["port"]["value"] == 3
    other = tmp_path / "other.toml"
    other.write_text("port = 4\n")
    assert shown("--config", other)["port"]["value"] == 4


def test_the_text_is_a_table_without_secrets(config_file: Path) -> None:
    ran = run_command("config", "show", "--config", config_file, "--fronts=2")
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[0]: line for line in ran.out.splitlines()}
    assert rows["SETTING"].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert rows["wal_file_bytes"].split(maxsplit=1)[1].startswith("1 MiB ")
    assert rows["fronts"].endswith("--fronts")
    assert rows["port_file"].split() == ["port_file", "-", "default"]
    assert rows["api_keys"].split() == ["api_keys", "(set)", str(config_file)]
    assert SECRET not in ran.out


def test_the_json_contains_no_secret(config_file: Path) -> None:
    settings = shown("--config", config_file)
    assert settings["api_keys"]["value"] == "(set)"
    assert SECRET not in str(settings)
    assert "sha256" not in str(settings)


def test_a_short_key_is_warned_about() -> None:
    ran = run_here("config", "show", "--api-keys", "tiny")
    assert ran.code == 0
    assert "--api-keys: the key of entry 1 is shorter than 16 characters" in ran.err
    assert "tiny" not in ran.err + ran.out


def test_an_unknown_variable_is_warned_about_and_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_DATADIR", "/srv/topics")
    ran = run_here("config", "show")
    assert ran.code == 0
    sentence = "TOPICS_DATADIR: ignored: unknown setting, did you mean TOPICS_DATA_DIR?"
    assert f"topicsd: warning: {sentence}\n" in ran.err


@pytest.mark.parametrize("command", [["serve"], ["config", "show"]])
def test_every_wrong_setting_is_reported_and_nothing_starts(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "wrong.toml"
    path.write_text("prot = 1\n")
    monkeypatch.setenv("TOPICS_PROT", "1")
    ran = run_here(*command, "--config", path, "--port", "70000")
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.splitlines() == [
        "topicsd: 2 settings are invalid:",
        f"  {path}: prot: unknown setting, did you mean port?",
        "  --port='70000': must be from 0 to 65535",
    ]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", [["serve"], ["config", "show"]])
def test_a_mistyped_flag_is_answered_with_the_nearest_flag_without_its_value(command: list[str]) -> None:
    for wrong in (["--api-key", SECRET], [f"--api-key={SECRET}"]):
        ran = run_here(*command, *wrong)
        assert ran.code == 2
        assert "unknown option --api-key, did you mean --api-keys?" in ran.err
        assert SECRET not in ran.err


def test_an_unknown_flag_without_a_near_match_is_only_named() -> None:
    ran = run_here("serve", "--quorum", "3")
    assert ran.err.endswith("unknown option --quorum\n")


def test_an_unreadable_file_is_reported_with_the_option_that_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_here("config", "show", "--config", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    problem = f"{str(tmp_path)!r}: cannot be read: Is a directory"
    assert ran.err == f"topicsd: --config={problem}\n"
    monkeypatch.setenv("TOPICS_CONFIG", str(tmp_path / "none"))
    ran = run_here("serve")
    assert ran.code == 2
    assert ran.err.startswith(f"topicsd: TOPICS_CONFIG={str(tmp_path / 'none')!r}: cannot be read")
    assert "No such file or directory" in ran.err


@pytest.mark.parametrize("content", [b"\xff", b"port = ", b"#" * (1 << 21)])
def test_an_unusable_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    ran = run_here("config", "show", "--config", path)
    assert ran.code == 2
    assert ran.err.startswith(f"topicsd: {path}: ")
    assert len(ran.err.splitlines()) == 1
