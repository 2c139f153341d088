"""Runs one step of the offline author's tests in a process of its own: propose, trace, compile, or check numbers.

Each step is a process in the product, too: tracing and lowering change torch and Triton for good. JSON in, JSON out.
"""

import json
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kerneltune.agent.attempt import Proposal, SearchPoint
from kerneltune.tools.sandbox.fork_server import Channel
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from tests import shared_fork_server

CASE_KEYS = ("name", "cpu", "held_out")


def at(proposal: Proposal) -> SearchPoint:
    """The point of the search that a proposal was made at."""
    assert isinstance(proposal.origin, SearchPoint)
    return proposal.origin


def spec_of(value: Any) -> Json:
    """A tensor's spec, or the value."""
    if isinstance(value, torch.Tensor):
        return {"$tensor": encode(TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch.")))}
    return [spec_of(v) for v in value] if isinstance(value, list | tuple) else value


def module_of(source: str, case: dict[str, Json]) -> types.ModuleType:
    """The task's module with a case's constants."""
    module = types.ModuleType("task")
    exec(source, module.__dict__)
    module.__dict__.update({k: v for k, v in case.items() if k not in CASE_KEYS})
    return module


def task_spec(name: str, source: str) -> TaskSpec:
    """What the judge would say of a task file."""
    cases = [{"name": "main"}, *getattr(module_of(source, {}), "CASES", [])]
    with FakeTensorMode():
        return TaskSpec(name, name, "float32", source, tuple(_case(source, case) for case in cases))


def _case(source: str, case: dict[str, Json]) -> CaseSpec:
    module = module_of(source, case)
    arguments = module.get_init_inputs()
    state = module.Model(*arguments).state_dict()
    specs = {k: decode(TensorSpec, spec_of(v)["$tensor"]) for k, v in state.items()}
    inputs = tuple(spec_of(v) for v in module.get_inputs())
    held_out = bool(case.get("held_out"))
    return CaseSpec(case["name"], inputs, tuple(arguments), None, specs, held_out=held_out)


def propose(tasks: dict[str, str]) -> Json:
    """{task: {sketch: source}} at default parameters, what is searched, and what the author complained about."""
    from kerneltune.agent.authors.search.author import OfflineAuthor
    from kerneltune.agent.authors.search.inductor import lower

    found: dict[str, Json] = {}
    for name, source in tasks.items():
        author = OfflineAuthor(lower, 90)
        task = task_spec(name, source)
        proposals = author.propose(task, [], 8)
        candidates: dict[str, str] = {}
        for proposal in proposals:
            candidates.setdefault(at(proposal).sketch, proposal.source)
        spaces = {sketch.name: list(sketch.space) for sketch in author.sketches(task)}
        found[name] = {"source": source, "candidates": candidates, "spaces": spaces, "problems": author.problems}
    return found


def propose_inductor(tasks: dict[str, str]) -> Json:
    """The same of Inductor alone, as it comes."""
    from kerneltune.agent.authors.search.author import OfflineAuthor
    from kerneltune.agent.authors.search.clean import LoweredCode
    from kerneltune.agent.authors.search.inductor import TooLong, in_words, lower
    from kerneltune.agent.authors.search.neighbours import CannotLower, LowersTooLong

    def lowered(source: str, overrides: dict[str, Json], arch: int) -> LoweredCode:
        if overrides.get("config"):
            raise CannotLower("another setting")
        try:
            return lower(source, overrides, arch)
        except TooLong as error:  # as recurrent layers of any length do
            raise LowersTooLong(str(error)) from error
        except Exception as error:
            raise CannotLower(in_words(error)) from error

    found: dict[str, Json] = {}
    for name, source in tasks.items():
        author = OfflineAuthor(lowered, 90, emulation=False)
        proposals = author.propose(task_spec(name, source), [], 1)
        candidates = {at(p).sketch: p.source for p in proposals if at(p).sketch == "inductor"}
        found[name] = {"source": source, "candidates": candidates, "problems": author.problems}
    return found


def starts(tasks: dict[str, str]) -> Json:
    """{task: the candidate's lines of launch parameters at each of its starts}"""
    from kerneltune.agent.authors.search.author import OfflineAuthor
    from kerneltune.agent.authors.search.inductor import lower

    found: dict[str, Json] = {}
    for name, source in tasks.items():
        sketch = OfflineAuthor(lower, 90).sketches(task_spec(name, source))[0]
        texts = [sketch.render(start).splitlines() for start in sketch.starts]
        found[name] = [[line for line in text if line.split(" = ")[0] in sketch.params] for text in texts]
    return found


def trace(work: dict[str, Json]) -> Json:
    """[[task, sketch, plan or failure]] for every case of every candidate."""
    from kerneltune.tools.schema.gpus import gpu_named
    from kerneltune.tools.schema.messages import TraceRequest, traced_case
    from kerneltune.tools.trace import tracer

    gpu = gpu_named("H200")
    specs = {name: task_spec(name, job["source"]) for name, job in work.items()}
    session = tracer.install(gpu.arch, gpu.served())
    found = []
    for name, job in work.items():
        for sketch, source in job["candidates"].items():
            cases = tuple(traced_case(case, case.name) for case in specs[name].cases)
            reply = tracer.trace(session, TraceRequest(source, cases))
            failure = f"{reply.failed_case}: {reply.failure.message}" if reply.failure else None
            found.append([name, sketch, [encode(plan) for plan in reply.plans], failure])
    return found


def check(traced: list[Json]) -> Json:
    """Compile every kernel to a cubin and compare every plan's result with torch's: [[task, sketch, case, problem]]."""
    from kerneltune.tools.schema.plan import Plan

    found = []
    compiled: set[str] = set()  # a sixth of them are those of another case or candidate
    for name, source, sketch, plans, failure in traced:
        if failure:
            found.append([name, sketch, "", failure])
        for plan in (decode(Plan, p) for p in plans):
            found.append([name, sketch, plan.case, _compile(plan, compiled) or _compare(source, plan)])
    return found


def _compile(plan: Any, compiled: set[str]) -> str:
    from kerneltune.tools.compile.compiler import compile_kernels
    from kerneltune.tools.schema.messages import CompileRequest

    with tempfile.TemporaryDirectory() as folder:
        left = tuple(kernel for kernel in plan.kernels if kernel.sha256 not in compiled)
        reply, cubins = compile_kernels(CompileRequest(left, "sm_90"), Path(folder))
    if reply.failure:
        return f"{reply.failed_kernel}: {reply.failure.message}"
    if not plan.kernels or len(cubins) != len(left) or not all(cubins):
        return "no kernel"
    compiled.update(kernel.sha256 for kernel in left)
    return ""


def _leaves(tree: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        return [(path, tree)]
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return [leaf for key, value in pairs for leaf in _leaves(value, f"{path}.{key}" if path else str(key))]


def _compare(source: str, plan: Any, precision: str = "float32") -> str:
    from kerneltune.tools.replay.interpret import interpret
    from kerneltune.tools.schema.messages import InterpretRequest

    torch.manual_seed(0)
    cases = [{"name": "main"}, *getattr(module_of(source, {}), "CASES", [])]
    module = module_of(source, next(case for case in cases if case["name"] == plan.case))
    model, inputs = module.Model(*module.get_init_inputs()).eval(), module.get_inputs()
    blobs = {f"input:{path}": v for path, v in _leaves(inputs)}
    blobs |= {f"state:{k}": v for k, v in model.state_dict().items()}
    request = InterpretRequest(plan, tuple(blobs))
    reply, results = interpret(request, [v.reshape(-1).view(torch.uint8).numpy().tobytes() for v in blobs.values()])
    if reply.problem:
        return f"{reply.problem}: {reply.detail}"
    with torch.no_grad():
        expected = model(*inputs)
    wanted = [value for _, value in _leaves(expected)]
    for want, got in zip(wanted, results, strict=True):
        own = torch.frombuffer(bytearray(got.tobytes()), dtype=want.dtype).reshape(want.shape)
        tolerance = 2e-5 if want.dtype == torch.float32 and precision == "float32" else 2e-2
        size = max(1.0, float(want.double().square().mean().sqrt()))  # a running sum errs by its largest partial sum
        if not torch.allclose(own.float(), want.float(), rtol=tolerance, atol=tolerance * size):
            return f"wrong by {(own.double() - want.double()).abs().max():.3g}"
    return ""


def trace_experts(paths: list[str]) -> Json:
    """[[task, expert, source, precision, plan, failure]] of every expert for these files, on the first small case."""
    from kerneltune.agent.authors.search.experts import experts
    from kerneltune.tools.schema.gpus import gpu_named
    from kerneltune.tools.schema.messages import TraceRequest, traced_case
    from kerneltune.tools.trace import tracer

    work = []
    for path in map(Path, paths):
        source = path.read_text()
        module = module_of(source, {})
        task = replace(task_spec(path.stem, source), precision=getattr(module, "PRECISION", "float32"))
        small = [c["name"] for c in getattr(module, "CASES", []) if c.get("cpu") and not c.get("held_out")]
        work.append((task, task.case(small[0] if small else "main"), experts(task)))
    gpu = gpu_named("H200")
    session = tracer.install(gpu.arch, gpu.served())
    found = []
    for task, case, sketches in work:
        for sketch in sketches:
            reply = tracer.trace(session, TraceRequest(sketch.source, (traced_case(case, case.name),)))
            plan = None if reply.failure else encode(reply.plans[0])
            failure = reply.failure.message if reply.failure else None
            found.append([task.name, sketch.name, task.source, task.precision, plan, failure])
    return found


def compare_experts(traced: list[Json]) -> Json:
    """[[task, expert, problem]] for what `trace_experts` found."""
    from kerneltune.tools.schema.plan import Plan

    return [
        [task, expert, failure or _compare(source, decode(Plan, plan), precision)]
        for task, expert, source, precision, plan, failure in traced
    ]


STEPS: dict[str, Callable[[Any], Json]] = {
    "propose": propose,
    "propose_inductor": propose_inductor,
    "starts": starts,
    "trace": trace,
    "check": check,
    "trace_experts": trace_experts,
    "compare_experts": compare_experts,
}


def run(step: str, body: Json) -> Any:
    """What that step answers in a process of its own."""
    return shared_fork_server.answer(f"{__name__}:main", {"step": step, "body": body}, timeout_s=600)["answer"]


def checked(work: dict[str, Json]) -> list[tuple[str, str, str, str]]:
    """(task, sketch, case, problem) of every case of what was proposed."""
    traced = [[name, work[name]["source"], *rest] for name, *rest in run("trace", work)]
    return [(row[0], row[1], row[2], row[3]) for row in run("check", traced)]


def main(channel: Channel) -> None:
    """Answer one step."""
    asked = channel.receive().body
    warnings.simplefilter("ignore")
    channel.send({"answer": STEPS[asked["step"]](asked["body"])})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n" + json.dumps(STEPS[sys.argv[1]](json.loads(sys.stdin.read()))))
