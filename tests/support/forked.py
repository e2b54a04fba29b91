"""Function calls in a separate process, as in another script."""

from __future__ import annotations

import ast
import os
import traceback
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def call_in_child(function: Callable[[], _Result]) -> _Result:
    """Call a function in a forked process, wait for its exit and return the result.

    Raises:
        AssertionError: If the function raised an exception, which the message contains.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, repr(function()).encode())
            code = 0
        except BaseException:  # noqa: BLE001  # the end of the process: passed on, never dropped
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, answer.decode(errors="replace")
    result: _Result = ast.literal_eval(answer.decode())
    return result
