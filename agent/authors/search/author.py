"""The author that needs no key and no network: Inductor's kernels, expert kernels, and a search over both."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from kerneltune.agent.attempt import Attempt, Earlier, Proposal, SearchPoint, point_of
from kerneltune.agent.authors.search.clean import (
    ELEMENTWISE,
    PRODUCTS,
    CaseArguments,
    LoweredCode,
    LoweringFacts,
    clean,
    library_calls,
)
from kerneltune.agent.authors.search.experts import experts, float32_products, ptx_experts
from kerneltune.agent.authors.search.neighbours import (
    SHARED_LIMIT_BYTES,
    CannotLower,
    LowersTooLong,
    Move,
    NoKernel,
    Remembered,
    Sketch,
    View,
    describe,
    fingerprint,
    search,
)
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.languages.ptx.candidate import CannotSay
from kerneltune.tools.schema.codec import Json, decode, encode, literal, syntax_tree
from kerneltune.tools.schema.errors import WorkerError
from kerneltune.tools.schema.gpus import GPUS, gpu_for_arch, speed_of_light
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, tensors_of
from kerneltune.tools.task.load import replaced_by_cases

Lower = Callable[[str, dict[str, Json], int], LoweredCode]

# What Inductor may be told to do otherwise; a setting that changes nothing yields the same text and is not proposed.
_SETTINGS: dict[str, dict[str, Json]] = {
    "inductor": {},
    "inductor_looped": {"triton.persistent_reductions": False},
    "inductor_unsplit": {"split_reductions": False},
}
_VARIANTS = _SETTINGS.keys() - {"inductor"}  # they differ in reductions only, so experts come before them
_WITHOUT_LAYOUTS: dict[str, Json] = {"layout_optimization": False}  # our convolutions make copies with channels last
_ALGEBRA: dict[str, Json] = {"algebra": True}
# kernels of a lowering of which other settings are asked for: DenseNet-121 has 153, and each takes 27 s of processor
# time before the first candidate
_MOST_KERNELS = 8
# kernels of a lowering that comes before the one with products of our own, since it is ready far earlier. DenseNet-121
# has 153 beside cuDNN's convolutions, traced and compiled in 47 s on two busy cores, and 304 with ours, in 177 s
_MOST_BESIDE = 64


def through(call: Callable[[dict[str, Json]], dict[str, Json]]) -> Lower:
    """`lower` by way of a child process that runs `inductor.main`: `call` sends a body and returns the answer's."""

    def lower(source: str, overrides: dict[str, Json], arch: int) -> LoweredCode:
        reply = call({"source": source, "overrides": overrides, "arch": arch})
        if "error" in reply:
            raise (LowersTooLong if reply.get("late") else CannotLower)(str(reply["error"]))
        return decode(LoweredCode, reply["lowered"])

    return lower


class OfflineAuthor:
    """Proposes Inductor's candidate, the experts' and Inductor's variants, then neighbours of the best points.

    What comes next depends on the seed, the history, what is under way and what `earlier` runs found, and on nothing
    else: a resumed run knows more verdicts than the interrupted one did, and goes on from there. `told` hears of which
    sketch points are put off, and why.

    Where a person's own file has a search space (`own`), only its points are proposed. With `algebra`, what is exact in
    real numbers is rewritten before TorchInductor gets it, as one more sketch; with `emulation`, one more has float32
    products as three of float16.

    With `as_ptx` kernels are proposed as PTX: our experts in it first, then what Triton makes of the others' points.
    `as_ptx` takes a Triton candidate and gives the same in PTX, or raises CannotSay.
    """

    name = "offline"

    def __init__(
        self,
        lower: Lower,
        arch: int,
        seed: int = 0,
        earlier: Sequence[Earlier] = (),
        told: Callable[[str], None] = lambda _: None,
        as_ptx: Callable[[str], str] | None = None,
        own: Callable[[], Sketch | None] = lambda: None,
        *,
        algebra: bool = True,
        emulation: bool = True,
    ) -> None:
        self._own, self._algebra, self._emulation = own, algebra, emulation
        self._lower, self._arch, self._seed, self._earlier, self._told = lower, arch, seed, earlier, told
        self._as_ptx, self._not_ptx = as_ptx, set[str]()  # names of sketches that cannot be said in PTX
        self._sketches: dict[str, list[Sketch]] = {}
        self._given: dict[str, set[str]] = {}  # by task, fingerprints of what was proposed
        self._memory: dict[str, Remembered] = {}
        self._put_off: set[tuple[str, str]] = set()
        self._only_known: set[str] = set()  # tasks whose code for all shapes takes too long, or would
        self.problems: list[str] = []  # why Inductor's kernels are missing, for a warning to the user

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """Up to `width` candidates that were not proposed before; [] when there is nothing left."""
        sketches = self.sketches(task)
        given = self._given.setdefault(task.sha256, set())
        finished = {_point_of(a, {sketch.name: sketch for sketch in sketches}) for a in history}
        earlier = self._remembered(task, sketches)
        found: list[Proposal] = []
        while len(found) < width:
            view = View(
                sketches,
                history,
                earlier,
                _shared_limit(self._arch),
                self._seed,
                len(finished | given),
                speed_of_light(task.main, gpu_for_arch(f"sm_{self._arch}"), task.precision).bound == "memory",
            )
            proposal = self._next(view, finished, given)
            if proposal is None:
                break
            found.append(proposal)
        return found

    def _next(self, view: View, finished: set[str], given: set[str]) -> Proposal | None:
        for move in search(view, self._say):
            source = move.sketch.render(move.params)
            print_ = _fingerprint(source)
            if print_ in finished or print_ in given or move.sketch.name in self._not_ptx:
                continue
            given.add(print_)
            if (said := self._in_language(move.sketch.name, source)) is not None:
                return _proposal(move, said)
        return None

    def _in_language(self, name: str, source: str) -> str | None:
        """The candidate in the language of the run; None where a kernel has no PTX, at whatever point."""
        if self._as_ptx is None or language_of(source) == "ptx":
            return source
        try:
            return self._as_ptx(source)
        except CannotSay as error:
            self._not_ptx.add(name)
            self.problems.append(f"{name} cannot be said in PTX: {error}")
            return None

    def _say(self, sketch: str, why: str) -> None:
        if (sketch, why) not in self._put_off:
            self._put_off.add((sketch, why))
            self._told(f"points of {sketch} come last: {why}")

    def _remembered(self, task: TaskSpec, sketches: Sequence[Sketch]) -> Remembered:
        if task.sha256 not in self._memory:
            found = Remembered.of(self._earlier, {sketch.name: sketch for sketch in sketches})
            self._memory[task.sha256] = found
            if found.words:
                self._told(found.words)
        return self._memory[task.sha256]

    def sketches(self, task: TaskSpec) -> list[Sketch]:
        """What it searches among, Inductor's first; the first time, TorchInductor is asked for its own."""
        if task.sha256 not in self._sketches:
            own = self._own()
            made = [own] if own else self._lowered_and_experts(task)
            texts = {_fingerprint(sketch.source): sketch for sketch in reversed(made)}
            self._sketches[task.sha256] = [s for s in made if texts[_fingerprint(s.source)] is s]
        return self._sketches[task.sha256]

    def _lowered_and_experts(self, task: TaskSpec) -> list[Sketch]:
        own_ptx = ptx_experts(task) if self._as_ptx else []
        others = experts(task)
        made = self._inductor(task, alone=not own_ptx and not others)
        variants = [sketch for sketch in made if sketch.name in _VARIANTS]
        return [*own_ptx, *(sketch for sketch in made if sketch not in variants), *others, *variants]

    def _inductor(self, task: TaskSpec, *, alone: bool) -> list[Sketch]:
        """`alone`: there is no expert, so it is told where TorchInductor has no kernel either."""
        found: list[Sketch] = []
        others: list[LoweredCode] | None = None
        libraries_first = False
        for name, config in _SETTINGS.items():
            try:
                main = self._lower(task.source, {**overrides(task, task.main), "config": config}, self._arch)
                if not config:
                    libraries_first = _is_depthwise(main) or len(main.kernels) > _MOST_BESIDE
                    found += [*self._split(task, main), *self._rewritten(task, main)]
                made = clean(task.name, task.source, [main], name)  # raises where there are no kernels to add others to
                others = self._other_cases(task, main, {}) if others is None else others
                found.append(clean(task.name, task.source, [main, *others], name) if others else made)
                if len(main.kernels) > _MOST_KERNELS or not _reduces(main):
                    break
            except (CannotLower, WorkerError) as error:
                if not isinstance(error, NoKernel) or (alone and not found):
                    self.problems.append(f"no kernels from {name}: {error}")
                if not config:  # what fails as it comes will not do better with other settings
                    break
        return sorted(found, key=lambda sketch: libraries_first and sketch.name.startswith("split_"))

    def _split(self, task: TaskSpec, plain: LoweredCode) -> list[Sketch]:
        """Products and convolutions of float32 by our own functions, the rest as Inductor writes it; the same of what
        algebra makes of the formula, first."""
        called = {name.removeprefix("bias_") for name in library_calls(plain.text).split(", ")} & set(PRODUCTS)
        if not self._emulation or task.precision != "float32" or not called:
            return []
        is_lowered_again = "convolution" in called and len(plain.kernels) <= _MOST_KERNELS
        also: dict[str, Json] = {"config": _WITHOUT_LAYOUTS} if is_lowered_again else {}
        made = self._beside(task, plain, "split_products", also, float32_products())
        if self._is_rewritten(plain):
            made = self._beside(task, plain, "split_algebraic", also | _ALGEBRA, float32_products()) + made
        return made

    def _is_rewritten(self, plain: LoweredCode) -> bool:
        return self._algebra and bool(plain.facts.allows) and len(plain.kernels) <= _MOST_KERNELS

    def _rewritten(self, task: TaskSpec, plain: LoweredCode) -> list[Sketch]:
        """The same of what algebra makes of the formula, where that is something else."""
        return self._beside(task, plain, "inductor_algebraic", _ALGEBRA) if self._is_rewritten(plain) else []

    def _beside(
        self, task: TaskSpec, plain: LoweredCode, name: str, also: dict[str, Json], products: Sketch | None = None
    ) -> list[Sketch]:
        """One more sketch beside the plain one: of another lowering where `also` overrides something; `products` take
        the places of library calls. None where they have no use."""
        try:
            main = self._lower(task.source, {**overrides(task, task.main), **also}, self._arch) if also else plain
            made = clean(task.name, task.source, [main], name, products)  # raises where others are not worth asking for
            others = self._other_cases(task, main, also, products)
            return [clean(task.name, task.source, [main, *others], name, products) if others else made]
        except NoKernel:
            return []
        except (CannotLower, WorkerError) as error:
            self.problems.append(f"no kernels from {name}: {error}")
            return []

    def _other_cases(
        self, task: TaskSpec, main: LoweredCode, also: dict[str, Json], products: Sketch | None = None
    ) -> list[LoweredCode]:
        """Code for what the timed case's code does not cover: any shape if Inductor manages, else each case's own."""
        if len(task.cases) == 1:
            return []
        if len(main.kernels) > _MOST_KERNELS and not any(case.held_out for case in task.cases):
            # code for any shape took 7 to 43 s of a processor for eight of KernelBench's models, for six of them in
            # vain (pooling after pooling, attention); that of the other case is as long as the first's, 1.5 to 8 s
            self._only_known.add(task.sha256)
        codes: list[LoweredCode] = []
        for case in (c for c in task.cases if not c.held_out):  # the timed one counts as uncovered: its shape may vary
            if not any(code.facts.covers(_arguments(case, code.facts)) for code in codes):
                codes += self._lower_case(task, case, also, products)
        return [code for code in codes if code != main]

    def _lower_case(
        self, task: TaskSpec, case: CaseSpec, also: dict[str, Json], products: Sketch | None
    ) -> list[LoweredCode]:
        if task.sha256 not in self._only_known:  # each further case lost 10 s
            try:
                code = self._lower(task.source, {**overrides(task, case), **also, "dynamic": True}, self._arch)
                if code.facts.covers(_arguments(case, code.facts)):
                    clean(task.name, task.source, [code], products=products)
                    return [code]
            except (CannotLower, WorkerError) as error:
                self.problems.append(f"no kernels for all shapes, only for known ones: {error}")
                if isinstance(error, LowersTooLong):
                    self._only_known.add(task.sha256)
        return [] if case is task.main else [self._lower(task.source, {**overrides(task, case), **also}, self._arch)]


def _is_depthwise(code: LoweredCode) -> bool:
    """Whether a convolution has a filter of its own for each channel. Networks of such have few channels and places for
    the products between them, too: on an H200 MobileNetV1 is at 1.01x of the faster baseline with cuDNN's convolutions,
    at 0.63x with ours; MobileNetV2 with ours at 0.58x, EfficientNet-B0 at 0.53x."""
    filters = (shape for shape, _ in code.facts.state.values() if len(shape) > 2 and shape[0] > shape[1] == 1)
    return any(re.search(rf"\bgroups={shape[0]}\b", code.text) for shape in filters)


def _reduces(code: LoweredCode) -> bool:
    """Whether some kernel reduces, sorts or scans: without one, the other settings lead to the same kernels."""
    return not all(name.startswith(ELEMENTWISE) for name in code.kernels)


_fingerprint = functools.lru_cache(4096)(fingerprint)  # of the same few hundred sources, at each proposal


def _point_of(attempt: Attempt, known: Mapping[str, Sketch]) -> str:
    """The fingerprint of the sketch's text at the attempt's point, whatever language that was said in; of what is no
    point of ours its own text's."""
    point = point_of(attempt.origin)
    sketch = known.get(point.sketch) if point else None
    if point and sketch and set(point.params) <= set(sketch.params):
        return _fingerprint(sketch.render(point.params))
    return _fingerprint(attempt.source)


def _shared_limit(arch: int) -> int:
    """Bytes of shared memory that a block may have."""
    return next((gpu.shared_per_block_bytes for gpu in GPUS if gpu.arch == arch), SHARED_LIMIT_BYTES)


def _proposal(move: Move, source: str) -> Proposal:
    rationale, hypothesis, prediction = describe(move)
    parent_id = move.parent.attempt_id if move.parent else move.origin
    return Proposal(source, rationale, parent_id, SearchPoint(move.sketch.name, move.params), hypothesis, prediction)


def lowered(lower: Lower, arch: int, task: TaskSpec) -> Sketch:
    """TorchInductor's kernels for the timed case, as they come. Raises CannotLower and WorkerError."""
    code = lower(task.source, {**overrides(task, task.main), "config": _SETTINGS["inductor"]}, arch)
    return clean(task.name, task.source, [code])


def overrides(task: TaskSpec, case: CaseSpec) -> dict[str, Json]:
    """What `inductor.lower` needs to see one case: its inputs, its constructor's arguments, its module constants, and
    the same without the inputs of every case that may be known, if there are several."""
    known = {c.name: _made(task, c) for c in task.cases if not c.held_out}
    several: dict[str, Json] = {"cases": known} if len(known) > 1 else {}
    return {**_made(task, case), **several, "inputs": encode(case.inputs)}


def _made(task: TaskSpec, case: CaseSpec) -> dict[str, Json]:
    return {**replaced_by_cases(syntax_tree(task.source)).get(case.name, {}), "init_args": encode(case.init_args)}


def _arguments(case: CaseSpec, facts: LoweringFacts) -> CaseArguments:
    state = {name: (spec.shape, spec.dtype) for name, spec in case.state.items()}
    specs = [spec for _, spec in tensors_of(case.inputs)]
    strides = {place: [*spec.stride] for place, spec in enumerate(specs) if spec.stride is not None}
    inputs = [(spec.shape, spec.dtype) for spec in specs]
    return CaseArguments(state, inputs, facts.cases.get(case.name, {}), strides, [*_plain(encode(case.inputs))])


def _plain(tree: Json) -> Iterator[str]:
    """What is no tensor among the inputs, as Python text, in the order of `LoweringFacts.inputs`."""
    if isinstance(tree, dict):
        if "$float" in tree:
            yield literal(float(tree["$float"]))
        elif "$dtype" in tree:
            yield f"torch.{tree['$dtype']}"
        elif "$tensor" not in tree:
            yield from _plain(tree["$tuple"] if "$tuple" in tree else [*tree.get("$dict", tree).values()])
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _plain(value)
    else:
        yield literal(tree)
