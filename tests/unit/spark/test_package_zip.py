from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from spark.package_zip import write_zip

TRY = """
import sys
sys.path.insert(0, sys.argv[1])
import pyspark_topicsd, shared.runtime.clock, spark.package_zip
print(pyspark_topicsd.__all__, spark.package_zip.__file__)
"""


def test_the_zip_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    write_zip(str(first))
    write_zip(str(second))
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert {
        "pyspark_topicsd.py",
        "spark/source/source.py",
        "spark/jobs/export.py",
        "shared/runtime/clock.py",
    } < set(names)
    assert [name for name in names if not name.endswith(".py")] == ["spark/java/NarrowReads.java"]


def test_a_python_without_anything_else_can_import_it_and_has_no_source(tmp_path: Path) -> None:
    package = tmp_path / "topicsd.zip"
    write_zip(str(package))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TRY, package], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == (f"[] {package}/spark/package_zip.py\n", "")
