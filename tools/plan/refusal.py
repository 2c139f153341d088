"""How tracing ends when it does not end in a plan: values for the author, with a way out."""

from dataclasses import dataclass

from tools.verdict import Status


class Refused(Exception):
    """The candidate does what a plan cannot say. The message tells the author what to write instead."""


@dataclass(frozen=True)
class Failure:
    """A candidate that did not become a plan: status is rejected, compile_failed, crashed or timed_out.

    `line` is the line of the candidate's source that was running, when it is known; `ptx_lines` those of the kernel's
    PTX that the message is about.
    """

    status: Status
    message: str
    line: int | None = None
    ptx_lines: tuple[int, ...] = ()


READS_VALUE = (
    "forward reads a tensor's value on the host (`.item()`, `int(t)`, `if t:`, `.tolist()`, `.cpu()` then Python): "
    "a launch plan is fixed before the data exists. Keep the value on the device and let the kernel read it"
)
DATA_DEPENDENT_SHAPE = (
    "forward makes a tensor whose shape depends on values (nonzero, boolean indexing, unique): a launch plan needs "
    "fixed shapes. Use masks, or a padded output and a device-side count"
)
NO_LAUNCH = (
    "forward launches no kernel of yours ({ops}): nothing here was written by the candidate. Launch at least one "
    "@triton.jit kernel on every call"
)
UNUSED_LAUNCHES = (
    "its kernels' results are not used: the output {source}, and without the launches it would be the same. Return "
    "what your kernel computes"
)
CACHED_RESULT = (
    "the second forward reuses a tensor that the first one computed from its inputs: results must not be cached "
    "between calls. Compute from the arguments on every call (weights may be packed once)"
)
UNSTABLE = (
    "two traces of forward with the same shapes differ ({what}): host code must do the same launches on every call. "
    "Remove counters, randomness and call-dependent branches from the host code"
)
NOT_ALLOWED = (
    "operator {op} cannot be part of a launch plan; compute it in a kernel, or with one of torch's tensor operators"
)
UNKNOWN_OPERATOR = (
    "operator {op} has no Python body that can be traced: write it as a torch.library.custom_op or call the kernel "
    "directly"
)
COMPILED = (
    "torch.compile / torch.jit inside a candidate: TorchInductor is a baseline, not a kernel of yours. Write the "
    "Triton kernel and launch it directly"
)
BACKWARD = (
    "forward runs autograd (`backward()`, `torch.autograd.grad`): a plan is one forward. Launch the backward kernels "
    "directly"
)
POINTER_TABLE = (
    "host code puts device addresses into a tensor: a plan is replayed on other memory. Pass the tensors as arguments, "
    "or stack them into one and index it"
)
FOREIGN_TENSOR = "a kernel argument is on the {device} device; move it to the GPU with .to(x.device) first"
MISSING_MODULE = "; a candidate may import torch, triton, numpy and the standard library"
GLUON = "Gluon kernels are not supported yet: write the kernel with triton.language"
