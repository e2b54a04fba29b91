"""Tests of the tool that counts the functions on a data path."""

from __future__ import annotations

import re
import subprocess
import sys

from source_tree import ROOT


def test_walk_of_a_metric_counts_its_functions() -> None:
    command = [sys.executable, str(ROOT / "tools" / "walks.py"), "--list", "metric"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert re.match(r"metric +\d+ modules +\d+ functions\n", text)
    assert "detcore.core.train_context TrainContext.report_validation_metrics\n" in text
    assert "    detcore.records.metric_queries insert_metrics\n" in text
