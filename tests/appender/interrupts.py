"""Interrupt an append at a chosen instruction: by a signal's handler, by another thread."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType
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


# Python runs signal handlers after these, and where a function begins.
_CALLS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")


def raised(act: Callable[[], object], skip: int, error: type[BaseException]) -> bool:
    """Act, and raise an error at instant `skip` of those at which Python runs signal handlers.

    All Python code that this thread runs counts: the library's, and `threading`'s too. An error
    after a call belongs to the `try` of that call, and this raises it before the next instruction.
    So an instant between two of those does not count. `logging` does not count either: until Python
    3.13 an interrupt may leave its own lock taken.

    Returns:
        Whether there were so many instants.
    """
    passed = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        if "logging" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        before = -1  # before the first instruction

        def local(frame: Any, event: str, _: object) -> Any:
            nonlocal before, passed
            if event == "opcode":
                if _is_instant(frame.f_code, before, frame.f_lasti):
                    passed += 1
                    if passed == skip + 1:
                        sys.settrace(None)
                        raise error
                before = frame.f_lasti
            return local

        return local if event == "call" else None

    sys.settrace(trace)
    try:
        act()
    except error:
        pass
    except RuntimeError as failure:
        # `Thread.start` releases a lock that it did not acquire again.
        if not isinstance(failure.__context__, error):
            raise
    finally:
        sys.settrace(None)
    return passed > skip


@cache
def _is_instant(code: CodeType, before: int, after: int) -> bool:
    """Whether a handler may run between two instructions of a function."""
    names = {each.offset: each.opname for each in dis.get_instructions(code)}
    if before < 0 or names[before] == "RESUME":
        return names[after] not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL")
    handlers = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler(offset: int) -> int:
        return next((each.target for each in handlers if each.start <= offset < each.end), -1)

    return names[before] in _CALLS and handler(before) == handler(after)
