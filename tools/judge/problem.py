"""One case of a task, loaded: what is drawn for a check of it, and what a right candidate may answer.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. It never sees
a candidate.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from tools.errors import OutOfMemory, TaskError
from tools.judge.answers import Answer, Drawn, Regime
from tools.judge.batteries import PROBES
from tools.judge.compare import native_holds
from tools.judge.contract import declared_kinds, inferred_kinds
from tools.judge.execute import blame
from tools.judge.gates import MOST_SAMPLES, Expected, has_float8_matrices, rounds_operands, samples_for
from tools.judge.inputs import derived
from tools.judge.lengths import Lengths
from tools.judge.model import ReferenceModel
from tools.judge.precise import Disturbances, default_float64, differences, flushed, widened
from tools.judge.probe import Numbering, Probe, is_exact, probes, required_bits, with_leaves
from tools.judge.room import free_cached, with_room
from tools.judge.tree import Tree, is_finite, leaves, map_tensors, numel, tensors
from tools.task import CaseDef, TaskFile
from tools.verdict import Limitation, LimitationKind

# output elements; above, disturbed copies in float64 take tens of gigabytes, and what finds no memory is tried twice
MOST_DISTURBED = {"cpu": 1 << 28, "cuda": 1 << 30}
# equal terms are rounded the same way, so errors add up as L, not sqrt(L); whole numbers that something scales, too
_LENIENCE = {"structure": 4.0, "offset": 4.0, "one_hot": 4.0, "integers": 4.0}


__all__ = ["Answer", "Drawn", "LoadedCase", "Regime"]


class LoadedCase(ReferenceModel):
    """One case of one task on one device, as declared; `tools.judge.reference.Problem.load` finds it by name.

    `left_out`: batteries that there was no memory for when they were drawn last, and what was asked for."""

    def __init__(
        self, task: TaskFile, case: CaseDef, device: str = "cpu", make_room: Callable[[], None] = free_cached
    ) -> None:
        self._contracts: bool | None = None  # whether the reference has a contraction; None: not looked at yet
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
        although it is on those; and where there is no memory to find that out, which `left_out` says. Raises
        OutOfMemory when the task's own inputs do not fit."""
        self.left_out.pop(battery, None)
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
        if not self._rehearsed(battery) or self._finite_results(inputs, specials=battery == "specials") is None:
            return None
        if battery == "huge" and (self._loses_to_rounding or not self._native_holds(inputs)):
            return None
        regime = Regime(flushes=battery == "tiny", lenience=_LENIENCE.get(battery, 1.0))
        return self._drawn(seed, battery, inputs, regime)

    def _native_holds(self, inputs: tuple[Any, ...]) -> bool:
        expected = self.expect(inputs)
        for limitation in expected.limitations:
            if limitation.kind is LimitationKind.NOT_FLOAT64:  # it would be compared with itself
                raise OutOfMemory(str(limitation), limitation.asked_for)
        return native_holds(expected)

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
        return Drawn(seed, battery, inputs, state, regime, self._altered)

    def _whole_parameters(self, seed: int, inputs: tuple[Any, ...]) -> bool:
        """Make the parameters small integers too, when the reference then computes with nothing but integers."""
        parameters = {name: tensor.detach() for name, tensor in self.model.named_parameters()}
        if parameters:
            self._put(derived(parameters, "integers", seed, dict.fromkeys(parameters, "any")) or {})
        results = self._finite_results(inputs, whole=True)
        if results is not None and _not_short(results[1]).whole:
            return True
        self.reseed(seed)
        return False

    def _finite_results(
        self, inputs: tuple[Any, ...], *, whole: bool = False, specials: bool = False
    ) -> tuple[Tree, Answer] | None:
        """What the reference makes of other inputs than the task's own, when that is of use. Raises OutOfMemory."""
        try:
            native, answer = self.native(inputs), self.reference(inputs, whole=whole)
        except OutOfMemory:
            raise
        except TaskError:
            return None
        return (native, answer) if specials or is_finite((native, answer.values)) else None

    def _probed(self, seed: int, battery: str) -> Drawn | None:
        """The sharpest probe that the reference allows."""
        if required_bits(self.precision) is None or self._contracts is False:
            return None
        own = self._own(seed)
        free = self._free_leaves(own)
        found = with_room(lambda: self._numbered(own, free), self._make_room)
        self._contracts = bool(found)
        for probe in probes(found, free, seed, left=battery == "one_hot_left"):
            self.reseed(seed)
            self._put({name[6:]: t for name, t in probe.leaves.items() if name.startswith("state:")})
            inputs = tuple(with_leaves(own, "input", probe.leaves))
            regime = self._regime_of(probe, inputs, single=len(found) == 1)
            if regime is not None:
                return self._drawn(seed, battery, inputs, regime)
        self.reseed(seed)
        return None

    def _regime_of(self, probe: Probe, inputs: tuple[Any, ...], *, single: bool) -> Regime | None:
        """How strictly a probe may be judged: by bits where nothing but the contraction rounds."""
        results = self._finite_results(inputs)
        if results is None:
            return None
        native, answer = results[0], _not_short(results[1])
        if is_exact(answer.values, native):
            return Regime(one_hot=True, bits=required_bits(self.precision))
        if probe.alone and len(probe.leaves) > 2:  # another one follows, in which less is zero
            return None
        lasts = [t.shape[-1] for t in tensors(native) if t.dim()]
        return Regime(one_hot=True, longest=max(1, *lasts, 1) if single else None, lenience=_LENIENCE["one_hot"])

    def _free_leaves(self, own: Tree) -> dict[str, Tensor]:
        """Floating inputs that may be anything, and parameters, by origin and path."""
        inputs = {f"input:{path}": leaf for path, leaf in leaves(own) if self.kinds.get(path) in ("any", "special")}
        state = {f"state:{name}": tensor.detach() for name, tensor in self.model.named_parameters()}
        found = (inputs | state).items()
        return {n: t for n, t in found if isinstance(t, Tensor) and t.is_floating_point() and t.numel()}

    def _numbered(self, own: Tree, free: Mapping[str, Tensor]) -> list[Any]:
        """The contractions of the reference, found by running it on numbers for values. Raises OutOfMemory."""
        numbering = Numbering(free)
        numbers = numbering.numbered(free)
        try:
            with blame(self.task, "forward()"), default_float64(), torch.no_grad():
                model = copy.deepcopy(self.model).double()
                for name, tensor in model.named_parameters():
                    tensor.copy_(numbers.get(f"state:{name}", tensor))
                arguments = map_tensors(widened, with_leaves(own, "input", numbers))
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
        with Lengths() as lengths:
            native = self.native(inputs)
        answer, regime = self.reference(inputs), self._regime
        noise = self._noise(inputs, answer, min(samples_for(native, self.precision), most_samples))
        return Expected(
            answer.values,
            native,
            self.precision,
            regime.longest or lengths.longest((inputs, self.state()), native),
            noise.all_operations,
            slack=self._slack(inputs, native, answer) if regime.flushes else None,
            exact_operands=regime.exact_operands,
            one_hot=regime.one_hot,
            bits=regime.bits,
            selections=answer.selections,
            lenience=regime.lenience,
            read=0 if regime.longest else lengths.read((inputs, self.state())),
            operand_noise=noise.operands,
            float8_operands=has_float8_matrices((inputs, self.state())),
            limitations=noise.limitations,
        )

    def _slack(self, inputs: tuple[Any, ...], native: Tree, answer: Answer) -> Tree:
        """What counting denormal inputs as zeros changes: in float64, else in the reference's dtype on either side."""
        zeros = map_tensors(flushed, inputs)
        other = self.reference(zeros)
        if answer.exact and other.exact:
            return differences(answer.values, other.values)
        return differences(*(map_tensors(widened, values) for values in (native, self.native(zeros))))

    def _noise(self, inputs: tuple[Any, ...], answer: Answer, samples: int) -> "_Noise":
        if not answer.exact:
            return _Noise(limitations=(answer.limitation,) if answer.limitation else ())
        if numel(answer.values) > MOST_DISTURBED[self.device]:
            return _Noise(limitations=(Limitation(LimitationKind.MANY_OUTPUTS),))
        try:
            return with_room(lambda: self._measured_noise(inputs, answer, samples), self._make_room)
        except OutOfMemory as error:
            return _Noise(limitations=(Limitation(LimitationKind.NO_NOISE, error.asked_for),))

    def _measured_noise(self, inputs: tuple[Any, ...], answer: Answer, samples: int) -> "_Noise":
        generator = Generator(self.device).manual_seed(self._seed)
        with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
            disturbances = Disturbances(self._forward, self.model, inputs, answer.values, generator)
            return _Noise(disturbances.spread(samples), disturbances.of_operands())


@dataclass(frozen=True)
class _Noise:
    """What relative noise does to a float64 answer. Without it a row's root mean square stands in, which is wider for
    what is small beside the rest of its row: an error of 0.1 % in 98 % of a softmax's elements (4,096 of 6 randn) is
    2.2 times the tolerance with noise and 0.25 without. So `limitations` says why there is none."""

    all_operations: Tree | None = None
    operands: Tree | None = None
    limitations: tuple[Limitation, ...] = ()


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


@functools.lru_cache(maxsize=256)
def _taken(task: TaskFile, case: str, battery: str) -> bool:
    return LoadedCase(task, task.case(case)).takes(battery)
