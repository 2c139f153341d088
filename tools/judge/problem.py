"""One case of a task, loaded: its inputs, its parameters, and its answer in float64.

Runs the task file's own code, so it belongs in a trusted child process, never in the command itself. It never sees
a candidate. The in-place semantics of a reference stay inside: each run gets copies.
"""

import copy
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from tools.errors import TaskError
from tools.judge.answers import Answer, Drawn, Regime
from tools.judge.compare import native_holds
from tools.judge.contract import declared_kinds, inferred_kinds
from tools.judge.execute import blame, execute, placed, randomise, seed_everything
from tools.judge.gates import MOST_SAMPLES, Expected, has_float8_matrices, rounds_operands, samples_for
from tools.judge.inputs import derived
from tools.judge.lengths import Lengths
from tools.judge.precise import Disturbances, default_float64, differences, flushed, plain_arithmetic, widened
from tools.judge.probe import Numbering, Probe, is_exact, probes, required_bits, with_leaves
from tools.judge.protocol import PROBES
from tools.judge.ties import Watching
from tools.judge.tree import Tree, dtype_name, is_finite, leaves, map_tensors, numel, stored_as, tensors
from tools.task import CaseDef, TaskFile

MOST_DISTURBED = 1 << 28  # output elements; above, disturbed copies in float64 take tens of gigabytes each
# equal terms are rounded the same way, so errors add up as L, not sqrt(L)
_LENIENCE = {"structure": 4.0, "offset": 4.0, "one_hot": 4.0}


__all__ = ["Answer", "Drawn", "LoadedCase", "Regime"]


class LoadedCase:
    """One case of one task on one device, as declared; `tools.judge.reference.Problem.load` finds it by name."""

    def __init__(self, task: TaskFile, case: CaseDef, device: str = "cpu") -> None:
        self.task, self.case, self.device = task, case, device
        self._seed, self._altered, self._regime = 0, False, Regime()
        self._contracts: bool | None = None  # whether the reference has a contraction; None: not looked at yet
        with blame(task, "the task file"):
            self._module = execute(task, case)
        with blame(task, "get_init_inputs()"), torch.device(device):
            seed_everything(0)
            self.init_args: tuple[Any, ...] = tuple(self._call("get_init_inputs", optional=True))
        self.reseed(0)

    @functools.cached_property
    def precision(self) -> str:
        """The declared arithmetic of this case; without a declaration, the narrowest format that it stores."""
        declared = dict(self.case.overrides).get("PRECISION", self.task.precision)
        return str(declared) if declared else self._stored_precision()

    def _stored_precision(self) -> str:
        names = {dtype_name(t.dtype) for t in tensors((self._own(0), self.state())) if t.is_floating_point()}
        order = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32", "float64")
        return next((name for name in order if name in names), "float32")

    def reseed(self, seed: int) -> None:
        """Build the model anew: every parameter and running statistic follows from the seed, none is an identity."""
        self._regime = Regime()
        if seed == self._seed and hasattr(self, "model") and not self._altered:
            return
        with blame(self.task, "Model(…)"), torch.device(self.device), torch.no_grad():
            seed_everything(seed)
            model = self._module.Model(*map_tensors(Tensor.clone, self.init_args))
            if not isinstance(model, nn.Module):
                raise TypeError("Model is not a torch.nn.Module")
            self.model = placed(model, self.device).eval()
            randomise(self.model, seed)
        self._seed, self._altered = seed, False

    def restore(self, drawn: Drawn) -> None:
        """Make the parameters and the judge's strictness those of an earlier draw."""
        self.reseed(drawn.seed)
        if drawn.alters:
            self._put(drawn.state)
        self._regime = drawn.regime

    def _put(self, state: Mapping[str, Tensor]) -> None:
        own = self.state()
        self._altered = True
        for name, tensor in state.items():
            own[name].copy_(tensor)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by state_dict key; they change with `reseed`."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items() if isinstance(tensor, Tensor)}

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
        """Whether the reference runs on these inputs, and makes no NaN of them in float64."""
        try:
            values = self.reference(tuple(inputs)).values
        except TaskError:
            return False
        return not any(bool(torch.isnan(t).any()) for t in tensors(values) if t.is_floating_point())

    def _own(self, seed: int) -> tuple[Any, ...]:
        with blame(self.task, "get_inputs()"), torch.device(self.device), torch.no_grad():
            seed_everything(seed)
            return tuple(map_tensors(lambda t: t.detach().to(self.device), self._call("get_inputs")))

    def _call(self, name: str, *, optional: bool = False) -> list[Any]:
        function = getattr(self._module, name, None)
        if function is None and optional:
            return []
        result = function()  # type: ignore[misc]
        if not isinstance(result, list | tuple):
            raise TypeError(f"{name}() returned a {type(result).__name__}, not a list")
        return list(result)

    def draw(self, seed: int, battery: str = "own") -> Drawn | None:
        """Inputs and parameters for one check, which also become the present ones; None where the battery does not
        apply: it would repeat the task's own inputs, leave what they may be, or make the reference itself not finite
        although it is on those."""
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
        if battery == "huge" and (self._loses_to_rounding or not native_holds(self.expect(inputs))):
            return None
        regime = Regime(flushes=battery == "tiny", lenience=_LENIENCE.get(battery, 1.0))
        return self._drawn(seed, battery, inputs, regime)

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
        if results is not None and results[1].whole:
            return True
        self.reseed(seed)
        return False

    def _finite_results(
        self, inputs: tuple[Any, ...], *, whole: bool = False, specials: bool = False
    ) -> tuple[Tree, Answer] | None:
        """What the reference makes of other inputs than the task's own, when that is of use."""
        try:
            native, answer = self.native(inputs), self.reference(inputs, whole=whole)
        except TaskError:
            return None
        return (native, answer) if specials or is_finite((native, answer.values)) else None

    def _probed(self, seed: int, battery: str) -> Drawn | None:
        """The sharpest probe that the reference allows."""
        if required_bits(self.precision) is None or self._contracts is False:
            return None
        own = self._own(seed)
        free = self._free_leaves(own)
        found = self._numbered(own, free)
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
        native, answer = results
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
        """The contractions of the reference, found by running it on numbers for values."""
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
        except TaskError:
            pass  # it got as far as it got: a reference may check what it is given
        return numbering.found

    def native(self, inputs: tuple[Any, ...]) -> Tree:
        """The reference in its own dtype, as trusted as it is imprecise."""
        with blame(self.task, "forward()"), plain_arithmetic(tf32=self.precision == "tf32_ok"), torch.no_grad():
            return self._forward(self.model, map_tensors(Tensor.clone, inputs))

    def reference(self, inputs: tuple[Any, ...], *, whole: bool = False) -> Answer:
        """The reference in float64; in its own dtype, with a note, when it cannot run so."""
        try:
            with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
                model, arguments = copy.deepcopy(self.model).double(), map_tensors(widened, inputs)
                with Watching((arguments, dict(model.state_dict())), whole=whole) as watching:
                    values = self._forward(model, arguments)
                return Answer(values, selections=watching.selections(values), whole=watching.whole)
        except TaskError as error:
            return Answer(map_tensors(widened, self.native(inputs)), exact=False, note=str(error))

    def stored_answer(self, inputs: tuple[Any, ...]) -> Tree:
        """The float64 answer, rounded to the formats of the reference's own."""
        return stored_as(self.native(inputs), self.reference(inputs).values)

    def _forward(self, model: nn.Module, inputs: tuple[Any, ...]) -> Tree:
        seed_everything(self._seed)  # dropout and the like: the same draw in every arithmetic
        with torch.device(self.device):
            return map_tensors(Tensor.detach, model(*inputs))

    def expect(self, inputs: tuple[Any, ...], *, most_samples: int = MOST_SAMPLES) -> Expected:
        """What a right candidate may return for these inputs and the present parameters. The noise is estimated from as
        many samples as the arithmetic asks for, `most_samples` at most."""
        with Lengths() as lengths:
            native = self.native(inputs)
        answer = self.reference(inputs)
        samples = min(samples_for(native, self.precision), most_samples)
        wanted = answer.exact and numel(answer.values) <= MOST_DISTURBED
        noise, operands = self._noise_if_it_fits(inputs, answer, samples) if wanted else (None, None)
        regime, slack = self._regime, None
        if regime.flushes:  # what counting denormal inputs as zeros changes
            slack = differences(answer.values, self.reference(map_tensors(flushed, inputs)).values)
        return Expected(
            answer.values,
            native,
            self.precision,
            regime.longest or lengths.longest((inputs, self.state()), native),
            noise,
            slack=slack,
            exact_operands=regime.exact_operands,
            one_hot=regime.one_hot,
            bits=regime.bits,
            selections=answer.selections,
            lenience=regime.lenience,
            read=0 if regime.longest else lengths.read((inputs, self.state())),
            operand_noise=operands,
            float8_operands=has_float8_matrices((inputs, self.state())),
        )

    def _noise_if_it_fits(
        self, inputs: tuple[Any, ...], answer: Answer, samples: int
    ) -> tuple[Tree | None, Tree | None]:
        """None when the memory does not hold it: the tolerance is then what the other terms give, which is tighter."""
        generator = Generator(self.device).manual_seed(self._seed)
        try:
            with blame(self.task, "forward() in float64"), default_float64(), torch.no_grad():
                disturbances = Disturbances(self._forward, self.model, inputs, answer.values, generator)
                return disturbances.spread(samples), disturbances.of_operands()
        except torch.OutOfMemoryError:
            pass
        except TaskError as error:
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
        torch.cuda.empty_cache()
        return None, None


@functools.lru_cache(maxsize=64)
def _inferred(task: TaskFile, case: str, device: str) -> Mapping[str, str]:
    """Kinds of a task's inputs: of one case, the smallest, since what a task may be fed does not depend on sizes; on a
    CPU, where inputs outside of what a reference is defined for raise an error instead of ending the GPU's context."""
    problem = LoadedCase(task, task.case(case), device)
    return inferred_kinds([problem._own(seed) for seed in range(3)], problem.in_domain)


@functools.lru_cache(maxsize=256)
def _taken(task: TaskFile, case: str, battery: str) -> bool:
    return LoadedCase(task, task.case(case)).takes(battery)
