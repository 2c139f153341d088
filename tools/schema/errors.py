"""The exception tree: our own failures, never a candidate's (those are values, see `tools.schema.verdict`).

KerneltuneError
├── UsageError            bad input from a person: one clear line, exit code 2
│   ├── Unfit             this machine lacks something that was asked for (no GPU, no package): exit code 3
│   │   └── Unconfined    … namely what confines LLM-written code, and nobody allowed it to run regardless
│   ├── TaskError         an unknown task, a task file that does not load, a reference that fails
│   │   ├── OutOfMemory   … namely because the memory does not hold it
│   │   └── JudgeKilled   … namely because its judge was killed: by the system, when memory ran out, or by somebody
│   ├── CannotPackage     a kernel that no file can hold which is to be put into a model
│   └── StoreError        an unwritable runs directory, a database of a newer schema; caused by a full disk: exit code 3
├── WorkerError           one of our child processes died or spoke nonsense
│   └── WorkerTimeout     … or did not answer within its limit
├── GpuLost               the GPU stopped answering; the run ends, nothing is lost
└── LlmError              a model could not be asked (agent.models.errors, where its kinds are)
"""

import errno
from typing import TypeGuard


class KerneltuneError(Exception):
    """Root of every failure that is ours."""


class UsageError(KerneltuneError):
    """Bad input from a person; the message names the value and the way out."""


class Unfit(UsageError):
    """This machine, or this environment, lacks what was asked for; the message says how to get it."""


class Unconfined(Unfit):
    """A worker for hostile code reports that it is not confined, and unconfined workers were not allowed."""


class TaskError(UsageError):
    """A task that is unknown, does not load, or whose reference fails."""


class CaseFailed(TaskError):
    """A task whose code fails with the sizes of one `case`: "main" where forward fails, another where anything does."""

    def __init__(self, message: str, case: str) -> None:
        super().__init__(message)
        self.case = case


class OutOfMemory(TaskError):
    """A reference that needs more memory than there is. `asked_for` as the allocator says it ("12.00 GiB"), or ""."""

    def __init__(self, message: str, asked_for: str = "") -> None:
        super().__init__(message)
        self.asked_for = asked_for


class JudgeKilled(TaskError):
    """A judge that SIGKILL ended, which the task may have brought about, or something else on its machine."""


class CannotPackage(UsageError):
    """A kernel that no file can hold which is to be put into a model; the message says why."""


class StoreError(UsageError):
    """A runs directory or database that cannot be used."""


class WorkerError(KerneltuneError):
    """A child process of ours died without an answer."""

    def __init__(self, message: str, *, exit_status: int | None = None, log: str = "") -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.log = log


class WorkerTimeout(WorkerError):
    """A child process of ours did not answer within its limit and was killed."""


class GpuLost(KerneltuneError):
    """The GPU does not answer to a fresh process."""


NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # on a disk that is full, at a quota or limit
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN} | NO_ROOM


def is_shortage(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether descriptors, memory, processes or the disk are short, which is no fault of the program's."""
    return isinstance(error, OSError) and error.errno in _SHORT
