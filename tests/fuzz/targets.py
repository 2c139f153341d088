"""Readers of what somebody else wrote, each with what may come of any bytes: a value, or an error that the reader
declares. A target reads one input, and raises where anything else comes of it. Where there is an encoder, what was read
is written and read again.

Seeds are real artefacts: the runs that docs/ ships with their plans, kernels and receipts, the tasks, models' stories.
"""

import contextlib
import functools
import io
import json
import math
import os
import random
import socket
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.differential import generated
from kerneltune.agent.authors.llm import author
from kerneltune.agent.authors.llm.author import TOOLS, Mistake, UpdateArguments, apply
from kerneltune.agent.events import Event, is_stored
from kerneltune.agent.export.raw import read_event
from kerneltune.agent.models import anthropic, openai_chat, openai_responses, tool_calls
from kerneltune.agent.models.types import LlmError, ModelOptions, ModelRequest, ToolCall, clean_json, cleaned
from kerneltune.agent.record.folder import PROCESS, folder_of, process_of
from kerneltune.agent.record.merge import merge, opened_other
from kerneltune.agent.record.store import FILE_NAME, Contradiction, Store
from kerneltune.agent.settings import FIELDS, chosen_settings, variable_of
from kerneltune.tools import reflect
from kerneltune.tools import update as updates
from kerneltune.tools.backends.runner_messages import Reply as RunnerReply
from kerneltune.tools.languages.base import device_code, language_of
from kerneltune.tools.languages.ptx.candidate import CannotSay, guessed_candidate
from kerneltune.tools.languages.ptx.checks import findings
from kerneltune.tools.languages.ptx.ir import Function, PtxError, without_comments
from kerneltune.tools.languages.ptx.ir import parse as parse_ptx
from kerneltune.tools.languages.ptx.loader import PtxLaunch, PtxLaunchError, entry_of, ptx_texts
from kerneltune.tools.languages.ptx.readable import readable
from kerneltune.tools.languages.ptx.sim.launch import run as emulate
from kerneltune.tools.languages.triton.ttir.interpreter import run as interpret
from kerneltune.tools.languages.triton.ttir.ir import (
    Desc,
    InterpreterError,
    Ptr,
    is_float,
    scalar_name,
)
from kerneltune.tools.languages.triton.ttir.ir import parse as parse_ttir
from kerneltune.tools.languages.triton.ttir.memory import Argument, DescriptorValue, Pointer
from kerneltune.tools.receipt import author_view, statement
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema import sass
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, one_line, plain
from kerneltune.tools.schema.errors import StoreError, TaskError, UsageError
from kerneltune.tools.schema.messages import (
    AskCompiler,
    ComparisonReply,
    CompileReply,
    InterpretReply,
    Opened,
    PreparedInputs,
    PtxReply,
    SassReply,
    TraceReply,
)
from kerneltune.tools.schema.plan import Kernel, Plan, plan_hash, tensor_refs, without_locations
from kerneltune.tools.schema.task import CaseSpec
from kerneltune.tools.schema.verdict import Verdict, launches_in_words, limitations_by_sentence
from kerneltune.tools.task.definition import written_task
from kerneltune.tools.task.load import (
    builtin_tasks,
    described,
    int_constants,
    read_task,
    visible_source,
    with_overrides,
)
from kerneltune.tools.update import Update, malformed, mismatch, shown, verdict_of
from tests.tools.task.test_definition import CHOSEN, RANDOM, SCALED_ROWS, workload

ROOT = Path(__file__).parents[2]
Shape = Literal["bytes", "text", "json"]  # what a mutation keeps whole


@dataclass(frozen=True)
class FuzzTarget:
    """`read` takes any bytes. `seeds` are inputs that it understands; `longest`: bytes of an input."""

    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    shape: Shape = "bytes"
    longest: int = 1 << 14


def _json(data: bytes) -> Json:
    """The value that a text says, None for no JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _same(value: Any, again: Any) -> None:
    """Both say the same; NaN is NaN."""
    if (one := json.dumps(encode(value))) != (other := json.dumps(encode(again))):
        raise AssertionError(f"written and read again it is {other:.300}, not {one:.300}")


@functools.cache
def _scratch() -> Path:
    """A folder of this process."""
    return Path(tempfile.mkdtemp(prefix="kerneltune-fuzz-"))


# What the runs of docs/ hold -----------------------------------------------------------------------------------------


@functools.cache
def _events() -> list[Event]:
    """Of the runs that docs/ ships, read from a copy: opening a store may convert it."""
    found: list[Event] = []
    for name in ("demo", "demo-ptx"):
        folder = _scratch() / name
        folder.mkdir(exist_ok=True)
        (folder / FILE_NAME).write_bytes((ROOT / "docs" / name / FILE_NAME).read_bytes())
        with Store.open(folder) as store:
            found += [event for run_id in store.run_ids() for event in store.load_events(run_id)]
    return found


@functools.cache
def _plans() -> list[Plan]:
    made = [event.plan for event in _events() if event.kind == "updated" and event.plan]
    return sorted({plan_hash(p): p for p in (decode(Plan, plan) for plan in made)}.values(), key=lambda p: len(str(p)))


def _kernels(name: str) -> Iterator[bytes]:
    texts = {k.text for plan in _plans() for k in plan.kernels if k.language == name}
    yield from (without_locations(text).encode() for text in sorted(texts, key=len)[:5])
    small = sorted((made.text for made in map(generated, range(60)) if made.language == name), key=len)[:12]
    yield from (text.encode() for text in small)


def _dumped(value: Any) -> bytes:
    return json.dumps(encode(value)).encode()


# Messages of processes -----------------------------------------------------------------------------------------------


def frame(data: bytes) -> None:
    """A frame of an untrusted worker, and the same frame made of it again."""
    try:
        message = _received(data)
    except wire.WireError:
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, message.body, message.blobs)
        theirs.close()
        again = wire.receive(ours, timeout_s=5)
    _same([message.body, [b.hex() for b in message.blobs]], [again.body, [b.hex() for b in again.blobs]])


def _received(data: bytes) -> wire.WireMessage:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.close()
        return wire.receive(ours, max_blob_bytes=1 << 20, max_header_bytes=1 << 20, timeout_s=5)


def _frames() -> Iterator[bytes]:
    for body, blobs in (({"kind": "done"}, []), ({"a": [1, 2.5, None, "x"]}, [b"abc", b""]), ({}, [b"0" * 100])):
        header = json.dumps({"m": body, "b": [len(b) for b in blobs], "f": 0}).encode()
        yield struct.pack("<Q", len(header)) + header + b"".join(blobs)


ANSWERS = (
    TraceReply | AskCompiler, CompileReply, PtxReply, SassReply, InterpretReply, RunnerReply, wire.Enforced, Opened,
    PreparedInputs, ComparisonReply,
)  # fmt: skip


def message(data: bytes) -> None:
    """A reply of any worker, and what the supervisor makes of it."""
    value = _json(data)
    for hint in ANSWERS:
        try:
            found: Any = decode(hint, value)  # type: ignore[arg-type]
        except DecodeError:
            continue
        _same(found, decode(hint, json.loads(json.dumps(encode(found)))))  # type: ignore[arg-type]
        if isinstance(found, TraceReply | CompileReply) and found.failure:
            verdict_of(found.failure)
        if isinstance(found, SassReply):
            with contextlib.suppress(ValueError):
                _described([sass.made_plain(kernel) for kernel in found.kernels])


def _described(kernels: Sequence[sass.Sass]) -> None:
    for kernel in kernels:
        sass.listing(kernel)
        sass.phases(kernel.instructions)
        sass.hot_loop(kernel.instructions)
    sass.changes(kernels, kernels[:1])


def _messages() -> Iterator[bytes]:
    from tests.agent.record.samples import arbitrary

    rng = random.Random(7)
    kinds = [kind for hint in ANSWERS for kind in (get_args(hint) or (hint,)) if kind not in (TraceReply, AskCompiler)]
    for kind in kinds:
        for _ in range(3):
            with contextlib.suppress(KeyError, IndexError):  # a type that samples know no value of
                yield _dumped(arbitrary(kind, rng))
    yield from (_dumped(AskCompiler(k)) for plan in _plans()[:1] for k in plan.kernels)


def plan(data: bytes) -> None:
    """A tracer's reply, from the bytes to what is shown of it."""
    try:
        reply = decode(TraceReply, _json(data))
    except DecodeError:
        return
    asked = [CaseSpec(str(n), (), (), _outputs(n)) for n in range(2)][: max(1, len({p.case for p in reply.plans}))]
    if malformed(reply.plans, asked, 4) is not None:
        return
    for made in reply.plans:
        plan_hash(made)
        mismatch(asked[int(made.case)].outputs, made.outputs)
        shown(made.outputs)
        _same(made, decode(Plan, json.loads(json.dumps(encode(made)))))
    update = Update({p.case: (p,) for p in reply.plans}, main_case="0")
    assert update.plans_sha256
    assert update.traffic_bytes >= 0
    assert update.main_plan is not None
    _ = update.main_plan.library_ops, update.judged_plans("default"), list(tensor_refs(update.main_plan.outputs))


@functools.cache
def _outputs(number: int) -> Json:
    return _plans()[number].outputs


def _replies() -> Iterator[bytes]:
    for made in _plans()[:8]:
        yield _dumped(TraceReply((replace(made, case="0"),)))
    yield _dumped(TraceReply((replace(_plans()[0], case="0"), replace(_plans()[1], case="1"))))


# Kernels -------------------------------------------------------------------------------------------------------------


def _pointer(number: int) -> Pointer:
    return Pointer(np.zeros(4096, np.uint8), 0, f"argument {number}")


def ttir(data: bytes) -> None:
    """A kernel in TTIR: its effects, and a run of a few of its operations."""
    text = _text(data)
    without_locations(text)
    device_code("ttir").effects(Kernel("k", "ttir", text, ("*fp32", "i32")))
    try:
        module = parse_ttir(text)
        values = [_ttir_value(i, kind) for i, kind in enumerate(module.kernel.types)]
        interpret(module, (2, 1, 1), values, max_ops=2000)
    except InterpreterError:
        return


def _ttir_value(number: int, kind: Any) -> Argument:
    if isinstance(kind, Ptr):
        return _pointer(number)
    if isinstance(kind, Desc):
        shape = kind.block.shape
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return DescriptorValue(_pointer(number), shape, strides, shape, scalar_name(kind.block))
    return 1.5 if is_float(kind) else 64


def ptx(data: bytes) -> None:
    """A text in PTX: everything that is said of it without running it."""
    text = _text(data)
    kernel = Kernel("k", "ptx", text, ("*fp32", "*fp32", "i32"), {"block": [32, 1, 1]})
    device_code("ptx").effects(kernel)
    device_code("ptx").waits(kernel)
    without_comments(text)
    with contextlib.suppress(PtxError, PtxLaunchError, CannotSay):
        guessed_candidate(text, _some_task(), "k.ptx")
    with contextlib.suppress(PtxError):
        readable(text)
    with contextlib.suppress(PtxError, PtxLaunchError):
        module = parse_ptx(text)
        entry = entry_of(module, None)
        _ = [str(f) for f in findings(module, entry, "sm_90")]
        device_code("ptx").effects(replace(kernel, name=entry.name))


@functools.cache
def _some_task() -> Any:
    found = described(next(task for task in builtin_tasks() if task.name == "softmax"))
    assert found is not None
    return found


def ptx_run(data: bytes) -> None:
    """A text in PTX, emulated for a few instructions."""
    text = _text(data)
    try:
        entry = entry_of(parse_ptx(text), None)
    except (PtxError, PtxLaunchError):
        return
    wanted = entry.directives.get("reqntid", (32,))
    x, y, z = (*wanted, 1, 1, 1)[:3]
    values = tuple(_ptx_value(i, entry) for i in range(len(entry.params)))
    with contextlib.suppress(InterpreterError):
        emulate(PtxLaunch(text, entry.name, (2, 1, 1), (x, y, z), values, (), 1024), max_work=2000)


def _ptx_value(number: int, entry: Function) -> Any:
    param = entry.params[number]
    if param.type in ("u64", "b64", "s64"):
        return _pointer(number)
    return 1.5 if param.type.startswith("f") else 64


def listing(data: bytes) -> None:
    """What a disassembler printed of a candidate's cubin."""
    code, cut = sass.instructions(_text(data).splitlines())
    found = sass.counted("k", code, cut)
    _described([found, sass.made_plain(found)])
    sass.made_of(found.whole)
    _same(found, decode(sass.Sass, encode(found)))


def _listings() -> Iterator[bytes]:
    yield (
        b'\t.section\t.text.k,"ax",@progbits\n.text.k:\n'
        b'\t//## File "candidate.py", line 7\n'
        b"        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
        b"                                                          /* 0x000fe40000000f00 */\n"
        b".L_x_1:\n"
        b'\t//## File ".nv_debug_ptx_txt", line 12 inlined at "candidate.py", line 9\n'
        b"        /*0010*/              @!P0 LDG.E.EF.128 R4, desc[UR4][R2.64] ;\n"
        b"                                                          /* 0x000ea8000c1e9d00 */\n"
        b"        /*0020*/                   HMMA.16816.F32.BF16 R4, R4, R8, R12 ;\n"
        b"        /*0030*/               @P1 BRA `(.L_x_1) ;\n"
        b"        /*0040*/                   EXIT ;\n"
    )


def cubin(data: bytes) -> None:
    """An ELF file that a compiler in a jail sent."""
    with contextlib.suppress(ValueError):
        for section in sass.sections(data):
            section.data(data)


def _cubins() -> Iterator[bytes]:
    names = b"\0.shstrtab\0.text.k\0"
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 40, 64 + len(names))
    struct.pack_into("<HHH", head, 58, 64, 2, 0)
    table = b"".join(struct.pack("<IIQQQQIIQQ", at, 3, 0, 0, 64, len(names), 0, 0, 1, 0) for at in (1, 11))
    yield bytes(head) + names + table


# Models --------------------------------------------------------------------------------------------------------------

_SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"


def arguments(data: bytes) -> None:
    """What a model wrote as the arguments of a call, or as text with calls in it."""
    text = _text(data)
    split = tool_calls.split_text(text, {tool.name for tool in TOOLS})
    made = [tool_calls.parse_call("c", tool.name, text) for tool in TOOLS]
    free = [ToolCall("c", tool.name, tool_calls.parse_source_call(tool, text)) for tool in TOOLS if tool.source]
    for call in (*split.calls, *made, *free):
        with contextlib.suppress(ValueError):
            json.dumps(clean_json(call.arguments), allow_nan=False).encode()
        with contextlib.suppress(Mistake):
            found = author._arguments(call)
            if isinstance(found, UpdateArguments) and found.edits:
                apply(_SOURCE, found.edits)


def _arguments() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests/agent/stories").glob("*.jsonl")):
        for line in path.read_text().splitlines()[:3]:
            for call in json.loads(line).get("calls", []):
                yield json.dumps(call["arguments"]).encode()[:8000]
                yield f"<tool_call>{json.dumps(call)}</tool_call>".encode()[:8000]
    yield json.dumps(
        {"parent": 1, "rationale": "r", "source": None, "edits": [{"search": "x + 1", "replace": "y"}]}
    ).encode()
    yield b"# parent: 3\n# rationale: wider\nimport torch\n"
    yield b"<think>hm</think><function=bench><parameter=attempt>3</parameter></function>"
    yield b'```json\n{"name": "reflect", "arguments": {"attempt": 1}}\n```'


def replies(data: bytes) -> None:
    """The events of a model's stream, by each API."""
    events = _json(data)
    if not isinstance(events, list):
        return
    request = ModelRequest("", (), TOOLS, logprobs=True)
    partial: tuple[Any, ...] = (openai_chat._Completion(), openai_responses._Response(), anthropic._Message())
    for model, made in zip(_models(), partial, strict=True):
        with contextlib.suppress(LlmError):
            for event in events:
                model._understood(functools.partial(_taken, made, event))
            whole: Any = made
            reply = cleaned(model._understood(functools.partial(whole.reply, request, "m")))
            json.dumps(encode(reply), allow_nan=False).encode()


def _taken(made: Any, event: Json) -> list[Any]:
    return list(made.take(event))


@functools.cache
def _models() -> tuple[Any, ...]:
    """One of each API; none is asked anything."""
    options = ModelOptions("m", api_key="k", base_url="http://127.0.0.1:1")
    return (openai_chat.ChatModel(options), openai_responses.OpenAIModel(options), anthropic.AnthropicModel(options))


def _streams() -> Iterator[bytes]:
    call = {"name": "bench", "arguments": "{}"}
    yield _dumped([
        {"id": "i", "model": "m", "choices": [{"delta": {"content": "a", "reasoning": "t"}}]},
        {"choices": [{"delta": {}, "token_ids": [7, 8], "logprobs": {"content": [{"id": 7, "logprob": -0.5}] * 2}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": call}]}}]},
        {"choices": [{"finish_reason": "stop", "delta": {}}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ])  # fmt: skip
    done, usage = "response.output_item.done", {"input_tokens": 3, "output_tokens": 4}
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    ended = {"id": "i", "status": "completed", "model": "m", "usage": usage | {"input_tokens_details": {}}}
    yield _dumped([
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": done, "output_index": 0, "item": {"type": "function_call", "call_id": "c", **call}},
        {"type": done, "output_index": 1, "item": message},
        {"type": done, "output_index": 2, "item": {"type": "reasoning", "summary": [{"text": "b"}]}},
        {"type": "response.completed", "response": ended},
    ])  # fmt: skip
    begins, grows, block = "content_block_start", "content_block_delta", {"id": "c", "name": "bench", "input": {}}
    yield _dumped([
        {"type": "message_start", "message": {"id": "i", "model": "m", "usage": usage}},
        {"type": begins, "index": 0, "content_block": {"type": "tool_use", **block}},
        {"type": grows, "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": begins, "index": 1, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": grows, "index": 1, "delta": {"type": "thinking_delta", "thinking": "t"}},
        {"type": grows, "index": 1, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ])  # fmt: skip


# Files of other people -----------------------------------------------------------------------------------------------


def task(data: bytes) -> None:
    """A task file, which is read without being run."""
    path = _scratch() / "task.py"
    path.write_bytes(data)
    try:
        found = read_task(path)
    except TaskError:
        return
    hash(found)
    visible_source(found)
    int_constants(found.source)
    for case in found.cases:
        with_overrides(found.source, dict(case.overrides))
        found.case(case.name)


def _tasks() -> Iterator[bytes]:
    for name in ("softmax", "gqa_attention", "embedding", "quantize_int8", "adam_step"):
        yield (ROOT / "tools/tasks" / f"{name}.py").read_bytes()


def definition(data: bytes) -> None:
    """A kernel definition and its workloads, in a list: what is made of it is a task file that can be read."""
    made = _json(data)
    whole, *workloads = made if isinstance(made, list) and made else [None]
    path, beside = _scratch() / "definition.json", _scratch() / "workload.jsonl"
    path.write_text(json.dumps(whole))
    beside.write_text("".join(json.dumps(one) + "\n" for one in workloads))
    with contextlib.suppress(TaskError):
        place = written_task(path, beside, _scratch())
        text = place.read_bytes()
        place.unlink()
        task(text)


def _definitions() -> Iterator[bytes]:
    sources = {name: {"type": "custom"} for name in CHOSEN["inputs"]}
    yield _dumped([CHOSEN, workload(sources, rows=9, cols=3, picked=2)])
    yield _dumped([SCALED_ROWS, workload(RANDOM, rows=512), {"workload": workload(RANDOM, rows=3)}])


def source(data: bytes) -> None:
    """A candidate, as far as it is looked at before it is traced."""
    text = _text(data)
    if updates._static_problem(text) is None:
        language_of(text)
        ptx_texts(text)


def _sources() -> Iterator[bytes]:
    yield _SOURCE.encode()
    yield from (path.read_bytes() for path in sorted((ROOT / "corpus/honest").rglob("*.py"))[:6])


def settings(data: bytes) -> None:
    """Variables of the environment, NAME=VALUE a line."""
    wanted = {variable_of(name) for name in FIELDS}
    pairs = [line.partition("=") for line in _text(data).replace("\0", "").split("\n")]
    os.environ.update({name: value for name, _, value in pairs if name in wanted})
    try:
        with contextlib.suppress(UsageError):
            chosen_settings({})
    finally:
        for name in wanted:
            os.environ.pop(name, None)


def _settings() -> Iterator[bytes]:
    yield "\n".join(
        f"{variable_of(name)}={value}" for name, value in zip(FIELDS, ("r", "24", "1.5", "3"), strict=False)
    ).encode()
    yield "\n".join(f"{variable_of(name)}=1" for name in FIELDS).encode()


def run_folder(data: bytes) -> None:
    """What lies in a folder of a run, and an id that names one."""
    folder = _scratch() / "run"
    folder.mkdir(exist_ok=True)
    (folder / PROCESS).write_bytes(data)
    process_of(folder)
    runs = _scratch() / "runs"
    found = folder_of(runs, _text(data))
    assert found.parent == runs, found
    assert found.name not in ("", ".", ".."), found


def _folders() -> Iterator[bytes]:
    yield b'{"host": "h", "pid": 12}'
    yield b"20261127-022454-cross_entropy-97ef2b7a"
    yield b"../../etc/passwd"


def words(data: bytes) -> None:
    """A text that is shown."""
    text = data.decode("utf-8", "surrogatepass" if data[:1] > b"m" else "replace") if _is_utf8(data) else _text(data)
    for made in (plain(text), plain(text, None), plain(text, 40)):
        assert all(c.isprintable() or c in "\n\t" for c in made), repr(made)
        assert plain(made, None) == made, repr(made)
        made.encode()
    assert len(plain(text, 40)) <= 40
    assert "\n" not in one_line(text)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _words() -> Iterator[bytes]:
    yield "a\x1b[31mred\x1b]0;title\x07 \u202egnol\u200b \ud800 \r\n\x85".encode("utf-8", "surrogatepass")


# The record ----------------------------------------------------------------------------------------------------------


def verdict(data: bytes) -> None:
    """A verdict with its receipt, as a database of somebody else's may hold it, and the words for it."""
    try:
        found = decode(Verdict, _json(data))
    except DecodeError:
        return
    _same(found, decode(Verdict, json.loads(json.dumps(encode(found)))))
    spec = _some_task()
    author_view(found, spec)
    statement(spec, found, found.receipt.get("gpu"))
    limitations_by_sentence(found)
    launches_in_words(found.receipt)
    reflect.bottlenecks(found)
    reflect.counted(found.receipt)
    reflect.probed(found.receipt)


def _verdicts() -> Iterator[bytes]:
    for event in _events():
        if event.kind in ("judged", "verified"):
            yield _dumped(replace(event.verdict, cases=event.verdict.cases[:3]))
    for path in sorted((ROOT / "docs").glob("demo*/*/receipts/*.json"))[:4]:
        receipt = json.loads(path.read_text())
        yield json.dumps({**receipt["verdict"], "cases": [], "receipt": receipt["evidence"]}).encode()


def events(data: bytes) -> None:
    """Events as an export has them; those that are events make a record, which is read in every way."""
    value = _json(data)
    if not isinstance(value, list):
        return
    found: list[Any] = []
    for item in value[:40]:
        with contextlib.suppress(DecodeError):
            event = read_event(item)
            _same(event, read_event(json.loads(json.dumps(encode(event)))))
            found.append(event)
    folder = _scratch() / "written"
    _emptied(folder)
    with Store.open(folder) as store:
        try:
            store.write_all(event for event in found if is_stored(event))
        except (Contradiction, StoreError):
            return
        _read_whole(store)


def _read_whole(store: Store) -> None:
    """All that a record says, by every way of asking that needs no more than a record, and on the screen."""
    asked: list[Callable[[], Any]] = [
        store.runs, store.machines, store.task_sources, lambda: list(store.sources(store.choose())),
        lambda: list(store.trajectories(conversations=True, cases=True)),
    ]  # fmt: skip
    runs = store.run_ids()
    for run_id in runs[:3]:
        asked += [
            functools.partial(ask, run_id)
            for ask in (store.run_summary, store.load_events, store.attempts, store.find_attempt)
        ]
        asked.append(functools.partial(_earlier, store, run_id))
    for ask in asked:
        with contextlib.suppress(StoreError):
            ask()
    folder = str(store.path.parent)
    _commanded("runs", "--runs-dir", folder)
    for run_id in runs[:1]:
        _commanded("show", run_id, "--runs-dir", folder)
        _commanded("show", f"{run_id}/1", "--runs-dir", folder)
        _commanded("show", run_id, "--conversation", "--runs-dir", folder)
        _commanded("report", run_id, "--runs-dir", folder, "-o", str(_scratch() / "report.html"))


def _earlier(store: Store, run_id: str) -> Any:
    return store.earlier(store.load_run(run_id))


def _commanded(*words: str) -> None:
    """What the command line says, which is never that kerneltune has a fault."""
    from kerneltune.agent.cli import app, exit_code

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(lambda: app(words, result_action="return_value", exit_on_error=False, print_error=False))
    if "Traceback" in err.getvalue():
        raise AssertionError(err.getvalue()[-3000:])
    assert code in (0, 1, 2, 3, 4), code
    assert all(c.isprintable() or c in "\n\t" for c in out.getvalue() + err.getvalue()), out.getvalue()


def _emptied(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()


def _recorded() -> Iterator[bytes]:
    from tests.agent.record.samples import arbitrary_run, attempt, started

    plain_run = [started(), *attempt(1), *attempt(2, best=True)]
    yield _dumped([replace(e, plan=None) if e.kind == "updated" else e for e in plain_run])
    yield from (
        _dumped(made) for made in (arbitrary_run(seed)[at : at + 5] for seed in range(3) for at in range(0, 15, 5))
    )
    by_run: dict[str, list[Event]] = {}
    for event in _events():
        by_run.setdefault(event.run_id, []).append(event)
    for run in by_run.values():
        small = [event for event in run if len(_dumped(event)) < 3000]
        yield _dumped(small[:10])


def database(data: bytes) -> None:
    """A database that is merged: changed values, [[table, column, row, value], …], of one that is whole; or any file.
    What came is read in every way."""
    folder, ours = _scratch() / "theirs", _scratch() / "ours"
    _emptied(folder)
    _emptied(ours)
    changes = _json(data)
    if isinstance(changes, list):
        (folder / FILE_NAME).write_bytes(_whole_database())
        if not _changed(folder / FILE_NAME, changes):
            return
    else:
        (folder / FILE_NAME).write_bytes(data)
    with Store.open(ours) as store:
        try:
            with opened_other(folder, store.path) as other:
                merge(store, other)
        except StoreError:
            return
        _read_whole(store)


@functools.cache
def _whole_database() -> bytes:
    from tests.agent.record.samples import arbitrary_run

    folder = _scratch() / "whole"
    with Store.open(folder) as store:
        store.write_all(arbitrary_run(3)[:18])
    with contextlib.closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return (folder / FILE_NAME).read_bytes()


def _changed(path: Path, changes: Sequence[Any]) -> bool:
    """Whether any of the changes can be made."""
    made = False
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for change in changes[:8]:
            match change:
                case [str(table), str(column), int(row), value] if abs(row) < 1 << 31:
                    if isinstance(value, list | dict):
                        value = json.dumps(value).encode()
                    with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                        where = f'rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {row % 32})'
                        made |= (
                            connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', (value,)).rowcount
                            > 0
                        )
                case [str(script)]:
                    with contextlib.suppress(sqlite3.Error, UnicodeEncodeError, ValueError):
                        connection.execute(script)
                        made = True
        connection.commit()
    return made


def _databases() -> Iterator[bytes]:
    yield _whole_database()[:4096]
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(_whole_database())
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                yield json.dumps([[table, column, 0, 1]]).encode()
                yield json.dumps([[table, column, 1, "x"], [table, column, 2, None]]).encode()
    yield json.dumps([["DROP TABLE texts"], ["PRAGMA user_version = 2"]]).encode()


TARGETS: dict[str, FuzzTarget] = {
    "frame": FuzzTarget(frame, _frames),
    "message": FuzzTarget(message, _messages, "json", 1 << 15),
    "plan": FuzzTarget(plan, _replies, "json", 1 << 15),
    "ttir": FuzzTarget(ttir, functools.partial(_kernels, "ttir"), "text", 1 << 13),
    "ptx": FuzzTarget(ptx, functools.partial(_kernels, "ptx"), "text", 1 << 13),
    "ptx_run": FuzzTarget(ptx_run, functools.partial(_kernels, "ptx"), "text", 1 << 13),
    "listing": FuzzTarget(listing, _listings, "text"),
    "cubin": FuzzTarget(cubin, _cubins),
    "arguments": FuzzTarget(arguments, _arguments, "text"),
    "replies": FuzzTarget(replies, _streams, "json"),
    "task": FuzzTarget(task, _tasks, "text"),
    "definition": FuzzTarget(definition, _definitions, "json"),
    "source": FuzzTarget(source, _sources, "text"),
    "settings": FuzzTarget(settings, _settings, "text"),
    "run_folder": FuzzTarget(run_folder, _folders),
    "words": FuzzTarget(words, _words, longest=1 << 9),
    "verdict": FuzzTarget(verdict, _verdicts, "json"),
    "events": FuzzTarget(events, _recorded, "json"),
    "database": FuzzTarget(database, _databases, "json"),
}
