"""A frame whose one string takes four bytes a character once it is decoded: 60 MB of text become 240."""

import os
import struct
import sys

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "R62", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


def send_raw(*parts):
    """Bytes on the supervisor's socket, past the framing."""
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("channel"), "send"):
        frame = frame.f_back
    sock = frame.f_locals["channel"].control
    sock.settimeout(None)
    for part in parts:
        sock.sendall(part)


words = b"x" * (60 << 20)
head, tail = b'{"m": {"kind": "trace_reply", "plans": "\\ud83d\\ude00', b'"}, "b": []}'
send_raw(struct.pack("<Q", len(head) + len(words) + len(tail)), head, words, tail)
os._exit(0)


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
