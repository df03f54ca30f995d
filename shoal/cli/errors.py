"""An error as a person at a terminal reads it: `error:` and what happened, one line per fault, and the exit code."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from shoal import errors
from shoal.catalogue import nearest

DEBUG = "SHOAL_DEBUG"
BAD_INPUT = 2
FAILED = 1
_BAD_INPUT_STATUS = frozenset({400, 413, 422})


def report(wrong: BaseException) -> int:
    """Writes the error to stderr and answers with the exit code: 2 for bad input, 1 otherwise."""
    if os.environ.get(DEBUG):
        traceback.print_exception(wrong)
    for line in _lines(wrong):
        print(line, file=sys.stderr)
    return _exit_code(wrong)


def _exit_code(wrong: BaseException) -> int:
    if isinstance(wrong, typer.TyperException):
        return wrong.exit_code
    if isinstance(wrong, errors.BadConfig):
        return BAD_INPUT
    return BAD_INPUT if isinstance(wrong, errors.ShoalError) and wrong.status in _BAD_INPUT_STATUS else FAILED


def _lines(wrong: BaseException) -> list[str]:
    if isinstance(wrong, typer.Abort):
        return ["error: not confirmed; nothing was done"]
    if isinstance(wrong, typer.TyperException):
        return _usage(wrong)
    if isinstance(wrong, errors.BadSpec) and len(wrong.problems) > 1:
        return ["error: the job cannot be run as it is:", *(f"  {_fault(problem)}" for problem in wrong.problems)]
    if isinstance(wrong, errors.ShoalError):
        return [f"error: {wrong.message}", *_hints(wrong)]
    if isinstance(wrong, OSError):
        return [f"error: {_system(wrong)}"]
    return [f"error: {type(wrong).__name__}: {wrong}", f"hint: this is a fault in Shoal; {DEBUG}=1 shows where"]


def _usage(wrong: typer.TyperException) -> list[str]:
    message = wrong.format_message()
    if not message:  # a group without a command has printed its help already
        return []
    option = str(getattr(wrong, "option_name", ""))
    near = nearest(option, getattr(wrong, "possibilities", None) or ())
    first = (
        f"error: no such option: {option}; did you mean {near}?"
        if near
        else f"error: {message[0].lower()}{message[1:]}"
    )
    context = getattr(wrong, "ctx", None)
    hints = list(context.meta.get("shoal.hints", [])) if context is not None else []
    if context is not None:
        hints.append(f"hint: '{context.command_path} --help' shows what it takes")
    return [first, *hints]


def _fault(problem: dict[str, object]) -> str:
    field, message = problem.get("field"), problem.get("message")
    return f"{field}: {message}" if field else str(message)


def _hints(wrong: errors.ShoalError) -> list[str]:
    hint = wrong.facts.get("hint")
    return [f"hint: {hint}"] if hint else []


def _system(wrong: OSError) -> str:
    where = f": {wrong.filename}" if wrong.filename else ""
    return f"{wrong.strerror or wrong}{where}"
