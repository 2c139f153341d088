"""The runner's entry: replays plans on the GPU for the judge, who holds the other end of its socket.

It has inputs and room for outputs; never seeds, answers or a verdict. Whatever fails ends it: after a CUDA error the
context is dead, and a fresh process takes 0.2 s.
"""

import os
import socket
from typing import Any

import torch

from tools import wire
from tools.codec import DecodeError, decode, encode
from tools.plan.operators import NotAllowed
from tools.plan.replay import ReplayError
from tools.runner.packing import PackingError
from tools.runner.protocol import (
    Block,
    Capture,
    CopyOut,
    Done,
    Drop,
    Failed,
    Replays,
    Reply,
    Request,
    RunOnce,
    Setup,
    Steps,
)
from tools.runner.stage import Stage

FAILED_STATUS = 70
MAX_DETAIL = 2000


class Runner:
    """Answers the judge's requests, one plan at a time."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # makes the primary context, and makes it current
        torch.backends.cudnn.allow_tf32 = False  # library steps of a float32 task are float32, as the baselines are
        torch.backends.cuda.matmul.allow_tf32 = False
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stage: Stage | None = None

    def answer(self, request: Request, blobs: list[bytes]) -> Reply:
        """Do what is asked. Raises what CUDA or the plan raise."""
        if isinstance(request, Setup):
            self._drop()
            self._stage = Stage(request, blobs, self._stream)
            return Done()
        if isinstance(request, Drop):
            self._drop()
            return Done()
        if self._stage is None:
            raise ReplayError("no plan is loaded")
        return _work(self._stage, request)

    def _drop(self) -> None:
        if self._stage is not None:
            self._stage.close()
        self._stage = None


def _work(stage: Stage, request: Request) -> Reply:
    match request:
        case RunOnce():
            stage.run_once(request.turn)
        case Capture():
            stage.capture()
        case CopyOut():
            stage.copy_out()
        case Block():
            return stage.block(request.passes, request.turn)
        case Replays():
            return stage.replays(request.passes)
        case Steps():
            return stage.shares(request.passes)
    return Done()


def serve(judge: socket.socket, runner: Runner) -> None:
    """Answer until the judge closes the socket, or something fails (then exit at once)."""
    judge.settimeout(None)
    while True:
        message = wire.receive(judge)
        try:
            reply = runner.answer(decode(Request, message.body), message.blobs)  # type: ignore[arg-type]
        except (ReplayError, NotAllowed, PackingError, DecodeError) as error:
            _fail(judge, Failed(_one_line(error), refused=True))
        except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, MemoryError) as error:
            _fail(judge, Failed(f"{type(error).__name__}: {_one_line(error)}"))
        else:
            wire.send(judge, encode(reply))


def _one_line(error: BaseException) -> str:
    """The first line of what was raised: torch appends paragraphs of advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_DETAIL]


def _fail(judge: socket.socket, failure: Failed) -> None:
    wire.send(judge, encode(failure))
    os._exit(FAILED_STATUS)  # no destructors: they would touch a dead context


def main(channel: Any) -> None:
    """Entry of the worker; its first extra socket leads to the judge."""
    serve(channel.sockets[0], Runner())
