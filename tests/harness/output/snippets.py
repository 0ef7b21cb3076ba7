"""A runner of a document's snippets: the document shows what a user gets.

The fences of one document run in order, in one shell, against one server:

* `bash`: commands. A refusal from the server, or a command that fails, is a failure.
* `console`: lines after `$ ` (continued by a backslash) are commands, the others their output.
* `python`: a program; a `text` fence directly after it is its output.

Other fences are not run. In expected output `…` is any text; values that differ between runs
are not compared. The output of `topicsd` is compared without its numbers and the width of its columns.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import urlsafe_b64decode
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[3]
SERVER = "127.0.0.1:4000"
# A stream has no end; the records that exist are sent at once.
STREAM_SECONDS = 3
TIMEOUT_SECONDS = 120

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
# Fields that hold a time, or a count that depends on batches.
_CHANGING = r"\$ts|[a-z_]*_ts|[a-z_]*_ms|deadline|until|epoch|bytes|effective_priority"
_NUMBERS = re.compile(rf'"({_CHANGING})":-?[\d.]+')
# Ids of events hold the epochs of topics, which count all that the server has created.
_EVENT_ID = re.compile(r"^id: (\S+)$", re.MULTILINE)
_EPOCHS = re.compile(r"\[(\d+),\d+\]")
_IDS = re.compile(r'"(wid|stream_url|lease_id|next_cursor)":"[^"]*"')
_INSTANTS = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_INSTANCES = re.compile(r"instance [0-9a-f]{32}")
_ANY_NUMBER = re.compile(r"\d[\d.,]*")
_PERFORMANCE = re.compile(r',"performance":\{[^{}]*\}')
_ELLIPSIS = "…"
_SHELL = f"""
curl() {{
  local argument
  for argument in "$@"; do
    if [ "$argument" = -N ]; then
      command curl --silent --max-time {STREAM_SECONDS} "$@" || [ $? = 28 ] || return
      echo; return
    fi
  done
  command curl --silent --show-error "$@"; local status=$?
  echo; return $status
}}
"""


class Snippet(NamedTuple):
    """One fence that is run; `expected` is None when its output is not shown."""

    line: int
    language: str
    code: str
    expected: str | None


def snippets_of(document: str) -> list[Snippet]:
    """Return the runnable parts of a document, command by command."""
    fences = list(_FENCE.finditer(document))
    snippets: list[Snippet] = []
    for fence, after in zip_longest(fences, fences[1:]):
        line = document.count("\n", 0, fence.start()) + 1
        language, text = fence[1], fence[2]
        if language == "console":
            snippets += _commands(line, text)
        elif language == "bash":
            snippets.append(Snippet(line, "bash", text, None))
        elif language == "python":
            is_output = (
                after is not None and after[1] == "text" and not document[fence.end() : after.start()].strip()
            )
            snippets.append(Snippet(line, "python", text, after[2] if is_output else None))
    return snippets


def _commands(line: int, text: str) -> list[Snippet]:
    """Split a console fence at its prompts.

    >>> [one[2:] for one in _commands(1, "$ echo a \\\\\\n    b\\na b\\n$ true\\n")]
    [('echo a \\\\\\n    b\\n', 'a b\\n'), ('true\\n', '')]
    """
    commands = []
    for shown in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command = re.match(r"(?:.*\\\n)*.*\n", shown)
        assert command is not None
        commands.append(Snippet(line, "console", command[0], shown[command.end() :]))
    return commands


def run_snippets(snippets: list[Snippet], port: int, folder: Path) -> list[str]:
    """Run the snippets in order and return complaints, each with the line of its fence."""
    script = _SHELL
    for one in snippets:
        code = one.code.replace(SERVER, f"127.0.0.1:{port}")
        if one.language == "python":
            code = f"python - <<'END OF PROGRAM'\n{code}END OF PROGRAM\n"
        script += f"printf '{_MARK}'\n{{\n{code}}} 2>&1; printf '{_MARK}%s' $?\n"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ.update(PATH=path, PYTHONPATH=str(PROJECT))
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    parts = ran.stdout.split(_MARK)[1:]
    outcomes = list(zip(parts[::2], parts[1::2], strict=False))
    complaints = [f"line {one.line}: was not run" for one in snippets[len(outcomes) :]]
    for one, (output, status) in zip(snippets, outcomes, strict=False):
        complaints += _compared(one, output, status)
    return complaints


def _compared(one: Snippet, output: str, status: str) -> list[str]:
    if one.expected is not None:
        is_report = one.code.startswith("topicsd ")
        is_same = is_like(output, one.expected, is_report)
        return [] if is_same else [f"line {one.line}: {one.code}shows:\n{output}"]
    if status != "0" or '{"error":' in output:
        return [f"line {one.line}: ended with {status}:\n{output}"]
    return []


def is_like(output: str, expected: str, is_report: bool = False) -> bool:
    """Compare what was printed with what a document shows.

    >>> is_like('{"$ts":17,"a":1,"performance":{"server_total_ms":0.1}}\\n\\n', '{"$ts":99,"a":1}\\n')
    True
    >>> is_like('{"a":1,"b":2}', '{"a":1,…}'), is_like('{"a":1}', '{"a":2}')
    (True, False)
    >>> is_like("FILE  SIZE\\na.log  17 B", "FILE SIZE\\na.log 5 B", is_report=True)
    True
    """
    clean = _without_layout if is_report else _without_chance
    pattern = ".*?".join(map(re.escape, clean(expected).split(_ELLIPSIS)))
    return re.fullmatch(pattern, clean(output), re.DOTALL) is not None


def _without_layout(text: str) -> str:
    """Replace times, ids and numbers, which also set the width of columns and where lines break."""
    text = _INSTANCES.sub("instance x", _INSTANTS.sub("TIME", text))
    return " ".join(_ANY_NUMBER.sub("0", text).split())


def _without_chance(text: str) -> str:
    """Replace values that differ between runs; drop measurements and blank lines."""
    text = _IDS.sub(r'"\1":"x"', _NUMBERS.sub(r'"\1":0', _PERFORMANCE.sub("", text)))
    text = _EVENT_ID.sub(_without_epochs, text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def _without_epochs(event_id: re.Match[str]) -> str:
    """Return the line of an event's id with its positions in plain text.

    >>> _without_epochs(_EVENT_ID.search("id: eyJvcmRlcnMiOlszLDhdfQ"))
    'id: {"orders":[3,0]}'
    """
    padded = event_id[1] + "=" * (-len(event_id[1]) % 4)
    positions = urlsafe_b64decode(padded).decode()
    return "id: " + _EPOCHS.sub(r"[\1,0]", positions)
