"""The error of a job as one sentence that a user can act on.

Spark returns an error of the source inside the traces of a Python worker and of Java, which contain its
sentence. For any other error the first line says most.

    >>> from spark.errors import DataLoss
    >>> traced = f"[X]\\n  File\\n{DataLoss.__module__}.DataLoss: seqs 1 to 3 are gone\\n at j"
    >>> plain_sentence(ValueError(traced))
    'seqs 1 to 3 are gone'
    >>> plain_sentence(ValueError("no more\\nthan this")), plain_sentence(KeyError())
    ('no more', 'KeyError')
"""

from __future__ import annotations

import re

from spark.errors import SourceError

_SOURCE_ERROR = re.compile(rf"\b{re.escape(SourceError.__module__)}\.\w+: (.+)")
_JAVA_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ")


def plain_sentence(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, SourceError):
        return text
    sentences = _SOURCE_ERROR.findall(text)
    if sentences:
        return str(sentences[-1]).strip()
    if "An error occurred while calling" in text:
        # Py4J puts its own line before Java's message.
        text = text.partition("\n")[2].removeprefix(": ")
    return _JAVA_CLASS.sub("", (text or type(error).__name__).splitlines()[0])
