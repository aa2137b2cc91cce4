"""What comes in the middle of an append: a signal's handler, another thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def interrupted(
    act: Callable[[], object],
    function: str,
    skip: int,
    come: Callable[[], object],
    where: str = "sparkwal/appender",
) -> bool:
    """Act; `come` is called once, before instruction `skip` of a function of these modules.

    It may raise, as a signal's handler may. Returns whether it came.
    """
    passed = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal passed
        code = frame.f_code
        if code.co_name != function or where not in code.co_filename:
            return trace if event == "call" else None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == skip + 1:
                sys.settrace(None)
                come()
                return None
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)
    return passed > skip
