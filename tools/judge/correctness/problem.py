"""One case of a task, loaded: what is drawn for a check of it, what a right candidate may answer, what it costs.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. It never sees a
candidate. `describe` gives shapes, dtypes and costs of every case without allocating its tensors. Contractions are
counted as torch does, and attention with grouped heads as well: torch 2.11's own counter refuses attention in which
several query heads share a key head, and counts none of the CPU's.
"""

import contextlib
import copy
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kerneltune.tools.judge.correctness.comparison import ExpectedOutputs, WholeExpectation, native_holds, rows_of
from kerneltune.tools.judge.correctness.float64 import (
    Disturbances,
    WithNoise,
    default_float64,
    differences,
    flushed,
    largest,
    widened,
)
from kerneltune.tools.judge.correctness.gates import (
    MOST_SAMPLES,
    Expected,
    has_float8_matrices,
    rounds_operands,
    samples_for,
)
from kerneltune.tools.judge.correctness.inputs import (
    MantissaProbe,
    Numbering,
    declared_kinds,
    derived,
    inferred_kinds,
    is_exact,
    probes,
    required_bits,
    with_leaves,
)
from kerneltune.tools.judge.correctness.reference_model import (
    Answer,
    Drawn,
    ReferenceModel,
    Regime,
    blame,
    free_cached,
    with_room,
)
from kerneltune.tools.judge.correctness.tree import (
    AT_ONCE,
    Tree,
    is_finite,
    leaves,
    map_leaves,
    map_tensors,
    nbytes,
    numel,
    rows_at,
    spec_of,
    tensor_spec,
    tensors,
)
from kerneltune.tools.sandbox.linux import memory_bytes
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import CaseFailed, OutOfMemory, TaskError
from kerneltune.tools.schema.task import BATTERIES, PROBES, BatchDims, CaseSpec, TaskSpec, tensors_of
from kerneltune.tools.schema.verdict import Limitation, LimitationKind
from kerneltune.tools.task.load import MAIN, SMALL, CaseDef, TaskFile, int_constants, visible_source, with_small
from kerneltune.tools.trace.recorder import CopiedFakes

_ATEN = torch.ops.aten
# Where each operator's arguments after query, key and value say that the mask is causal.
_CAUSAL_AT = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: 1,
    _ATEN._scaled_dot_product_flash_attention: 1,
    _ATEN._scaled_dot_product_efficient_attention: 3,
    _ATEN._scaled_dot_product_cudnn_attention: 3,
}
# The same of their gradients, whose first argument is that of the output.
_CAUSAL_AT_OF_GRADIENTS = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: 3,
    _ATEN._scaled_dot_product_flash_attention_backward: 7,
    _ATEN._scaled_dot_product_efficient_attention_backward: 7,
    _ATEN._scaled_dot_product_cudnn_attention_backward: 10,
}


def counter(*, whole: bool = False) -> FlopCounterMode:
    """A context manager; `get_total_flops()` is what ran inside it. A causal mask leaves out what lies above the
    diagonal, unless the `whole` of the products is asked for."""
    counts = {operator: _attention(None if whole else at) for operator, at in _CAUSAL_AT.items()}
    counts |= {
        operator: _attention_gradients(None if whole else at) for operator, at in _CAUSAL_AT_OF_GRADIENTS.items()
    }
    found = FlopCounterMode(display=False, custom_mapping=counts)
    found.mod_tracker = _NoModules()  # type: ignore[assignment]
    return found


class _NoModules:
    """In the place of what tells modules apart, which asks autograd of a reference that computes gradients too much."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        """Watch nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing was watched."""


def _attention(causal_at: int | None) -> Callable[..., int]:
    def flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(2 * _seen(query, key, causal_at, args, kwargs) * (query[-1] + value[-1]))

    return flops


def _attention_gradients(causal_at: int | None) -> Callable[..., int]:
    """Five products: scores once more, gradients of weights and of values, of queries and of keys."""

    def flops(_: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(2 * _seen(query, key, causal_at, args, kwargs) * (3 * query[-1] + 2 * value[-1]))

    return flops


def _seen(query: Any, key: Any, causal_at: int | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Pairs of a query and a key that it sees, in all heads."""
    (batch, heads, rows, _), columns = query, key[-2]
    given = args[causal_at] if causal_at is not None and causal_at < len(args) else False
    causal = causal_at is not None and (kwargs.get("is_causal", given) is True)
    seen = sum(min(row + 1, columns) for row in range(rows)) if causal else rows * columns
    return int(batch * heads * seen)


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
        self._flops = self.enter_context(counter(whole=True))
        self._watch = self.enter_context(_Watch())
        return self

    @property
    def names(self) -> set[str]:
        """The operators that ran."""
        return set(self._watch.names)

    @property
    def operators(self) -> int:
        """How many of them."""
        return int(self._watch.operators)

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
    operators: int = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op._schema.name.partition("::")[2]
        self.names.add(name)
        self.operators += 1
        self.adds = self.adds or not (torch.Tag.pointwise in op.tags or op.is_view or name in _MOVES)
        return op(*args, **(kwargs or {}))


_PRODUCTS = frozenset("mm bmm mv addmm baddbmm addmv convolution".split())
_MOST_WHOLE = 1 << 29  # elements of inputs and outputs; 2 GiB of float32, for which a check takes some 30 GB
_SAME_ROWS = 1e-9  # relative, between two float64 runs over different numbers of rows
_ALIKE = 0.1  # relative, of an answer and its reference's own dtype: not a tolerance, but a sign of other rows
# output elements; above, disturbed copies in float64 take tens of gigabytes, and what finds no memory is tried twice
MOST_DISTURBED = {"cpu": 1 << 28, "gpu": 1 << 30}
# A reference is slow by its operators: a dispatch mode, as one in float64 is, takes some 30 µs for each. A battery with
# its noise takes a dozen forwards, a verdict over a hundred: of a scan over 1,500 steps in a Python loop (7,500
# operators, 0.2 s) none was given after 45 s. Their number is the same in every session, which no time is; a forward of
# few operators is slow only where it takes far longer than those.
MOST_OPERATORS = 5_000
_OPERATOR_S = 4e-5
SLOW_S = 0.4
_BATTERIES_S = 12.0  # that the answers of a slow case may take altogether
_RUNS_A_BATTERY = 4  # without noise: in both arithmetics, once to see whether it applies and once for its answer
# equal terms are rounded the same way, so errors add up as L, not sqrt(L); whole numbers that something scales, too
_LENIENCE = {"structure": 4.0, "offset": 4.0, "one_hot": 4.0, "integers": 4.0}
# a sum in turn of L equal terms is off by up to L / 2 roundoffs, 10 times what is allowed for L = 1,024 of any size. Of
# cuBLAS in float32 it was 570 roundoffs, and an honest attention was called wrong when 208 were allowed
_OF_EQUAL_TERMS = 0.5  # lenience by sqrt(L), in the battery whose rows are of one value


@dataclass(frozen=True)
class RowParts:
    """How a case can be worked on a part of its rows at a time: the same rows of the inputs at `paths` (along their
    first dimension, `count` in all) give those rows of every output."""

    paths: frozenset[str]
    count: int
    at_once: int

    def parts(self) -> Iterator[slice]:
        """All rows, in order."""
        for start in range(0, self.count, self.at_once):
            yield slice(start, min(start + self.at_once, self.count))

    def of_inputs(self, inputs: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
        """Those rows of the inputs; the others are for all rows."""
        return tuple(map_leaves(lambda path, t: t[rows] if path in self.paths else t, inputs))


@dataclass(frozen=True)
class ExpectationInParts:
    """The expectation of a large case, worked out for some rows at a time and not kept: nothing but `native` is held
    for all of them. The parameters must be those that it was made with."""

    native: Tree
    rows: RowParts
    expect: Callable[[slice], Expected]

    def parts(self) -> Iterator[tuple[slice | None, Expected]]:
        """One part after the other."""
        for rows in self.rows.parts():
            yield rows, self.expect(rows)


class LoadedCase(ReferenceModel):
    """One case of one task on one device, as declared; `tools.judge.correctness.problem.Problem.load` finds it by name.

    `left_out`: batteries that there was no memory for when they were drawn last, and what was asked for; and those that
    a slow reference has no time for."""

    def __init__(
        self, task: TaskFile, case: CaseDef, device: str = "cpu", make_room: Callable[[], None] = free_cached
    ) -> None:
        self._multiplies: bool | None = None  # whether the reference has a contraction; None: not looked at yet
        self._rows: tuple[RowParts | None] | None = None  # how a large case is worked on in parts; None: as above
        self.left_out: dict[str, Limitation] = {}
        super().__init__(task, case, device, make_room)

    def reseed(self, seed: int) -> None:
        """Parameters and running statistics that follow from the seed, and the judge's usual strictness."""
        self._regime = Regime()
        super().reseed(seed)

    def restore(self, drawn: Drawn) -> None:
        """Make the parameters and the judge's strictness those of an earlier draw."""
        self.reseed(drawn.seed)
        if drawn.alters:
            self._put(drawn.state)
        self._regime = drawn.regime

    def inputs(self, seed: int, battery: str = "own") -> tuple[Any, ...] | None:
        """The arguments of forward; None when the battery adds nothing to the task's own inputs."""
        own = self._own(seed)
        drawn = own if battery == "own" else derived(own, battery, seed, self.kinds)
        return None if drawn is None else tuple(drawn)

    @functools.cached_property
    def kinds(self) -> Mapping[str, str]:
        """What may replace the task's own inputs, by path: as declared, else as its own draws show."""
        own = self._own(0)
        declared = declared_kinds(own, self.task.inputs)
        if all(path in declared for path, leaf in leaves(own) if isinstance(leaf, Tensor)):
            return declared
        small = self._small
        inferred = _inferred(self.task, small.name if small else self.case.name, "cpu" if small else self.device)
        return {**inferred, **declared}

    @property
    def slow(self) -> LimitationKind | None:
        """Why judging in full takes too long with this reference, by its operators or by the time of a forward: its
        noise is not measured then, and only the batteries are drawn that there is time for."""
        return _pace(self.task, self.case.name, self.device).slow

    @property
    def in_time(self) -> tuple[str, ...]:
        """The batteries that there is time for: all where the reference is not slow, the task's own in any case."""
        if not self.slow:
            return BATTERIES
        each_s = _RUNS_A_BATTERY * _pace(self.task, self.case.name, self.device).forward_s
        return BATTERIES[: max(1, int(_BATTERIES_S / each_s))]

    def in_domain(self, inputs: Tree) -> bool:
        """Whether the reference runs on these inputs, and makes no NaN of them in float64. Raises OutOfMemory when
        there is none for that, and a NaN without it."""
        try:
            answer = self.reference(tuple(inputs))
        except OutOfMemory:
            raise
        except TaskError:
            return False
        undefined = any(bool(torch.isnan(t).any()) for t in tensors(answer.values) if t.is_floating_point())
        return not (undefined and _not_short(answer))

    def draw(self, seed: int, battery: str = "own") -> Drawn | None:
        """Inputs and parameters for one check, which also become the present ones; None where the battery does not
        apply: it would repeat the task's own inputs, leave what they may be, or make the reference itself not finite
        although it is on those; and where there is no memory or time to find that out, which `left_out` says. Raises
        OutOfMemory when the task's own inputs do not fit."""
        self.left_out.pop(battery, None)
        if battery not in self.in_time:
            self.left_out[battery] = Limitation(LimitationKind.NO_TIME)
            return None
        try:
            return self._draw(seed, battery)
        except OutOfMemory as error:
            if battery == "own":
                raise
            self.left_out[battery] = Limitation(LimitationKind.LEFT_OUT, error.asked_for)
        self.reseed(seed)
        return None

    def _draw(self, seed: int, battery: str) -> Drawn | None:
        self.reseed(seed)
        if battery in PROBES:
            return self._probed(seed, battery)
        inputs = self.inputs(seed, battery)
        if inputs is None:
            return None
        if battery == "own":
            return self._drawn(seed, battery, inputs, Regime())
        if battery == "integers" and self._whole_parameters(seed, inputs):
            return self._drawn(seed, battery, inputs, Regime(exact_operands=True))
        if not self._rehearsed(battery) or not self._all(inputs, lambda *made: battery == "specials" or _finite(*made)):
            return None
        if battery == "huge" and (self._loses_to_rounding or not self._native_holds(inputs)):
            return None
        regime = Regime(
            flushes=battery == "tiny", lenience=_LENIENCE.get(battery, 1.0), equal_terms=battery == "structure"
        )
        return self._drawn(seed, battery, inputs, regime)

    def _native_holds(self, inputs: tuple[Any, ...]) -> bool:
        for _, expected in self.expectation(inputs).parts():
            for limitation in expected.limitations:
                if limitation.kind is LimitationKind.NOT_FLOAT64:  # it would be compared with itself
                    raise OutOfMemory(str(limitation), limitation.asked_for)
            if not native_holds(expected):
                return False
        return True

    def _rehearsed(self, battery: str) -> bool:
        """Whether the reference takes such inputs in the small case on the CPU. An index out of range, to which huge
        values may lead, is an exception there; on a GPU it is the end of this process."""
        small = self._small
        return self.device == "cpu" or small is None or _taken(self.task, small.name, battery)

    def takes(self, battery: str) -> bool:
        """Whether the reference runs on inputs of this kind at all."""
        inputs = self.inputs(self._seed, battery)
        try:
            return inputs is None or (self.native(inputs), self.reference(inputs)) is not None
        except OutOfMemory:
            raise
        except TaskError:
            return False

    @property
    def _small(self) -> CaseDef | None:
        return next((case for case in self.task.cases if case.cpu), None)

    @functools.cached_property
    def _loses_to_rounding(self) -> bool:
        """Whether huge inputs say nothing, since a softmax of them is all or nothing and a roundoff decides. Operands
        rounded as declared before it: 3 of 28 runs of an honest TF32 attention were refused. And the difference to the
        maximum may be contracted, fma(x, log2 e, -m), as compilers do and FlashAttention does by hand: its roundoff of
        2^50 is 2^26, and exp2 of that is infinite."""
        with Lengths() as lengths:
            self.native(self._own(self._seed))
        return lengths.all_or_nothing or (rounds_operands(self.precision) and lengths.saturates)

    def _drawn(self, seed: int, battery: str, inputs: tuple[Any, ...], regime: Regime) -> Drawn:
        self._regime = regime
        state = {name: tensor.clone() for name, tensor in self.state().items()}
        return Drawn(seed, battery, inputs, state, regime, self._altered, self.task.contracts)

    def _whole_parameters(self, seed: int, inputs: tuple[Any, ...]) -> bool:
        """Make the parameters small integers too, when the reference then computes with nothing but integers."""
        parameters = {name: tensor.detach() for name, tensor in self.model.named_parameters()}
        if parameters:
            self._put(derived(parameters, "integers", seed, dict.fromkeys(parameters, "any")) or {})
        if self._all(inputs, lambda *made: _finite(*made) and _not_short(made[1]).whole, whole=True):
            return True
        self.reseed(seed)
        return False

    def _all(self, inputs: tuple[Any, ...], holds: Callable[[Tree, Answer], bool], *, whole: bool = False) -> bool:
        """Whether it holds of what the reference makes of these inputs, part by part; not where it does not run. Raises
        OutOfMemory."""
        try:
            return all(
                holds(self.native(part), self.reference(part, whole=whole)) for _, part in self._input_parts(inputs)
            )
        except OutOfMemory:
            raise
        except TaskError:
            return False

    def _input_parts(self, inputs: tuple[Any, ...]) -> Iterator[tuple[slice | None, tuple[Any, ...]]]:
        """The inputs, of a large case some rows at a time."""
        parts = self._row_parts(inputs)
        if parts is None:
            yield None, inputs
        else:
            yield from ((rows, parts.of_inputs(inputs, rows)) for rows in parts.parts())

    def _row_parts(self, inputs: tuple[Any, ...], native: Tree = None) -> RowParts | None:
        """How this case is worked on in parts: None where it is not large, or its rows depend on each other. Found out
        once: sizes are those of the case, whatever is drawn."""
        if self._rows is None:
            native = self.native(inputs) if native is None else native
            large = numel(inputs) + numel(native) > _MOST_WHOLE
            self._rows = (self._independent_rows(inputs, native) if large else None,)
        return self._rows[0]

    def _independent_rows(self, inputs: tuple[Any, ...], native: Tree) -> RowParts | None:
        outputs = [leaf for _, leaf in leaves(native)]
        counts = {t.shape[0] if isinstance(t, Tensor) and t.dim() else 0 for t in outputs}
        count = min(counts, default=0)
        if len(counts) != 1 or count < 2:
            return None
        fitting = [p for p, t in leaves(inputs) if isinstance(t, Tensor) and t.dim() and t.shape[0] == count]
        at_once = max(1, AT_ONCE * count // (numel(inputs) + numel(native)))
        for paths in dict.fromkeys((frozenset(fitting), frozenset(fitting[:1]))):
            parts = RowParts(paths, count, at_once)
            if paths and self._holds(parts, inputs, native):
                return parts
        return None

    def _holds(self, parts: RowParts, inputs: tuple[Any, ...], native: Tree) -> bool:
        """Whether rows come out the same in float64 with and without the rows before them, and like the reference's own
        of all rows."""
        size = max(1, min(parts.at_once, parts.count) // 2)
        upper, both = slice(size, 2 * size), slice(0, 2 * size)
        try:
            one, two = (self._run_in_float64(parts.of_inputs(inputs, rows), False).values for rows in (upper, both))
        except TaskError:
            return False
        found = zip(tensors(one), tensors(two), tensors(rows_of(native, upper)), strict=False)
        return all(_same_rows(a, b[size:], n) for a, b, n in found)

    def _probed(self, seed: int, battery: str) -> Drawn | None:
        """The sharpest probe that the reference allows."""
        if required_bits(self.precision) is None or self._multiplies is False:
            return None
        own = self._own(seed)
        for probe, single in self._probes(own, seed, left=battery == "one_hot_left"):
            self.reseed(seed)
            self._put({name[6:]: t for name, t in probe.leaves.items() if name.startswith("state:")})
            inputs = tuple(with_leaves(own, probe.leaves))
            regime = self._regime_of(probe, inputs, single=single)
            if regime is not None:
                return self._drawn(seed, battery, inputs, regime)
        self.reseed(seed)
        return None

    def _probes(self, own: tuple[Any, ...], seed: int, *, left: bool) -> list["_Probe"]:
        """The probes of the first contraction that allows one; of a large case, those of all its parts joined."""
        if self._multiplies is None:
            self._multiplies = self._has_product(own)
        parts = self._row_parts(own) if self._multiplies else None
        if not self._multiplies:
            return []
        if parts is None:
            return self._probes_of(own, seed, left=left)
        found = ((rows, self._probes_of(parts.of_inputs(own, rows), seed, left=left)) for rows in parts.parts())
        return _joined(found, {f"input:{path}": t for path, t in leaves(own) if path in parts.paths})

    def _probes_of(self, own: tuple[Any, ...], seed: int, *, left: bool) -> list["_Probe"]:
        free = self._free_leaves(own)
        found = with_room(lambda: self._numbered(own, free), self._make_room)
        self._multiplies = bool(found)
        return [(probe, len(found) == 1) for probe in probes(found, free, seed, left=left)]

    def _has_product(self, own: tuple[Any, ...]) -> bool:
        """Whether the reference may have a contraction: numbering all elements of a large case costs much."""
        with Lengths() as lengths:
            self.native(next(self._input_parts(own))[1])
        return any(name in _PRODUCTS or "attention" in name for name in lengths.names)

    def _regime_of(self, probe: MantissaProbe, inputs: tuple[Any, ...], *, single: bool) -> Regime | None:
        """How strictly a probe may be judged: by bits where nothing but the contraction rounds."""
        exact: list[bool] = []
        lasts = [1]

        def looked_at(native: Tree, answer: Answer) -> bool:
            if not _finite(native, answer):
                return False
            exact.append(is_exact(_not_short(answer).values, native))
            lasts.extend(t.shape[-1] if t.dim() > 1 or not parts else parts.count for t in tensors(native) if t.dim())
            return True

        parts = self._row_parts(inputs)
        if not self._all(inputs, looked_at):
            return None
        if all(exact):
            return Regime(one_hot=True, bits=required_bits(self.precision))
        if probe.alone and len(probe.leaves) > 2:  # another one follows, in which less is zero
            return None
        return Regime(one_hot=True, longest=max(lasts) if single else None, lenience=_LENIENCE["one_hot"])

    def _free_leaves(self, own: Tree) -> dict[str, Tensor]:
        """Floating inputs that may be anything, and parameters, by origin and path."""
        inputs = {f"input:{path}": leaf for path, leaf in leaves(own) if self.kinds.get(path) in ("any", "special")}
        state = {f"state:{name}": tensor.detach() for name, tensor in self.model.named_parameters()}
        found = (inputs | state).items()
        return {n: t for n, t in found if isinstance(t, Tensor) and t.is_floating_point() and t.numel()}

    def _numbered(self, own: Tree, free: Mapping[str, Tensor]) -> list[Any]:
        """The contractions of the reference, found by running it on numbers for values. Raises OutOfMemory."""
        numbering = Numbering(free)
        try:
            with blame(self.task, "forward()"), default_float64(), torch.no_grad():
                model = copy.deepcopy(self.model).double()
                for name, tensor in model.named_parameters():
                    tensor.copy_(numbering.numbered(f"state:{name}", tensor))
                inputs = {name: numbering.numbered(name, t) for name, t in free.items() if name.startswith("input:")}
                arguments = map_tensors(widened, with_leaves(own, inputs))
                del inputs
                with numbering:
                    self._forward(model, tuple(arguments))
        except OutOfMemory:
            raise
        except TaskError:
            pass  # it got as far as it got: a reference may check what it is given
        return numbering.found

    def expect(self, inputs: tuple[Any, ...], *, most_samples: int = MOST_SAMPLES) -> Expected:
        """What a right candidate may return for these inputs and the present parameters. The noise is estimated from as
        many samples as the arithmetic asks for, `most_samples` at most."""
        native, sizes = self._native_and_sizes(inputs, most_samples)
        return self._expected(inputs, native, sizes)

    def expectation(
        self, inputs: tuple[Any, ...], *, least_samples: int = 0, most_samples: int = MOST_SAMPLES
    ) -> ExpectedOutputs:
        """The same for a case of any size: of a large one whose rows do not depend on each other, in parts. At least
        `least_samples` where there is any noise to estimate."""
        native, sizes = self._native_and_sizes(inputs, most_samples, least_samples)
        parts = self._row_parts(inputs, native)
        if parts is None:
            return WholeExpectation(self._expected(inputs, native, sizes))

        def expect(rows: slice) -> Expected:
            return self._expected(parts.of_inputs(inputs, rows), rows_of(native, rows), sizes)

        return ExpectationInParts(native, parts, expect)

    def _native_and_sizes(
        self, inputs: tuple[Any, ...], most_samples: int, least_samples: int = 0
    ) -> tuple[Tree, "_Sizes"]:
        """The reference's own answer to all rows, and what of the tolerance follows from sizes alone."""
        with Lengths() as lengths:
            native = self.native(inputs)
        operands, longest = (inputs, self.state()), self._regime.longest
        return native, _Sizes(
            longest or lengths.longest(operands, native),
            0 if longest else lengths.read(operands),
            has_float8_matrices(operands),
            min(max(samples_for(native, self.precision), least_samples), most_samples),
        )

    def _expected(self, inputs: tuple[Any, ...], native: Tree, sizes: "_Sizes") -> Expected:
        answer, regime = self.reference(inputs), self._regime
        noise = self._noise(inputs, answer, sizes.samples, sizes.longest)
        of_equal_terms = _OF_EQUAL_TERMS * math.sqrt(sizes.longest) if regime.equal_terms else 0.0
        return Expected(
            answer.values,
            native,
            self.precision,
            sizes.longest,
            noise.all_operations,
            slack=self._slack(inputs, native, answer) if regime.flushes else None,
            exact_operands=regime.exact_operands,
            one_hot=regime.one_hot,
            bits=regime.bits,
            selections=answer.selections,
            lenience=max(regime.lenience, of_equal_terms),
            read=sizes.read,
            operand_noise=noise.operands,
            float8_operands=sizes.float8_operands,
            limitations=noise.limitations,
            largest_input=largest(inputs),
        )

    def _slack(self, inputs: tuple[Any, ...], native: Tree, answer: Answer) -> Tree:
        """What counting denormal inputs as zeros changes: in float64, else in the reference's dtype on either side."""
        zeros = map_tensors(flushed, inputs)
        other = self.reference(zeros)
        if answer.exact and other.exact:
            return differences(answer.values, other.values)
        return differences(*(map_tensors(widened, values) for values in (native, self.native(zeros))))

    def _noise(self, inputs: tuple[Any, ...], answer: Answer, samples: int, longest: int) -> "_Noise":
        if not samples:  # of an expectation that asks for none
            return _Noise()
        if not answer.exact:
            return _Noise(limitations=(answer.limitation,) if answer.limitation else ())
        if slow := self.slow:
            return _Noise(limitations=(Limitation(slow),))
        if numel(answer.values) > MOST_DISTURBED["cpu" if self.device == "cpu" else "gpu"]:
            return _Noise(limitations=(Limitation(LimitationKind.MANY_OUTPUTS),))
        try:
            return with_room(lambda: self._measured_noise(inputs, answer, samples, longest), self._make_room)
        except OutOfMemory as error:
            return _Noise(limitations=(Limitation(LimitationKind.NO_NOISE, error.asked_for),))

    def _measured_noise(self, inputs: tuple[Any, ...], answer: Answer, samples: int, longest: int) -> "_Noise":
        noise = WithNoise(Generator(self.device).manual_seed(self._seed), longest)
        with blame(self.task, "forward() in float64", limit_s=math.inf), default_float64(), torch.no_grad():
            disturbances = Disturbances(self._forward_in_float64, self.model, inputs, answer.values, noise)
            return _Noise(disturbances.spread(samples), disturbances.of_operands())


@dataclass(frozen=True)
class _Sizes:
    """What sizes of a whole case say of its tolerance: see `tools.judge.correctness.gates.Expected`."""

    longest: int
    read: int
    float8_operands: bool
    samples: int


@dataclass(frozen=True)
class _Noise:
    """What relative noise does to a float64 answer. Without it a row's root mean square stands in, which is wider for
    what is small beside the rest of its row: an error of 0.1 % in 98 % of a softmax's elements (4,096 of 6 randn) is
    2.2 times the tolerance with noise and 0.25 without. So `limitations` says why there is none."""

    all_operations: Tree | None = None
    operands: Tree | None = None
    limitations: tuple[Limitation, ...] = ()


_Probe = tuple[MantissaProbe, bool]  # and whether its contraction is the only one


def _joined(found: Iterator[tuple[slice, list[_Probe]]], whole: Mapping[str, Tensor]) -> list[_Probe]:
    """The probes of all parts as probes of the whole: `whole` has the tensors that were cut into rows; what all rows
    share is as in the first part. None where the parts differ in what they probe."""
    joined: dict[str, Tensor] = {}
    made: list[_Probe] = []
    for rows, probes_of_part in found:
        given = probes_of_part[0][0].leaves if probes_of_part else {}
        if rows.start == 0:
            joined = {name: torch.empty_like(whole[name]) for name in given if name in whole}
            made = [
                (MantissaProbe({n: joined.get(n, t) for n, t in p.leaves.items()}, p.alone), single)
                for p, single in probes_of_part
            ]
        if not made or len(probes_of_part) != len(made) or not joined.keys() <= given.keys():
            return []
        for name, tensor in joined.items():
            tensor[rows] = given[name]
    return made


def _finite(native: Tree, answer: Answer) -> bool:
    return is_finite((native, answer.values))


def _same_rows(alone: Tensor, among: Tensor, native: Tensor) -> bool:
    """Whether rows answered alone are what they are among others (float64), and resemble the reference's own."""
    if alone.shape != among.shape or alone.shape != native.shape or alone.is_complex():
        return False
    if not alone.is_floating_point():
        return torch.equal(alone, among)
    known = torch.nan_to_num(alone, 0.0, 0.0, 0.0)
    size = float(known.square().mean().sqrt())
    if not torch.allclose(among, alone, rtol=_SAME_ROWS, atol=_SAME_ROWS * size, equal_nan=True):
        return False
    error = torch.nan_to_num(native.double() - alone, 0.0, 0.0, 0.0)
    return float(error.square().mean().sqrt()) <= _ALIKE * size


def _not_short(answer: Answer) -> Answer:
    """An answer for what needs float64 itself, not only something to compare with. Raises OutOfMemory."""
    if answer.lacked_memory and answer.limitation is not None:
        raise OutOfMemory(answer.note, answer.limitation.asked_for)
    return answer


@functools.lru_cache(maxsize=64)
def _inferred(task: TaskFile, case: str, device: str) -> Mapping[str, str]:
    """Kinds of a task's inputs: of one case, the smallest, since what a task may be fed does not depend on sizes; on a
    CPU, where inputs outside of what a reference is defined for raise an error instead of ending the GPU's context."""
    problem = LoadedCase(task, task.case(case), device)
    return inferred_kinds([problem._own(seed) for seed in range(3)], problem.in_domain)


@dataclass(frozen=True)
class _Pace:
    """How long a watched forward takes, and why that is slow; None where it is not."""

    forward_s: float
    slow: LimitationKind | None = None


@functools.lru_cache(maxsize=256)
def _pace(task: TaskFile, case: str, device: str) -> _Pace:
    """How fast a reference is on the task's own inputs, found out once. One that seems slow by its time is measured
    three times, since the first loads libraries, and said to the next power of two, so that a session's noise decides
    little. On a CPU, whose cores others use as well, only the seconds that this thread has worked count."""
    took_s = math.inf
    clock = time.thread_time if device == "cpu" else time.perf_counter
    try:
        problem = LoadedCase(task, task.case(case), device)
        inputs = problem._own(0)
        for _ in range(3):
            began_s = clock()
            with Lengths() as lengths:
                problem.native(inputs)
            if lengths.operators > MOST_OPERATORS:
                return _Pace(lengths.operators * _OPERATOR_S, LimitationKind.MANY_OPERATORS)
            torch.get_device_module(device).synchronize()
            took_s = min(took_s, clock() - began_s)
            if took_s <= SLOW_S:
                return _Pace(took_s)
    except TaskError:  # whoever needs that forward is told
        return _Pace(0.0)
    return _Pace(2.0 ** math.ceil(math.log2(took_s)), LimitationKind.SLOW)


@functools.lru_cache(maxsize=256)
def _taken(task: TaskFile, case: str, battery: str) -> bool:
    return LoadedCase(task, task.case(case)).takes(battery)


SMALL_ELEMENTS = 2_000_000  # inputs, parameters and outputs of a case for the interpreter
SMALL_FLOPS = 2_000_000_000
_SMALLEST = 8  # constants below are kernel sizes, heads, flags
_MOST_HALVINGS = 96


class Problem(LoadedCase):
    """One case of a task, found by name: its inputs, parameters and answers."""

    @classmethod
    def load(
        cls,
        task: TaskFile,
        case_name: str = MAIN,
        *,
        seed: int = 0,
        device: str = "cpu",
        make_room: Callable[[], None] = free_cached,
    ) -> "Problem":
        """Run the task file with the case's constants and build its model. Raises TaskError."""
        if case_name == SMALL and all(case.name != SMALL for case in task.cases):
            task = expanded(task)
        problem = cls(task, task.case(case_name), device, make_room)
        problem.reseed(seed)
        return problem


def describe(task: TaskFile) -> TaskSpec:
    """Shapes, dtypes and costs of all cases. Raises TaskError when the reference does not run."""
    task = expanded(task)
    cases = tuple(_described(task, case) for case in task.cases)
    return TaskSpec(
        name=task.name,
        sha256=task.sha256,
        precision=task.precision or _precision(task),
        source=visible_source(task),
        cases=cases,
        notes=task.notes,
        batch=_batch_dims(task, cases),
        contracts=task.contracts,
    )


_MOST_BATCH_DIMS = 3
_LEAST_ROWS = 4  # two times two: fewer cannot show whether dimensions fold


def _batch_dims(task: TaskFile, cases: Sequence[CaseSpec]) -> BatchDims | None:
    """The dimensions that all cases share and one small case shows to be such."""
    small = [case for case in cases if case.runs_on_cpu and _rows_at(case.outputs, 0) > 1]
    if not small:
        return None
    case = min(small, key=lambda c: (_rows_at(c.outputs, 0) < _LEAST_ROWS, c.bytes_moved + c.flops, c.name))
    try:
        return _Batch(Problem.load(task, case.name), cases).found()
    except (TaskError, OutOfMemory):  # whoever needs that forward is told
        return None


def _rows_at(tree: Json, axis: int) -> int:
    """The size that all tensors of a described tree have at an axis; 0 where they differ, or one lacks it."""
    sizes = {shape[axis] if len(shape) > axis else 0 for shape in _shapes_of(tree).values()}
    return sizes.pop() if len(sizes) == 1 else 0


def _shapes_of(tree: Json) -> dict[str, Sequence[int]]:
    """Path -> shape, of the tensors of a described tree."""
    return {".".join(map(str, way)): spec.shape for way, spec in tensors_of(tree)}


class _Batch:
    """Looks for batch dimensions by what the reference gives in float64 for parts of its inputs."""

    def __init__(self, problem: LoadedCase, cases: Sequence[CaseSpec]) -> None:
        self._problem, self._cases = problem, cases
        self._inputs = problem.inputs(0) or ()
        self._native = problem.native(self._inputs)
        self._whole = self._answer(self._inputs)

    def _answer(self, inputs: tuple[Any, ...]) -> list[Tensor]:
        return list(tensors(self._problem._run_in_float64(inputs, False).values))

    def found(self) -> BatchDims | None:
        """Dimensions from the front, as far as the same inputs have them."""
        paths, count = self._paths(0), 1
        if not paths:
            return None
        while count < _MOST_BATCH_DIMS and self._paths(count) == paths:
            count += 1
        return BatchDims(count, tuple(sorted(paths)), self._folds(paths))

    def _paths(self, axis: int) -> frozenset[str] | None:
        """The inputs that have a batch dimension there; None if it is none."""
        sizes = [_rows_at(case.outputs, axis) for case in self._cases]
        shapes = [_shapes_of(list(case.inputs)) for case in self._cases]
        if not all(sizes) or (rows := _rows_at(spec_of(self._native), axis)) < 2:
            return None
        fitting = [
            path
            for path in shapes[0]
            if all(len(its.get(path, ())) > axis and its[path][axis] == n for its, n in zip(shapes, sizes, strict=True))
        ]
        some = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        for paths in dict.fromkeys((frozenset(fitting), frozenset(fitting[:1]))):
            if paths and all(
                self._same(paths, functools.partial(rows_at, axis=axis, rows=at)) for at in (some, some[: rows // 2])
            ):
                return paths
        return None

    def _same(self, paths: frozenset[str], part: Callable[[Tensor], Tensor]) -> bool:
        """Whether the answer for a part of the inputs at `paths` is that part of the answer."""
        chosen = tuple(map_leaves(lambda path, t: part(t) if path in paths else t, self._inputs))
        try:
            alone = self._answer(chosen)
        except TaskError:
            return False
        natives = list(tensors(self._native))
        found = zip(alone, self._whole, natives, strict=True)
        return len(alone) == len(self._whole) and all(_same_rows(a, part(b), part(n)) for a, b, n in found)

    def _folds(self, paths: frozenset[str]) -> bool:
        """Whether two dimensions in the place of the first give the same."""
        rows = _rows_at(spec_of(self._native), 0)
        return rows >= _LEAST_ROWS and self._same(paths, lambda t: t[: rows // 2 * 2].view(2, rows // 2, *t.shape[1:]))


def expanded(task: TaskFile) -> TaskFile:
    """The task with a further case "small" when its file lists no CASES and its own sizes are too large for a CPU."""
    if task.declared or any(case.name == SMALL for case in task.cases) or is_small(task, MAIN):
        return task
    overrides = _scaled_down(task)
    if overrides is None:
        return task
    larger = with_small(task, overrides)
    return larger if _runs(larger) else task


def is_small(task: TaskFile, case_name: str) -> bool:
    """Whether a case fits the CPU interpreter."""
    return _Size.of(task, task.case(case_name)).is_small


def _precision(task: TaskFile) -> str:
    try:
        with CopiedFakes(allow_non_fake_inputs=True):
            return Problem.load(task).precision
    except TaskError:  # its constructor reads values
        return Problem.load(task).precision


@dataclasses.dataclass(frozen=True)
class _Size:
    """What one case holds and costs. The trees hold tensors without data."""

    init_args: tuple[Any, ...]
    inputs: tuple[Any, ...]
    state: dict[str, torch.Tensor]
    outputs: Tree
    flops: int

    @classmethod
    def of(cls, task: TaskFile, case: CaseDef) -> "_Size":
        """Measure without allocating; with real tensors where the reference needs values."""
        if found := _faked(_alone(task, case.overrides)):
            return found
        _require_host_memory(task, case)
        return cls._measured(LoadedCase(task, case))

    @classmethod
    def _measured(cls, problem: LoadedCase) -> "_Size":
        inputs = problem.inputs(0) or ()
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # we report what fails
        with counter() as counted:
            outputs = problem.native(inputs)
        return cls(problem.init_args, inputs, problem.state(), outputs, int(counted.get_total_flops()))

    @property
    def cost(self) -> tuple[int, int]:
        """Smaller is smaller."""
        return self.elements, self.flops

    @property
    def elements(self) -> int:
        """Elements of all inputs, parameters and outputs."""
        return numel((self.inputs, self.state, self.outputs))

    @property
    def is_small(self) -> bool:
        """Whether the interpreter can replay it in seconds."""
        return self.elements <= SMALL_ELEMENTS and self.flops <= SMALL_FLOPS


def _described(task: TaskFile, case: CaseDef) -> CaseSpec:
    try:
        size = _Size.of(task, case)
    except TaskError as error:
        if case.name == MAIN or type(error) not in (TaskError, CaseFailed):
            raise
        # the file's own constants work, so that its line alone does not tell what was wrong
        constants = ", ".join(f"{name} = {value!r}" for name, value in case.overrides)
        message = f"{error}; in case {case.name}, with {constants or 'the constants of main'}"
        raise CaseFailed(message, case.name) from error
    with blame(task, "describing get_init_inputs()"):
        init_args = [spec_of(part) for part in size.init_args]
    with blame(task, "describing get_inputs()"):
        inputs = [spec_of(part) for part in size.inputs]
    with blame(task, "describing the answer"):
        outputs = spec_of(size.outputs)
    return CaseSpec(
        name=case.name,
        inputs=tuple(inputs),
        init_args=tuple(init_args),
        outputs=outputs,
        state={name: tensor_spec(tensor) for name, tensor in size.state.items()},
        bytes_moved=nbytes((size.inputs, size.state, size.outputs)),
        flops=size.flops,
        held_out=case.held_out,
        runs_on_cpu=case.cpu or size.is_small,
        weight=case.weight,
    )


def _alone(task: TaskFile, overrides: tuple[tuple[str, Json], ...]) -> TaskFile:
    """The task with nothing but a case of these constants."""
    return dataclasses.replace(task, cases=(CaseDef(SMALL, overrides),))


@functools.lru_cache(maxsize=64)
def _faked(task: TaskFile) -> _Size | None:
    """The size of a task's only case; None where it needs values. Kept: without data, a forward of 9,000 operators took
    3 to 8 s, and a task was opened with five of them."""
    try:
        with CopiedFakes(allow_non_fake_inputs=True), _all_steps_at_once():
            return _Size._measured(LoadedCase(task, task.cases[0]))
    except TaskError:
        return None


@contextlib.contextmanager
def _all_steps_at_once() -> Iterator[None]:
    """As long as this lasts, recurrent layers give tensors of the right shapes by the products of all their steps in
    one: without data they are taken apart, and a task with 6 LSTMs of 512 steps was not described within 120 s."""
    with contextlib.ExitStack() as held:
        for name, gates in {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}.items():
            held.callback(setattr, torch._VF, name, getattr(torch._VF, name))
            setattr(torch._VF, name, _in_one_step(getattr(torch._VF, name), gates))
        yield


def _in_one_step(usual: Callable[..., Any], gates: int) -> Callable[..., Any]:
    """A recurrent function of torch's with that many gates, with all steps at once. Of packed sequences as usual."""

    def layers(x: Tensor, hidden: Any, weights: Any, *options: Any) -> Any:
        if not isinstance(weights, list):
            return usual(x, hidden, weights, *options)
        _, count, _, _, both, _ = options
        sides = count * (2 if both else 1)
        each = len(weights) // sides
        directions = [weights[at : at + each] for at in range(0, len(weights), each)]
        for layer in range(count):
            own = directions[layer * sides // count : (layer + 1) * sides // count]
            x = torch.cat([_side(x, side, gates) for side in own], -1)
        return (x, *map(torch.empty_like, hidden)) if isinstance(hidden, tuple) else (x, torch.empty_like(hidden))

    return layers


def _side(x: Tensor, weights: Sequence[Tensor], gates: int) -> Tensor:
    """One direction of a layer: the products of its input, of its states, and of a projection where there is one."""
    states = x.new_zeros((*x.shape[:-1], weights[1].shape[1]))
    made = (x @ weights[0].T + states @ weights[1].T)[..., : weights[1].shape[0] // gates]
    return made @ weights[-1].T if len(weights) % 2 else made


_LEAST_OF_A_RUN = 3  # times inputs and parameters: them, copies for the reference, and what it makes of them


def _require_host_memory(task: TaskFile, case: CaseDef) -> None:
    """Raise OutOfMemory where a reference that reads values on the host would need more memory than there is to be
    described: a host that runs out of it ends processes."""
    try:
        with CopiedFakes(allow_non_fake_inputs=True):
            problem = LoadedCase(task, case)
            size = nbytes((problem.inputs(0), problem.state()))
    except TaskError:  # its inputs depend on values, too
        return
    free, _ = memory_bytes()
    if _LEAST_OF_A_RUN * size > free:
        raise OutOfMemory(
            f"task {task.name}, case {case.name}: its inputs and parameters take {size / 1e9:.1f} GB, and running its "
            f"reference, which reads values on the host, at least {_LEAST_OF_A_RUN * size / 1e9:.1f} GB; there are "
            f"{free / 1e9:.1f} GB of memory, which would do for {free / _LEAST_OF_A_RUN / 1e9:.1f} GB: make the sizes "
            "of that case smaller"
        )


_Place = tuple[str, int]  # the name of a constant, and the index into it when it is a tuple (else 0)


def _scaled_down(task: TaskFile) -> dict[str, Json] | None:
    """Overrides that make the file's own case small: halve the largest constant that matters until it fits."""
    constants: dict[str, Any] = dict(int_constants(task.source))
    overrides: dict[str, Json] = {}
    size = _try(task, overrides)
    stuck: set[_Place] = set()
    for _ in range(_MOST_HALVINGS):
        if size is None or size.is_small:
            break
        places = _largest(constants | overrides, stuck)
        smaller = None
        for chosen in (places[:1], places) if places else ():  # alone, or with all constants of its value
            attempt = overrides | _halved(constants | overrides, chosen)
            if (smaller := _try(task, attempt)) is not None and smaller.cost < size.cost:
                overrides, size = attempt, smaller
                break
        else:
            stuck |= set(places[:1])  # another constant depends on it, or nothing does
        if not places:
            return None
    return overrides if size is not None and size.is_small else None


def _try(task: TaskFile, overrides: Mapping[str, Json]) -> _Size | None:
    return _faked(_alone(task, tuple(overrides.items())))


def _largest(constants: Mapping[str, Any], stuck: set[_Place]) -> list[_Place]:
    """Places of the largest constant that still may be halved; several where several have its value."""
    found = [
        (item, (name, index))
        for name, value in constants.items()
        for index, item in enumerate(value if isinstance(value, tuple) else (value,))
        if item > _SMALLEST
    ]
    largest = max((item for item, place in found if place not in stuck), default=0)
    same = [place for item, place in found if item == largest]
    return sorted(same, key=lambda place: place in stuck)


def _halved(constants: Mapping[str, Any], places: Sequence[_Place]) -> dict[str, Json]:
    """New values for the constants at these places."""
    new = {name: constants[name] for name, _ in places}
    for name, index in places:
        value = new[name]
        new[name] = (
            (*value[:index], _half(value[index]), *value[index + 1 :]) if isinstance(value, tuple) else _half(value)
        )
    return new


def _half(value: int) -> int:
    """Half of an even number; of an odd one, the next power of two below, which divides better than its half."""
    return value // 2 if value % 2 == 0 else 1 << (value.bit_length() - 1)


def _runs(task: TaskFile) -> bool:
    """Whether the small case runs with values, and gives finite ones."""
    try:
        problem = Problem.load(task, SMALL)
        return is_finite(problem.native(problem.inputs(0) or ()))
    except TaskError:
        return False
