"""Tests that a warm forked process ends like a normal process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import warm_python

ENDS = {
    "by itself": "print('done', end='')",
    "with a code": "import sys; print('three'); sys.exit(3)",
    "with a negative code": "import sys; sys.exit(-1)",
    "with a large code": "import sys; sys.exit(259)",
    "with nothing": "import sys; sys.exit(None)",
    "with words": "import sys; sys.exit('what went wrong')",
    "with an exception": "raise ValueError('what went wrong')",
    "with an interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "after its functions": "import atexit; atexit.register(print, 'at exit'); raise SystemExit(4)",
    "after its threads": (
        "import threading, time\n"
        "def work(): time.sleep(0.2); print('thread')\n"
        "threading.Thread(target=work).start()\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "print('main')"
    ),
    "with a file that it left open": "file = open('left', 'w'); file.write('written'); code = 1",
    "without a reader": "import os, sys; os.close(1); print('lost')",
    "with an object that speaks": (
        "class Speaks:\n    def __del__(self): print('gone')\nkept = Speaks(); kept.itself = kept"
    ),
}


def end_of(script: Path) -> tuple[int, str, list[str], list[str]]:
    result = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True
    )
    texts = [path.read_text() for path in script.parent.glob("left")]
    return result.returncode, result.stdout, result.stderr.splitlines()[-1:], texts


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_a_cold_one(how: str, tmp_path: Path) -> None:
    ends = []
    for name in ("warm", "cold"):
        folder = tmp_path / name
        folder.mkdir()
        script = folder / "ends.py"
        script.write_text(ENDS[how])
        if name == "warm":
            ends.append(end_of(script))
        else:
            with warm_python.cold():
                ends.append(end_of(script))
    assert ends[0] == ends[1]


def test_a_script_is_warm(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    script = tmp_path / "imported.py"
    script.write_text("import sys; print('sqlalchemy' in sys.modules, end='')")
    assert end_of(script)[:2] == (0, str(not pytestconfig.getoption("--cold")))
