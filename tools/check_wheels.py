"""Run the quick start with installed wheels, in a directory without the sources.

``python tools/check_wheels.py EXAMPLE`` is run by ``nox -s installed``. EXAMPLE is a directory of
``examples``: ``core_api`` is a script that is interrupted and resumed, the others are trials.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
EXIT_TEMPFAIL = 75
TIMEOUT_S = 600.0


def main(example: str) -> None:
    """Check where detcore is imported from, and run the example."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["DETCORE_HOME"] = f"{name}/home"
        os.chdir(shutil.copytree(EXAMPLES / example, f"{name}/example"))
        check_location()
        run("detcore", "plugins", "doctor")
        if example == "core_api":
            interrupt_and_resume("sklearn_loop.py", "--steps", "5000")
        else:
            run("detcore", "run", "const.yaml")
        listing = run("detcore", "experiment", "list", "--json")
    states = [experiment["state"] for experiment in json.loads(listing)["experiments"]]
    if states != ["COMPLETED"]:
        sys.exit(f"the experiment did not complete: {listing}")
    print(f"{example}: completed on Python {sys.version.split()[0]}")


def check_location() -> None:
    """Fail if detcore is imported from the sources."""
    location = run("python", "-c", "import detcore; print(detcore.__file__)").strip()
    if "site-packages" not in location:
        sys.exit(f"detcore is imported from {location}, not from an installed wheel")


def run(*command: str) -> str:
    """Return the standard output of a command that has to succeed."""
    print("$", *command, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def interrupt_and_resume(*script: str) -> None:
    """Interrupt a script after its first checkpoint, and run it again to its end."""
    print("$", *script, "(interrupted)", flush=True)
    process = subprocess.Popen(["python", *script])
    deadline = time.monotonic() + TIMEOUT_S
    while not list(Path(os.environ["DETCORE_HOME"]).rglob("manifest.json")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit(f"{script[0]} saved no checkpoint; its exit code is {process.wait()}")
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    if (code := process.wait(TIMEOUT_S)) != EXIT_TEMPFAIL:
        sys.exit(f"{script[0]} ended with exit code {code} after SIGINT, not {EXIT_TEMPFAIL}")
    run("python", *script)


if __name__ == "__main__":
    main(sys.argv[1])
