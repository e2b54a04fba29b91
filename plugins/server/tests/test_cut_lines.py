"""Tests of lines that a full disk cut in a run's journal and log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from detcore.client.http.journal import JournalListener, read_journal
from detcore.records import OutputLog, read_output_log

PROGRAM = """
import contextlib
import resource
import signal
import sys
from pathlib import Path
from detcore.records import OutputLog
from detcore.client.http.journal import JournalListener

folder = Path(sys.argv[1])
journal, log = JournalListener(folder / "journal.jsonl"), OutputLog(folder, 1)

def say(text):
    journal.notice(text)
    with contextlib.suppress(OSError):
        log.append("stdout", text)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
say("one")
resource.setrlimit(resource.RLIMIT_FSIZE, (150, most))
say("cut" * 50)
say("cut" * 50)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
say("two")
say("three")
"""


def said(folder: Path) -> tuple[list[str], list[str]]:
    """Return the readable content of the journal and of the log."""
    lines = []
    for line in read_journal(folder / "journal.jsonl", 0, most_bytes=1 << 20)[0]:
        try:
            lines.append(json.loads(line)["text"])
        except ValueError:
            continue
    return lines, [line.text for line in read_output_log(folder)[0]]


def test_lines_after_full_disk_can_be_read(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=60)
    assert said(tmp_path) == (["one", "two", "three"], ["one", "two", "three"])


def test_resumed_run_starts_new_line(tmp_path: Path) -> None:
    for name in ("journal.jsonl", "log.jsonl"):
        (tmp_path / name).write_text('{"type": "noti')
    journal, log = JournalListener(tmp_path / "journal.jsonl"), OutputLog(tmp_path, 2)
    journal.notice("one")
    log.append("stdout", "one")
    journal.close()
    log.close()
    assert said(tmp_path) == (["one"], ["one"])


def test_worker_line_is_cut_at_limit(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = JournalListener(path)
    info: Any = SimpleNamespace(trial_id=3)
    for length in (16_384, 16_385):
        journal.output(info, "stdout", "x" * length, rank=0)
    journal.close()
    lines, _ = read_journal(path, 0, most_bytes=1 << 20)
    longest = "x" * 16_384
    assert [json.loads(line)["line"] for line in lines] == [
        longest,
        f"{longest} ... (16385 characters)",
    ]
