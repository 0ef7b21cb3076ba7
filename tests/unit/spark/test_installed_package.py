from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
PARTS = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "pyspark_topicsd.py",
    "shared",
    "spark",
    "topicsd",
    "router",
)

# What PySpark does when it looks for sources (pyspark/sql/worker/lookup_data_sources.py).
LOOKUP = """
from importlib import import_module
from pkgutil import iter_modules
for info in iter_modules():
    if info.name.startswith("pyspark_"):
        source = import_module(info.name).DefaultSource
        print(info.name, source.name(), source.__module__)
import spark.source.source, spark.__main__
print(spark.source.source.__file__)
"""


@pytest.mark.slow
def test_a_wheel_of_the_project_has_what_pyspark_finds_by_itself(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in PARTS:
        if (PROJECT / part).is_dir():
            shutil.copytree(PROJECT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / part, tree / part)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, tree], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert (installed / "spark" / "java" / "bin" / "java").exists()
    assert (installed / "spark" / "java" / "NarrowReads.java").exists()
    assert (installed / "spark" / "examples" / "first_steps.py").exists()
    # As plain folders: the reference to this tree that is installed here does not count.
    environ = {"PYTHONPATH": f"{installed}:{sysconfig.get_path('purelib')}"}
    python = getattr(sys, "_base_executable", sys.executable)
    ran = subprocess.run([python, "-c", LOOKUP], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (
        f"pyspark_topicsd topicsd spark.source.source\n{installed}/spark/source/source.py\n",
        "",
    )


@pytest.mark.parametrize("error", ["ImportError('no numpy')", "AttributeError('_ARRAY_API not found')"])
def test_a_package_that_cannot_be_imported_hides_no_other_source(tmp_path: Path, error: str) -> None:
    (tmp_path / "spark" / "source").mkdir(parents=True)
    (tmp_path / "spark" / "source" / "source.py").write_text(f"raise {error}")
    shutil.copy(PROJECT / "pyspark_topicsd.py", tmp_path)
    message = "import pyspark_topicsd; print(hasattr(pyspark_topicsd, 'DefaultSource'))"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.'); {message}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.stderr) == ("False\n", "")
