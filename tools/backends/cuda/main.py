"""The runner's entry: replays plans on the GPU for the judge, who holds the other end of its socket.

It has inputs and room for outputs; never seeds, answers or a verdict. Whatever fails ends it: after a CUDA error the
context is dead, and a fresh process takes 0.2 s.
"""

import os
import socket
from typing import Any

import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.backends.cuda.driver import OUT_OF_MEMORY, DriverError, PackingError, shrink_kept_memory
from kerneltune.tools.backends.cuda.launcher import CudaLauncher
from kerneltune.tools.backends.cuda.memory import DeviceBuffer, NotMapped
from kerneltune.tools.backends.cuda.stage import CheckedPlan, TimedPlan
from kerneltune.tools.backends.runner_messages import (
    MAX_ROOMS,
    CopyOut,
    Done,
    Drop,
    Failed,
    GraphCapture,
    Load,
    Replays,
    Reply,
    Request,
    Resident,
    RunOnce,
    Setup,
    Steps,
    TimedBlock,
)
from kerneltune.tools.replay.replay import NotAllowed, ReplayError
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import DecodeError, decode, encode

FAILED_STATUS = 70
MAX_DETAIL = 2000


class Runner:
    """Answers the judge's requests, one plan at a time."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # makes the primary context, and makes it current
        torch.backends.cudnn.allow_tf32 = False  # library steps of a float32 task are float32, as the baselines are
        torch.backends.cuda.matmul.allow_tf32 = False
        shrink_kept_memory()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._plan: TimedPlan | CheckedPlan | None = None

    def answer(self, request: Request, blobs: list[bytes], fds: list[int]) -> Reply:
        """Do what is asked. Raises what CUDA or the plan raise."""
        if isinstance(request, Setup | Load | Drop):
            self._drop()
            if isinstance(request, Setup):
                self._plan = TimedPlan(request, blobs, fds, self._stream)
            elif isinstance(request, Load):
                self._plan = _check(request, blobs, fds)
            return Done()
        if isinstance(request, RunOnce) and isinstance(self._plan, CheckedPlan):
            self._plan.run_once(request.offsets)
            return Done()
        if isinstance(self._plan, TimedPlan):
            return _timed(self._plan, request)
        raise ReplayError("no plan is loaded for that")

    def _drop(self) -> None:
        if self._plan is not None:
            self._plan.close()
        self._plan = None


def _check(load: Load, cubins: list[bytes], fds: list[int]) -> CheckedPlan:
    images = [CompiledImage(meta, cubin) for cubin, meta in zip(cubins, load.metadata, strict=True)]
    rooms = [DeviceBuffer.open(shared, fds) for shared in load.rooms]
    return CheckedPlan(load, rooms, lambda: CudaLauncher(images, load.plan.kernels))


def _timed(stage: TimedPlan, request: Request) -> Reply:
    match request:
        case GraphCapture():
            stage.capture()
        case CopyOut():
            stage.copy_out()
        case TimedBlock():
            return stage.block(request.passes, request.turn)
        case Replays():
            return stage.replays(request.passes)
        case Resident():
            return stage.resident(request.passes)
        case Steps():
            return stage.shares(request.passes)
    return Done()


def serve(judge: socket.socket, runner: Runner) -> None:
    """Answer until the judge closes the socket, or something fails (then exit at once)."""
    judge.settimeout(None)
    while True:
        message = wire.receive(judge, max_fds=MAX_ROOMS)
        try:
            reply = _answered(runner, message)
        finally:
            message.close()
        wire.send(judge, {"token": message.body.get("token"), "reply": encode(reply)})
        if isinstance(reply, Failed):
            os._exit(FAILED_STATUS)  # no destructors: they would touch a dead context


def _answered(runner: Runner, message: wire.WireMessage) -> Reply:
    try:
        request: Request = decode(Request, message.body.get("request"))  # type: ignore[arg-type]
        return runner.answer(request, message.blobs, list(message.fds))
    except (ReplayError, NotAllowed, PackingError, DecodeError) as error:
        return Failed(_one_line(error), refused=True)
    except NotMapped as error:
        return Failed(_one_line(error), no_memory=True)
    except (DriverError, torch.OutOfMemoryError) as error:
        no_memory = not isinstance(error, DriverError) or error.code == OUT_OF_MEMORY
        return Failed(f"{type(error).__name__}: {_one_line(error)}", no_memory=no_memory)
    except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, MemoryError) as error:
        return Failed(f"{type(error).__name__}: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    """The first line of what was raised: torch appends paragraphs of advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_DETAIL]


def main(channel: Any) -> None:
    """Entry of the worker; its first extra socket leads to the judge."""
    serve(channel.sockets[0], Runner())
