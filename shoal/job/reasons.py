"""Why something happened to a job: a closed set. Each knows whose fault it is, if a retry can help and what to tell."""

from __future__ import annotations

from enum import Enum, StrEnum


class Fault(StrEnum):
    NOBODY = "nobody"
    USER = "user"  # the script, its arguments or its limits
    INFRASTRUCTURE = "infrastructure"  # a node, a process that vanished, a port, a disk
    POLICY = "policy"  # a rule or a person ended it


class Reason(Enum):
    """value = (code, fault, advice). Only what is the infrastructure's fault is tried again unasked."""

    ADMITTED = ("admitted", Fault.NOBODY, "It waits for its turn; 'shoal why JOB' says what for.")
    BACKOFF = ("backoff", Fault.NOBODY, "It is tried again after a pause.")
    PLACED = ("placed", Fault.NOBODY, "Its processes are being started.")
    RUNNING = ("running", Fault.NOBODY, "Follow it with 'shoal logs --follow JOB'.")
    COMPLETED = ("completed", Fault.NOBODY, "Fetch what it wrote with 'shoal get JOB'.")
    EXIT_CODE = (
        "exit_code",
        Fault.USER,
        "Read its last lines with 'shoal logs JOB --rank RANK --tail 50'; 'retry_on: any' retries it.",
    )
    PYTHON_ERROR = (
        "python_error",
        Fault.USER,
        "The script raised; the traceback ends the rank's log. Mend it and run it again.",
    )
    CRASHED = (
        "crashed",
        Fault.USER,
        "A native crash (segmentation fault, abort): run it once with PYTHONFAULTHANDLER=1 to see where.",
    )
    COMMAND_MISSING = (
        "command_missing",
        Fault.USER,
        "The program could not be started: check its name, that it is executable and that it is on PATH of the node.",
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        Fault.USER,
        "It went over its memory: ask for more with --memory, or use a smaller batch.",
    )
    INPUT_MISSING = (
        "input_missing",
        Fault.USER,
        "An input could not be brought to the node: check 'inputs:' with 'shoal data ls'.",
    )
    ENVIRONMENT_FAILED = (
        "environment_failed",
        Fault.USER,
        "What it runs in could not be had: mend what 'environment' names; 'shoal logs JOB' has all that was said.",
    )
    KILLED = (
        "killed",
        Fault.INFRASTRUCTURE,
        "Something outside Shoal killed the process (the system's out-of-memory killer, a person): see the node's log.",
    )
    SHEPHERD_LOST = (
        "shepherd_lost",
        Fault.INFRASTRUCTURE,
        "The process that watches the ranks on a node vanished; if it happens again look at that node.",
    )
    START_FAILED = (
        "start_failed",
        Fault.INFRASTRUCTURE,
        "The engine could not start the gang: 'shoal doctor' and the server's log say more.",
    )
    JOIN_TIMEOUT = (
        "join_timeout",
        Fault.INFRASTRUCTURE,
        "Not all nodes reported in time: check that they reach the server's address.",
    )
    PORT_CLASH = (
        "port_clash",
        Fault.INFRASTRUCTURE,
        "A port was taken by another program; fresh ones are used next time.",
    )
    DISK_FULL = (
        "disk_full",
        Fault.INFRASTRUCTURE,
        "A disk is full: 'shoal doctor' shows which; free room and clone the job.",
    )
    USER_STOP = ("user_stop", Fault.POLICY, "Submit it again with 'shoal clone JOB'.")
    MAX_DURATION = ("max_duration", Fault.POLICY, "It reached 'max_duration': raise it, or save and resume.")
    OVERRUN = (
        "overrun",
        Fault.POLICY,
        "It ran over its estimate: raise 'estimate', or set 'on_overrun: alert'.",
    )

    def __init__(self, code: str, fault: Fault, advice: str) -> None:
        self.code = code
        self.fault = fault
        self.advice = advice

    @property
    def retryable(self) -> bool:
        return self.fault is Fault.INFRASTRUCTURE

    @classmethod
    def of(cls, code: str) -> Reason:
        return _BY_CODE[code]


_BY_CODE = {reason.code: reason for reason in Reason}
