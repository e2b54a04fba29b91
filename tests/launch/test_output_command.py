"""Complete lines and readable progress bars of several workers."""

from __future__ import annotations

from launch_command import Launch
from processes import run_python

BAR = """
import os, sys, time
for i in range(200):
    sys.stderr.write(f"\\r{i:3}%|{'#' * (i // 5)}")
    sys.stderr.flush()
    if i % 50 == 10:
        print("line", i, flush=True)
    time.sleep(0.002)
sys.stderr.write("\\rdone    \\n")
"""


def test_log_gets_final_bar_state_and_lines(launch: Launch) -> None:
    finished = launch("-n", 2, "--", "python", launch.script(BAR))
    assert sorted(finished.stderr.splitlines()) == ["[rank=0] done    ", "[rank=1] done    "]
    assert finished.stdout.count("] line ") == 8
    assert "\r" not in finished.stdout + finished.stderr


def test_launch_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom detcore.cli import main\n"
        "try: main(['launch', '--help'])\nexcept SystemExit: pass\n"
        "print('HEAVY', sorted({'numpy', 'rich', 'pydantic', 'sqlalchemy'} & set(sys.modules)))"
    )
    assert "HEAVY []" in run_python(code)
