"""How many terms can a sum of the reference have? The tolerance grows with its square root. And: does the reference
exponentiate differences, so that a roundoff of large operands may change which term wins?"""

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tools.judge import flops
from tools.judge.tree import Tree, numel, tensors

# Operators that move or make values and have no tag that says so; whatever is not known may add something up.
_MOVES = frozenset(
    "_to_copy arange cat constant_pad_nd copy_ detach embedding empty empty_like empty_strided eye fill_ flip full "
    "full_like gather glu index index_select masked_select native_dropout new_empty new_full new_ones new_zeros ones "
    "ones_like _prelu_kernel repeat roll scalar_tensor scatter slice_scatter stack take tril triu zero_ zeros "
    "zeros_like".split()
)

_SATURATING = frozenset(
    "_softmax _log_softmax exp exp2 expm1 logsumexp sigmoid tanh _scaled_dot_product_attention_math "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention".split()
)


_SOFTMAX = frozenset(name for name in _SATURATING if "softmax" in name or "attention" in name) | {"logsumexp"}
_MAXIMA = frozenset(("amax", "max", "maximum"))


class Lengths(contextlib.ExitStack):
    """Watches a run of the reference; afterwards `longest` says how long its sums may have been."""

    def __enter__(self) -> "Lengths":
        super().__enter__()
        self._flops = self.enter_context(flops.counter(whole=True))
        self._watch = self.enter_context(_Watch())
        return self

    @property
    def saturates(self) -> bool:
        """Whether there is a contraction, and something that turns large differences into all or nothing."""
        return bool(self._flops.get_total_flops()) and bool(self._watch.names & _SATURATING)

    @property
    def all_or_nothing(self) -> bool:
        """Whether there is a softmax, in one operator or written out."""
        names = self._watch.names
        return bool(names & _SOFTMAX) or bool(names & {"exp", "exp2"} and names & _MAXIMA)

    def longest(self, operands: Tree, outputs: Tree) -> int:
        """1 where no operator adds anything up; else a guess from sizes: the operands' longest last dimension, elements
        read per element written, and multiply-adds per element written."""
        if not self._watch.adds:
            return 1
        lasts = [t.shape[-1] for t in tensors(operands) if t.dim() and t.is_floating_point()]
        written = max(1, numel(outputs))
        per_output = max((t.numel() for t in tensors(operands)), default=1) // written
        return max(1, *lasts, per_output, int(self._flops.get_total_flops()) // (2 * written))

    def read(self, operands: Tree) -> int:
        """Elements of the largest operand, which a small output may be the sum of; 0 where nothing is added up."""
        return max((t.numel() for t in tensors(operands)), default=0) if self._watch.adds else 0


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    adds = False  # whether an operator ran that may add something up

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op._schema.name.partition("::")[2]
        self.names.add(name)
        self.adds = self.adds or not (torch.Tag.pointwise in op.tags or op.is_view or name in _MOVES)
        return op(*args, **(kwargs or {}))
