"""How a program calls a function or module of its own: sizes, dtypes, strides, how often, and what the values are like.

It runs in other people's programs, so it imports the standard library alone and takes tensors as they come.
"""

import atexit
import builtins
import contextlib
import functools
import inspect
import itertools
import json
import os
import random
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kerneltune.tools.schema.codec import Json, decode, encode, one_line, parsed, read_file
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.write import FLOATS, SeenCall, SeenTensor, parts_of, task_source

_MOST_KINDS = 64  # of calls that are told apart; those after them are only counted
_MOST_WHY = 200  # characters of why a call was not captured
_MOST_CHOICES = 200  # of sizes that a constructor may have been given
_MOST_SECONDS = 5.0  # for that
_MOST_VALUES = 4096  # of a tensor that are looked at
_LITERALS = (bool, int, float, str, type(None))


def seen_tensor(value: Any, *, values: bool = True) -> SeenTensor:
    """A tensor as the writer of tasks wants it. `values`: look at some, for which a GPU is waited for. Raises TaskError
    for what no task can be given, and whatever torch does where it cannot be looked at."""
    if kind := _strange(value):
        raise TaskError(f"is a {kind} tensor")
    shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    dtype = str(value.dtype).removeprefix("torch.")
    seen = SeenTensor(shape, dtype, None if value.is_contiguous() else stride)
    if not values or not value.numel() or dtype == "bool":
        return seen
    if _is_captured(value.device):  # to wait for the GPU would end that
        raise TaskError("is not to be read while a graph of the GPU's work is captured")
    step = max(1, value.numel() // _MOST_VALUES)
    some = value.detach().reshape(-1)[::step]
    if not value.is_floating_point():
        return replace(seen, low=int(value.min()), high=int(value.max()) + 1) if not value.is_complex() else seen
    some = some.double()
    some = some[some.isfinite()]  # a mask is 0 and -inf
    if not some.numel():
        return seen
    return replace(seen, mean=float(some.mean()), deviation=float(some.std(correction=0)), least=float(some.min()))


def _is_captured(device: Any) -> bool:
    backend = getattr(sys.modules["torch"], device.type, None)
    return bool(getattr(backend, "is_current_stream_capturing", bool)())


def _strange(value: Any) -> str:
    """What makes a tensor one that a task cannot be given; "" for nothing. A class of its own may do anything when it
    is looked at: one that is spread over processes waits for the others."""
    torch: Any = sys.modules["torch"]
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return type(value).__name__
    if value.layout is not torch.strided:
        return str(value.layout).removeprefix("torch.")
    known = ("bool", "uint8", "int8", "int16", "int32", "int64", "complex64", "complex128", *FLOATS)
    dtype = str(value.dtype).removeprefix("torch.")
    return "nested" if value.is_nested else "meta" if value.is_meta else "" if dtype in known else dtype


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch's, which nothing here imports."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_compiling() -> bool:
    """Whether torch.compile reads the program: it refuses what looks at tensors."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return bool(getattr(compiler, "is_compiling", bool)())  # older ones of torch have none


def bound(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of a function's parameters, without those that keep their default. Raises TypeError."""
    found: dict[str, Any] = {}
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            found[name] = value
    return found


def seen_call(arguments: Mapping[str, Any], *, values: bool = True) -> SeenCall:
    """A call by what it was given. What is neither a tensor nor a literal is left out: it keeps its default."""
    told: dict[str, SeenTensor | Json] = {}
    for name, value in arguments.items():
        if is_tensor(value):
            try:
                told[name] = seen_tensor(value, values=values)
            except TaskError as error:
                raise TaskError(f"{name} {error}") from error
        elif _is_literal(value):
            told[name] = value
    return SeenCall(told)


def _is_literal(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_literal, value))
    return isinstance(value, _LITERALS)


# ---
# The source of an object, and what a module was made with.


def code_of(target: Any) -> tuple[str, str, Path]:
    """The text that defines a function, class or module, its name in it, and the file; in a notebook the cells that
    have run. Raises TaskError for what is defined nowhere that could be read."""
    found = target if isinstance(target, type | types.FunctionType) else type(target)
    name = found.__qualname__
    if "." in name or "<" in name:
        raise TaskError(f"{name} is defined inside of something else; define it at the top of a file or cell")
    module = sys.modules.get(found.__module__)
    file = getattr(module, "__file__", None)
    if file and Path(file).is_file():
        return Path(file).read_text(encoding="utf-8-sig"), name, Path(file)
    cells = getattr(module, "In", None)  # IPython's
    if isinstance(cells, list):
        return "\n\n".join(_readable(cells)), name, Path.cwd() / "notebook.py"
    raise TaskError(f"the source of {name} cannot be found; put it into a file")


def _readable(cells: Sequence[Any]) -> Iterator[str]:
    """What is Python in the cells, without lines for IPython itself."""
    for cell in cells:
        lines = [line for line in str(cell).splitlines() if not line.lstrip().startswith(("%", "!", "?"))]
        with contextlib.suppress(SyntaxError, ValueError):
            compile("\n".join(lines), "cell", "exec", dont_inherit=True)
            yield "\n".join(lines)


def made_with(module: Any, given: Iterable[Any] = ()) -> dict[str, Json]:
    """What the constructor of a module was given: attributes of those names, here or in a part of it; for others a size
    of its parameters and buffers, or of the tensors that a call was given, if that makes a module whose parameters and
    buffers have the same shapes. Raises TaskError where nothing does."""
    parameters = list(inspect.signature(type(module)).parameters.values())
    found: dict[str, Json] = {}
    for one in parameters:
        owners = (owner for owner in module.modules() if _is_literal(getattr(owner, one.name, object())))
        if (owner := next(owners, None)) is not None:
            found[one.name] = getattr(owner, one.name)
    positional = [p for p in parameters if p.kind is not p.VAR_POSITIONAL and p.kind is not p.VAR_KEYWORD]
    missing = [p.name for p in positional if p.default is p.empty and p.name not in found]
    own = {size for shape in _shapes(module).values() for size in shape}
    theirs = {int(size) for its in given if is_tensor(its) for size in its.shape}
    lengths = [p.name for p in positional if type(p.default) is int and p.name not in found]
    tried = [own] if theirs <= own else [own, own | theirs]
    until = time.monotonic() + _MOST_SECONDS
    for sizes, names in itertools.product(tried, (missing, [*missing, *lengths])):
        choices = itertools.product(sorted(sizes, reverse=True), repeat=len(names))
        for chosen in itertools.islice(choices, _MOST_CHOICES):
            if time.monotonic() > until:
                break
            if _makes_the_same(module, made := {**found, **dict(zip(names, chosen, strict=True))}):
                return made
    wanted = ", ".join(f"{name!r}: …" for name in missing or [p.name for p in positional])
    raise TaskError(f"say what {type(module).__name__} was made with: made_with={{{wanted}}}")


def _makes_the_same(module: Any, arguments: Mapping[str, Json]) -> bool:
    torch: Any = sys.modules["torch"]
    try:
        with _same_draws(module), torch.device("meta"):
            other = type(module)(**arguments)
    except Exception:  # noqa: BLE001 - whatever a person's constructor raises
        return False
    return _shapes(other) == _shapes(module)


@contextlib.contextmanager
def _same_draws(module: Any) -> Iterator[None]:
    """What is drawn within, here and on the GPUs that the module is on, changes nothing that is drawn after."""
    torch: Any = sys.modules["torch"]
    numpy, drawn = sys.modules.get("numpy"), random.getstate()
    theirs = numpy.random.get_state() if numpy else None
    on_gpus = {its.device.index for its in (*module.parameters(), *module.buffers()) if its.is_cuda}
    try:
        with torch.random.fork_rng(on_gpus):
            yield
    finally:
        random.setstate(drawn)
        if numpy:
            numpy.random.set_state(theirs)


def _shapes(module: Any) -> dict[str, tuple[int, ...]]:
    """Of the parameters and of all buffers, those too that no checkpoint has."""
    return {name: tuple(its.shape) for name, its in (*module.named_parameters(), *module.named_buffers())}


def name_of(target: Any) -> str:
    """What a function, a class or a module's class is called."""
    found = target if isinstance(target, type | types.FunctionType) else type(target)
    return str(found.__name__)


def task_of(target: Any, calls: Sequence[SeenCall], made: Mapping[str, Json] | None) -> str:
    """The task file of a function, class or module that is called so. Raises TaskError."""
    text, name, path = code_of(target)
    return task_source(parts_of(text, name, path), f"{path.name}:{name}, as it was called", calls, made)


# ---
# A program that is watched.


@dataclass
class Watch:
    """The calls of one function or class while a program runs: `with Watch(target) as seen: …`.

    target  the function, the class, a module (then its calls alone), or the name of one: "Tail", "mymodel.tail"
    missed  why calls were not captured, and how many: the program goes on whatever is wrong with looking at it

    Raises TaskError, when the block is entered, for a name that nothing loaded has, and for what has no forward.
    """

    target: Any
    times: dict[Any, int] = field(default_factory=dict)
    kinds: dict[Any, SeenCall] = field(default_factory=dict)
    made: dict[str, Json] | None = None
    missed: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._restore: list[Callable[[], None]] = []
        self._found = named(self.target) if isinstance(self.target, str) else self.target
        if isinstance(self._found, types.FunctionType):
            self._watch_function(self._found)
            return self
        its = self._found if isinstance(self._found, type) else type(self._found)
        if not _can_be_watched(its):
            raise TaskError(f"{its.__name__} has no forward; capture watches functions and nn.Modules")
        self._watch_class(its)
        return self

    def __exit__(self, *_: object) -> None:
        while self._restore:
            self._restore.pop()()

    def _watch_function(self, function: types.FunctionType) -> None:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not _is_compiling():
                self.record(function, args, kwargs)
            return function(*args, **kwargs)

        self.watched: object = watched
        for module in list(sys.modules.values()):
            for name in [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is function]:
                setattr(module, name, watched)
                self._restore.append(functools.partial(setattr, module, name, function))

    def _watch_class(self, its: Any) -> None:
        forward, only = its.forward, None if self._found is its else self._found

        @functools.wraps(forward)
        def watched(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if (only is None or module is only) and not _is_compiling():
                if self.made is None and type(module) is its:
                    self.made = _made_with_or_nothing(module, (*args, *kwargs.values()))
                self.record(functools.partial(forward, module), args, kwargs)
            return forward(module, *args, **kwargs)

        had = vars(its).get("forward")
        its.forward = watched
        self._restore.append(lambda: setattr(its, "forward", had) if had else delattr(its, "forward"))

    def record(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Count a call; values are looked at where one of its kind is the first."""
        try:
            arguments = bound(function, args, kwargs)
            key = repr(seen_call(arguments, values=False))
            if key not in self.kinds:
                if len(self.kinds) == _MOST_KINDS:
                    raise TaskError(f"more than {_MOST_KINDS} kinds")
                self.kinds[key] = seen_call(arguments)
            self.times[key] = self.times.get(key, 0) + 1
        except Exception as error:  # noqa: BLE001 - with somebody's tensors, in somebody's program
            why = str(error) if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
            if (why := one_line(why, _MOST_WHY)) in self.missed or len(self.missed) < _MOST_KINDS:
                self.missed[why] = self.missed.get(why, 0) + 1

    @property
    def calls(self) -> list[SeenCall]:
        """What was seen, most work first."""
        found = [replace(self.kinds[key], times=count) for key, count in self.times.items()]
        return sorted(found, key=lambda call: -call.times * call.elements)

    def source(self) -> str:
        """A task file: the calls with the most work are timed, the others are cases with weights. Raises TaskError."""
        if not self.times:
            why = next(iter(self.missed), "")
            raise TaskError(f"no call of {self.target} was seen{why and f' that can be captured: {why}'}")
        return task_of(self._found, self.calls, self.made)

    @property
    def name(self) -> str:
        """Of the function or class."""
        return name_of(self._found)


def _made_with_or_nothing(module: Any, given: Iterable[Any]) -> dict[str, Json]:
    try:
        return made_with(module, given)
    except Exception:  # noqa: BLE001 - of somebody's module; the writer marks what it guesses
        return {}


def named(name: str) -> Any:
    """The function or module class of that name among the modules that are loaded, as "NAME", "MODULE.NAME" or
    "FILE.py:NAME"; a person's own before a library's. Raises TaskError."""
    place, leaf = _place_and_name(name)
    found = []
    for key, module in list(sys.modules.items()):
        if key != "__main__" and not getattr(module, "__file__", None):  # made up, by a packaged kernel for instance
            continue
        its = getattr(module, "__dict__", {}).get(leaf)
        if _can_be_watched(its) and _lies_at(key, place):
            own = its.__module__ in (key, "__main__") and not key.startswith("torch.")
            found.append((not own, key, its))
    if not found:
        raise TaskError(f"nothing that is loaded is called {name}; import it first, or give the object itself")
    return min(found, key=lambda one: one[:2])[2]


def _place_and_name(target: str) -> tuple[str, str]:
    """The module, "" for any, and the name in it."""
    place, _, leaf = target.replace(":", ".").rpartition(".")
    return place.removesuffix(".py").replace("/", ".").lstrip("."), leaf


def _lies_at(key: str, place: str) -> bool:
    """Whether a loaded module is the one that a person means: by its name, else by the end of its file's path."""
    if not place or key == place:
        return True
    file = str(getattr(sys.modules.get(key), "__file__", "")).removesuffix(".py").replace("/", ".")
    is_main = key == "__main__" and file.rpartition(".")[2] == place.rpartition(".")[2]
    return is_main or (place not in sys.modules and f".{file}".endswith(f".{place}"))


def _can_be_watched(its: object) -> bool:
    return isinstance(its, types.FunctionType) or (isinstance(its, type) and hasattr(its, "forward"))


# ---
# A program that is watched from outside: its process loads this file when it starts, and writes what it saw at its end.

_MOST_WATCHED = 200  # classes, where all are
_FILE = "calls-{pid}.json"

PRELUDE = """\
import importlib.machinery, importlib.util, sys
sys.path[:] = [p for p in sys.path if p != {here!r}]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
if _spec is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
if "kerneltune" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("kerneltune", {package!r}, submodule_search_locations=[{folder!r}])
    sys.modules["kerneltune"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["kerneltune"])
from kerneltune.tools.task.capture import WatchedProgram
WatchedProgram({target!r}, {out!r}).watch()
"""


@dataclass(frozen=True)
class Seen:
    """What was seen of a function or class: where it is defined, what it was made with, its calls, most work first, and
    why others were not captured, with their numbers."""

    name: str
    path: str
    module: str
    calls: list[SeenCall]
    made: dict[str, Json] | None = None
    missed: Mapping[str, int] = field(default_factory=dict)

    @property
    def times(self) -> int:
        """How often it was called."""
        return sum(call.times for call in self.calls)


class WatchedProgram:
    """Watches a whole program: calls of modules, by the name of their class, or of a function in what it imports.
    Without a target, all classes that are not torch's."""

    def __init__(self, target: str | None, out: str) -> None:
        self._target, self._out = target, Path(out)
        self._captures: dict[Any, Watch] = {}

    def watch(self) -> None:
        """From now on, until the process ends."""
        plain = builtins.__import__

        def imported(*args: Any, **kwargs: Any) -> Any:
            before = len(sys.modules)
            module = plain(*args, **kwargs)
            if len(sys.modules) != before:
                with contextlib.suppress(Exception):  # of somebody's modules
                    self._look()
            return module

        builtins.__import__ = imported
        atexit.register(self._write)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """What was seen so far: the process that this one was forked from writes it."""
        for capture in list(self._captures.values()):
            capture.times.clear()
            capture.kinds.clear()
            capture.missed.clear()

    def _look(self) -> None:
        """Begin to watch what has been loaded since."""
        module = getattr(sys.modules.get("torch.nn"), "Module", None)
        if module is not None and not hasattr(module.__call__, "_captures"):
            module.__call__ = self._watched(module.__call__)
        if self._target is not None:
            with contextlib.suppress(TaskError):
                found, known = named(self._target), self._captures.get(self._target)
                if isinstance(found, types.FunctionType) and (known is None or found is not known.watched):
                    if known is not None:  # a library's, which was there first
                        known.__exit__()
                    self._captures[self._target] = Watch(found).__enter__()

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        place, leaf = _place_and_name(self._target or "")

        def watched(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            its = type(module)
            if _is_compiling():
                return call(module, *args, **kwargs)
            is_meant = its.__name__ == leaf and _lies_at(its.__module__, place)
            if is_meant if leaf else not its.__module__.startswith("torch."):
                if its not in self._captures and len(self._captures) < _MOST_WATCHED:
                    made = _made_with_or_nothing(module, (*args, *kwargs.values())) if leaf else None
                    self._captures[its] = Watch(its, made=made)
                if its in self._captures:
                    self._captures[its].record(functools.partial(its.forward, module), args, kwargs)
            return call(module, *args, **kwargs)

        watched._captures = self._captures  # type: ignore[attr-defined]
        return watched

    def _write(self) -> None:
        told = []
        for key, capture in self._captures.items():
            its = capture.target if key == self._target else key
            file = getattr(sys.modules.get(its.__module__), "__file__", None) or ""
            where = {"name": its.__qualname__, "path": str(Path(file).resolve()), "module": its.__module__}
            where |= {"made": capture.made, "missed": capture.missed}
            told.append({**where, "calls": [_call_json(call) for call in capture.calls]})
        path = self._out / _FILE.format(pid=os.getpid())
        with contextlib.suppress(OSError):  # the command is gone
            path.write_text(json.dumps(told))


def _call_json(call: SeenCall) -> Json:
    told = {name: {"value": value} for name, value in call.arguments.items() if not isinstance(value, SeenTensor)}
    tensors = {name: {"tensor": encode(its)} for name, its in call.arguments.items() if isinstance(its, SeenTensor)}
    return {"times": call.times, "arguments": {name: (told | tensors)[name] for name in call.arguments}}


def seen_in(folder: Path) -> list[Seen]:
    """What the processes of a program saw, most work first. Raises DecodeError for what they did not write."""
    found: dict[tuple[str, str], dict[str, SeenCall]] = {}
    made: dict[tuple[str, str], dict[str, Json] | None] = {}
    module: dict[tuple[str, str], str] = {}
    missed: dict[tuple[str, str], Counter[str]] = {}
    for path in sorted(folder.glob(_FILE.format(pid="*"))):
        for told in decode(list[dict[str, Any]], parsed(read_file(path).decode())):
            its = found.setdefault(key := (str(told["name"]), str(told["path"])), {})
            made[key] = made.get(key) or told["made"]
            module[key] = str(told["module"])
            missed.setdefault(key, Counter()).update(decode(dict[str, int], told["missed"]))
            for one in told["calls"]:
                call = _call_of(one)
                sizes = {
                    n: (t.shape, t.dtype, t.stride) for n, t in call.arguments.items() if isinstance(t, SeenTensor)
                }
                form = repr({**call.arguments, **sizes})
                its[form] = replace(call, times=call.times + its[form].times) if form in its else call
    seen = [
        Seen(*key, module[key], sorted(calls.values(), key=lambda c: -c.times * c.elements), made[key], missed[key])
        for key, calls in found.items()
    ]
    return sorted(seen, key=lambda one: -sum(c.times * c.elements for c in one.calls))


def _call_of(told: dict[str, Any]) -> SeenCall:
    arguments: dict[str, SeenTensor | Json] = {
        name: decode(SeenTensor, its["tensor"]) if "tensor" in its else its["value"]
        for name, its in told["arguments"].items()
    }
    return SeenCall(arguments, int(told["times"]))
