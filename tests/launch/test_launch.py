"""``detcore launch`` on one machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest
from launch_command import Launch
from processes import all_command_lines, is_running, wait_until_gone

TELL = """
import os
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
print(*(os.environ["DETCORE_" + name] for name in names), os.environ["DETCORE_JOB_KEY"])
"""
# Reports that it is ready, then waits for a signal. Each test defines the handler.
WAIT = """
import os, signal, sys, time
from pathlib import Path
rank = int(os.environ["DETCORE_RANK"])
{handler}
Path(f"ready-{{rank}}.part").write_text(str(os.getpid()))
Path(f"ready-{{rank}}.part").rename(f"ready-{{rank}}")
time.sleep(600)
"""


def start_waiting(
    launch: Launch, count: int, handler: str, *options: str
) -> tuple[subprocess.Popen[str], list[int]]:
    """Start workers that wait for a signal; return when they are ready, with their processes."""
    script = launch.script(WAIT.format(handler=handler))
    process = launch.start(*options, "-n", count, "--", "python", script)
    return process, [int(path.read_text()) for path in launch.wait_for_files("ready-?", count)]


def test_workers_get_ranks_and_a_new_key(launch: Launch) -> None:
    script = launch.script(TELL)
    keys = set()
    for _ in range(2):
        finished = launch("-n", 3, "--", "python", script)
        assert finished.returncode == 0, finished.stderr
        lines = sorted(finished.stdout.splitlines())
        assert [line.rpartition(" ")[0] for line in lines] == [
            f"[rank={rank}] {rank} 3 {rank} 3 0 1" for rank in range(3)
        ]
        (key,) = {line.rpartition(" ")[2] for line in lines}
        assert len(key) == 64
        keys.add(key)
    assert len(keys) == 2


def test_outer_job_variables_are_not_inherited(launch: Launch) -> None:
    launch.variables = {"RANK": "3", "WORLD_SIZE": "4", "HOROVOD_RANK": "3", "SLURM_PROCID": "3"}
    launch.variables["DETCORE_JOB_KEY"] = "old"
    source = "import os; print(sorted(set(os.environ) & {'RANK', 'HOROVOD_RANK', 'SLURM_PROCID'}))"
    finished = launch("-n", 1, "--", "python", "-c", source)
    assert finished.stdout == "[rank=0] []\n"
    finished = launch("-n", 1, "--", "python", launch.script(TELL))
    assert "old" not in finished.stdout


def test_workers_share_cores_by_default(launch: Launch) -> None:
    names = ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"]
    source = f"import os; print(*(int(os.environ[name]) for name in {names}))"
    launch.variables = {"OMP_NUM_THREADS": "7"}
    finished = launch("-n", 64, "--", "python", "-S", "-c", source)
    assert finished.stdout.count("] 7 1\n") == 64, finished.stderr


@pytest.mark.cold
def test_key_is_on_no_command_line(launch: Launch) -> None:
    handler = 'Path(f"key-{rank}").write_text(os.environ["DETCORE_JOB_KEY"])'
    process, _ = start_waiting(launch, 2, handler, "--launcher", "horovod")
    keys = [path.read_text() for path in launch.wait_for_files("key-?", 2)]
    lines = all_command_lines()
    assert "worker0.py" in lines
    assert keys[0] == keys[1]
    assert keys[0] not in lines
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def test_killed_worker_ends_the_job_with_its_code(launch: Launch) -> None:
    # The other workers ignore SIGTERM, like programs that are blocked in a library.
    handler = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process, pids = start_waiting(launch, 3, handler)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 50
    assert process.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL; ending the others" in stderr
    assert not any(map(is_running, pids))


def test_exit_code_is_that_of_first_failure(launch: Launch) -> None:
    source = """
import os, sys, time
from pathlib import Path
rank = int(os.environ["DETCORE_RANK"])
try:
    if rank == 1:
        Path("pid.part").write_text(str(os.getpid()))
        Path("pid.part").rename("pid")
    if rank == 2:
        while not Path("pid").exists():
            time.sleep(0.01)
        # Until the exit of rank 1 was noticed.
        while Path("/proc", Path("pid").read_text()).exists():
            time.sleep(0.01)
    if rank == 0:
        time.sleep(600)
finally:
    sys.exit(10 + rank)
"""
    finished = launch("-n", 3, "--", "python", launch.script(source))
    assert finished.returncode == 11
    assert "rank 1 ended with exit code 11" in finished.stderr


@pytest.mark.parametrize(("codes", "expected"), [("0 75", 75), ("75 0", 75), ("75 75", 75)])
def test_code_75_is_not_a_failure(launch: Launch, codes: str, expected: int) -> None:
    source = """
import os, sys, time
rank = int(os.environ["DETCORE_RANK"])
time.sleep(rank * 1.0)
print("done")
sys.exit(int(sys.argv[1].split()[rank]))
"""
    finished = launch("-n", 2, "--", "python", launch.script(source), codes)
    assert finished.returncode == expected
    assert finished.stdout.count("done") == 2
    assert finished.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT])
def test_signal_reaches_every_worker(launch: Launch, number: signal.Signals) -> None:
    handler = f"""
def end(number, frame):
    print("got", number, flush=True)
    sys.exit(75)
signal.signal({int(number)}, end)
"""
    process, _ = start_waiting(launch, 3, handler)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert sorted(stdout.splitlines()) == [f"[rank={r}] got {int(number)}" for r in range(3)]


def test_interrupt_ends_workers_without_handler(launch: Launch) -> None:
    process, _ = start_waiting(launch, 2, "")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in stderr


def test_second_interrupt_kills_workers(launch: Launch) -> None:
    handler = "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))"
    process, pids = start_waiting(launch, 2, handler)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert [process.stdout.readline().rpartition("] ")[2] for _ in pids] == ["no\n"] * 2
    assert all(map(is_running, pids))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL


def test_killed_launcher_leaves_no_worker(launch: Launch) -> None:
    handler = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(f"child-{rank}").write_text(str(child.pid))
"""
    process, pids = start_waiting(launch, 2, handler)
    pids += [int(path.read_text()) for path in launch.wait_for_files("child-?", 2)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert wait_until_gone(pids, timeout_s=30) == []


@pytest.mark.cold
def test_worker_that_kills_launcher_is_ended(launch: Launch) -> None:
    source = "kill -9 $PPID; echo $$ > pid.part; mv pid.part pid; sleep 600"
    process = launch.start("-n", 1, "--", "sh", "-c", source)
    process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not (launch.tmp_path / "pid").exists():
        if not any(source in line for line in all_command_lines()):
            return
        time.sleep(0.05)
    assert wait_until_gone([int((launch.tmp_path / "pid").read_text())], timeout_s=30) == []


def test_lines_of_workers_are_not_mixed(launch: Launch) -> None:
    source = """
import os, sys
rank = os.environ["DETCORE_RANK"]
for index in range(2000):
    stream = (sys.stdout, sys.stderr)[index % 2]
    for part in (rank, ":", str(index), ":", rank * 300, "\\n"):
        stream.write(part)
        stream.flush()
sys.stdout.write("no end of line")
"""
    finished = launch("-n", 4, "--", "python", launch.script(source))
    assert finished.returncode == 0
    for stream, parity in ((finished.stdout, 0), (finished.stderr, 1)):
        seen_lines: dict[str, list[int]] = {}
        for line in stream.splitlines():
            if "no end of line" in line:
                continue
            match = re.fullmatch(r"\[rank=(\d)\] (\d):(\d+):(\d+)", line)
            assert match is not None, line
            assert match[1] == match[2]
            assert match[4] == match[1] * 300
            seen_lines.setdefault(match[1], []).append(int(match[3]))
        assert seen_lines == {str(rank): list(range(parity, 2000, 2)) for rank in range(4)}
    assert finished.stdout.count("] no end of line\n") == 4


def test_torch_gets_variables_and_a_reserved_port(launch: Launch) -> None:
    source = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(rank), str(size))
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    time.sleep(0.5)
    with socket.create_server(("", address[1])) as server:
        for _ in range(size - 1):
            server.accept()[0].sendall(b"met")
else:
    for _ in range(1200):
        try:
            print(socket.create_connection(address).recv(3).decode())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""
    finished = launch("--launcher", "torch", "-n", 3, "--", "python", launch.script(source))
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[rank=1] met", "[rank=2] met"]


def test_closed_output_ends_the_job(launch: Launch) -> None:
    source = "import time\nfor i in range(10**6): print(i, flush=True); time.sleep(0.001)"
    process = launch.start("-n", 2, "--", "python", launch.script(source))
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", 2], "missing COMMAND, such as"),
        (["--", "python", "x.py"], "missing the number of workers: -n N"),
        (["-n", 0, "--", "true"], "0 is not in the range 1<=x<=65536"),
        (["-n", 2, "--lancher", "torch", "--", "true"], "--launcher"),
        (["-n", 2, "--launcher", "mpi", "--", "true"], "'horovod', 'local', 'torch'"),
        (["-n", 2, "--", "pythn", "x.py"], "program not found: 'pythn'.\nGive its path"),
        (["-n", 2, "--", "/no/such"], "The file is missing or not executable"),
    ],
)
def test_invalid_command_line_exits_with_2(
    launch: Launch, arguments: list[object], message: str
) -> None:
    finished = launch(*arguments)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_script_without_python_gets_a_hint(launch: Launch) -> None:
    script = launch.script(TELL)
    finished = launch("-n", 2, "--", script.name)
    assert finished.returncode == 2
    assert f"write: -- python {script.name}" in finished.stderr
