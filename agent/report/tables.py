"""The tables of a run's report as plain values: attempts, baselines, costs, hypotheses, evidence, commands.

Pure, and patient with receipts that are damaged or of another version: what is not there is left out, never made up.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from kerneltune.agent.attempt import Attempt, Expectation
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.trajectory import JUDGED_FILES, Message, Trajectory
from kerneltune.agent.report.chart import css_class, verdict_name, verdict_symbol
from kerneltune.agent.report.data import RunData, baseline_name, dig, finite, interval, number, ranked, tone_of
from kerneltune.agent.report.text import Sanitizer
from kerneltune.agent.view import text as words
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import NOT_IN_FULL, Status

UNKNOWN = "unknown"


def parent_name(a: Attempt, run_id: str) -> str:
    """The attempt that one was derived from, by its number where it is of the same run; "" for none."""
    if a.parent_id is None:
        return ""
    run, _, number = a.parent_id.rpartition("/")
    return f"#{number}" if run == run_id else a.parent_id


class BaselineLine(NamedTuple):
    """How the best attempt compares with one baseline."""

    name: str
    time: str
    speedup: str
    words: str


_SHOWS = {"even": "no difference measured", "faster": "faster", "slower": "slower"}


def baseline_lines(material: RunData) -> list[BaselineLine]:
    """Of the best attempt, the hardest first."""
    return [
        BaselineLine(
            baseline_name(c.baseline),
            words.microseconds(c.baseline_us),
            interval(c),
            "not borne out" if material.doubt else _SHOWS[tone_of(c, material.resolution)],
        )
        for c in (ranked(material.best) if material.best else ())
    ]


class CostLine(NamedTuple):
    """What one model was asked and what that cost."""

    model: str
    replies: int
    input: str
    cached: str
    output: str
    cost: str


def cost_lines(run: Trajectory) -> list[CostLine]:
    """A row for each model, and one for all when there are several; empty when no model was asked."""
    replies = [m for conversation in run.conversations for m in conversation.messages if m.role == "assistant"]
    models = list(dict.fromkeys(m.model for m in replies))
    lines = [_cost_line(model or UNKNOWN, [m for m in replies if m.model == model]) for model in models]
    return [*lines, _cost_line("together", replies)] if len(lines) > 1 else lines


def _cost_line(model: str, replies: Sequence[Message]) -> CostLine:
    """What is unknown is not 0."""
    tokens = {kind: sum(_tokens(m, kind) for m in replies) for kind in ("input", "cached", "output")}
    counted = bool(tokens["input"] or tokens["output"])
    shown = {kind: words.tokens(n) if counted else "not counted" for kind, n in tokens.items()}
    share = f"{tokens['cached'] / tokens['input']:.0%}" if tokens["input"] else UNKNOWN
    prices = [usd for m in replies if (usd := finite(m.cost_usd)) is not None]
    unpriced = len(replies) - len(prices)
    more = f", and {unpriced} replies of unknown price" if unpriced else ""
    cost = words.dollars(sum(prices)) + more if prices else UNKNOWN
    return CostLine(model, len(replies), shown["input"], share, shown["output"], cost)


def _tokens(message: Message, kind: str) -> int:
    count = (message.usage or {}).get(f"{kind}_tokens")
    return count if isinstance(count, int) else 0


class HypothesisLine(NamedTuple):
    """What was expected of an attempt, and what came."""

    number: int
    outcome: str
    hypothesis: str
    prediction: str
    measured: str


def hypothesis_lines(run: Trajectory, shown: Sanitizer) -> list[HypothesisLine]:
    """Every hypothesis with the last that is known of it: one that was decided is not listed as open too."""
    decided = {(e.hypothesis, e.prediction) for a in run.attempts for e in a.expectations if e.outcome != "open"}
    return [
        HypothesisLine(a.number, e.outcome, shown.line(e.hypothesis, 400), shown.line(e.prediction, 400), _measured(e))
        for a in run.attempts
        for e in a.expectations
        if e.outcome != "open" or (e.hypothesis, e.prediction) not in decided
    ]


def _measured(said: Expectation) -> str:
    found = ((word, number(said.evidence.get(f"{word}_speedup"))) for word in ("predicted", "measured"))
    return ", ".join(f"{word} {speedup:.3g}x" for word, speedup in found if speedup is not None and 0 < speedup < 1e6)


def counts(run: Trajectory) -> list[tuple[str, str, str, int]]:
    """(class, symbol, words, how many) of every verdict that occurred."""
    tally = Counter(a.status for a in run.attempts)
    return [(css_class(s), verdict_symbol(s), verdict_name(s), tally[s]) for s in (*Status, None) if tally[s]]


_BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, thermal (software, hardware), power brake
_POWER_CAP = 0x4
_VERSIONS = ("kerneltune", "torch", "triton", "numpy", "python", "platform")
_FENCES = {
    "seccomp": "seccomp",
    "network_namespace": "no network",
    "capabilities_dropped": "no capabilities",
    "memory_limited": "memory limit",
    "bubblewrap": "bubblewrap",
}


class Evidence(NamedTuple):
    """A name and what there is to say."""

    name: str
    value: str


def facts(material: RunData) -> list[Evidence]:
    """In the order in which a sceptic asks."""
    run, told = material.trajectory.run, material.receipt
    versions = ", ".join(f"{k} {run.versions[k]}" for k in _VERSIONS if k in run.versions)
    found = [Evidence("versions", versions), Evidence("compiled for", run.arch), *_gpu(material)]
    found += [*_clocks(material.process), *_measurement(told), *_protocol(told), *_cases(told), *_sandbox(material)]
    return [fact for fact in found if fact.value]


def _gpu(material: RunData) -> Iterator[Evidence]:
    run = material.trajectory.run
    if run.gpu is None:
        yield Evidence("GPU", "none: kernels were checked by an interpreter of Triton's IR, and not timed")
        return
    measured = dig(material.receipt, "evidence", "gpu")
    driver = dig(measured, "driver") or dig(run.machine, "gpu", "driver")
    memory = number(dig(measured, "memory_bytes")) or number(dig(run.machine, "gpu", "memory_bytes"))
    limit = number(dig(measured, "power_limit_w"))
    told = [run.gpu, f"driver {driver}" if driver else "", f"{memory / 2**30:.0f} GiB" if memory else ""]
    told.append(f"power limit {limit:.0f} W" if limit else "")
    yield Evidence("GPU", ", ".join(filter(None, told)))


def _clocks(process: Json) -> Iterator[Evidence]:
    middle, slow = number(dig(process, "sm_clock_mhz", "median")), number(dig(process, "sm_clock_mhz", "p5"))
    if middle is not None:
        yield Evidence(
            "SM clock", f"{middle:.0f} MHz median" + (f", {slow:.0f} MHz at the 5th percentile" if slow else "")
        )
    reasons = dig(process, "throttle_reasons")
    if isinstance(reasons, int):
        bad = "slowed down by heat or hardware" if reasons & _BAD_THROTTLE else "not slowed down by heat or hardware"
        yield Evidence("throttling", bad + ("; at times held back by the power limit" if reasons & _POWER_CAP else ""))
    for name, key, unit in (("power", "power_w", "W"), ("temperature", "temperature_c", "°C")):
        low, high = number(dig(process, key, 0)), number(dig(process, key, 1))
        if low is not None and high is not None:
            yield Evidence(name, f"{low:.0f} to {high:.0f} {unit} while measuring")
    foreign = dig(process, "foreign_processes")
    if isinstance(foreign, int):
        yield Evidence("others on the GPU", "none" if foreign == 0 else f"{foreign} processes")


def _measurement(told: Json) -> Iterator[Evidence]:
    timing = dig(told, "verdict", "timing")
    blocks, launches = number(dig(timing, "n_blocks")), number(dig(timing, "n_launches"))
    if blocks is not None and launches is not None:
        processes = dig(told, "evidence", "processes")
        where = f" in {len(processes)} fresh processes" if isinstance(processes, list) else ""
        yield Evidence("measured", f"{blocks:.0f} blocks, {launches:.0f} launches{where}, cold L2")
    if (resolution := number(dig(told, "evidence", "aa_resolution"))) is not None:
        yield Evidence("resolution", f"{resolution:.2%}: the largest difference that the same kernel showed to itself")
    if (copy := number(dig(told, "evidence", "copy_gbps"))) is not None:
        yield Evidence("copy bandwidth", f"{copy:,.0f} GB/s measured in the same session")
    light = dig(told, "evidence", "speed_of_light")
    if (us := number(dig(light, "us"))) is not None:
        yield Evidence("speed of light", f"{us:.2f} µs by {dig(light, 'source')}")


def _protocol(told: Json) -> Iterator[Evidence]:
    version, evaluator = dig(told, "protocol", "version"), dig(told, "protocol", "evaluator_sha256")
    if version is not None:
        yield Evidence("protocol", f"version {version}, evaluator sha256 {str(evaluator)[:16]}")
    words = dig(told, "evidence", "protocol")
    if isinstance(words, str):
        yield Evidence("method", words)
    if isinstance(sha256 := dig(told, "candidate", "source_sha256"), str):
        yield Evidence("source sha256", sha256)
    if isinstance(sha256 := dig(told, "candidate", "plan_sha256"), str):
        yield Evidence("plan sha256", sha256)


def _cases(told: Json) -> Iterator[Evidence]:
    cases = dig(told, "cases")
    if not isinstance(cases, list) or not cases:
        return
    shapes = {str(dig(c, "case")) for c in cases}
    ratios = [r for c in cases if (r := number(dig(c, "error_ratio"))) is not None]
    held = sum(dig(c, "held_out") is True for c in cases)
    wrong = sum(dig(c, "ok") is not True for c in cases)
    worst = f", worst error {max(ratios):.2g} of the tolerance" if ratios else ""
    kept = f", {held} of them never shown to the author" if held else ""
    precision = dig(told, "task", "precision")
    yield Evidence("checked", f"{len(shapes)} shapes, {len(cases)} sets of inputs{kept}, {wrong} wrong{worst}")
    lacking = dig(told, "evidence", NOT_IN_FULL)
    for lack, names in list(lacking.items())[:8] if isinstance(lacking, Mapping) else ():
        yield Evidence("not in full", f"{lack}: {', '.join(map(str, names)) if isinstance(names, list) else names}")
    if isinstance(precision, str):
        yield Evidence("precision", f"{precision}, compared with float64{' but where that is said' if lacking else ''}")


def _sandbox(material: RunData) -> Iterator[Evidence]:
    roles = dig(material.receipt, "where", "sandbox")
    roles = roles if isinstance(roles, Mapping) else {"tracer": dig(material.trajectory.run.machine, "sandbox")}
    for role, enforced in list(roles.items())[:8]:
        if isinstance(enforced, Mapping):
            abi = enforced.get("landlock_abi")
            on = [f"Landlock (ABI {abi})"] if abi else []
            on += [word for key, word in _FENCES.items() if enforced.get(key) is True]
            yield Evidence(f"confined: {role}", ", ".join(on) or "NOT CONFINED")
    warnings = dig(material.receipt, "where", "warnings")
    for warning in warnings[:8] if isinstance(warnings, list) else ():
        yield Evidence("warning", str(warning))


_LIMITS = {  # the name under which a run keeps it: the flag
    "language": "--language",
    "from": "--from",
    "strategy": "--strategy",
    "effort": "--effort",
    "max_attempts": "--max-attempts",
    "max_time_s": "--max-time",
    "max_cost_usd": "--max-cost",
    "patience": "--patience",
    "target_speedup": "--target-speedup",
    "target_sol": "--target-sol",
}
_OF_MODELS = ("strategy", "effort")


class Reproduction(NamedTuple):
    """A command, and what it does."""

    command: str
    purpose: str


def steps(material: RunData) -> list[Reproduction]:
    """What to type, the most useful first."""
    run, best = material.trajectory.run, material.best
    return [
        *(_of_best(best.attempt_id) if best else ()),
        *(
            () if run.author == JUDGED_FILES else (Reproduction(rerun(run), _rerun_purpose(run)),)
        ),  # its files are not known
        Reproduction(
            _line("optimize", "show", run.run_id), "lists the attempts; RUN/NUMBER shows one with its receipt"
        ),
        Reproduction(_line("optimize", "report", run.run_id, "-o", "report.html"), "writes this page again"),
    ]


def _of_best(attempt_id: str) -> Iterator[Reproduction]:
    yield Reproduction(
        _line("optimize", "verify", attempt_id), "judges it again with fresh inputs, and says whether it held"
    )
    yield Reproduction(
        f"{_line('optimize', 'show', attempt_id, '--source')} > best.py", "writes the source exactly as it was judged"
    )


def _rerun_purpose(run: RunStarted) -> str:
    if not _is_model(run):
        return "runs the same again"
    server = "; it was asked at another address, which takes --base-url too" if run.limits.get("base_url") else ""
    return f"runs the same again; a model may write something else{server}"


def rerun(run: RunStarted) -> str:
    """The command line of a run, from what it kept of its flags."""
    words = ["optimize", "--task", _task(run), "--model", run.author, "--seed", str(run.seed)]
    for name, flag in _LIMITS.items():
        value = run.limits.get(name)
        if value is not None and (name not in _OF_MODELS or _is_model(run)):
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    if run.limits.get("warm_start") is False:
        words.append("--no-warm-start")
    if run.gpu is None:
        words += ["--arch", run.arch]
    return _line(*words)


def _task(run: RunStarted) -> str:
    path = PurePath(str(run.machine.get("task_path") or ""))
    return run.task if path.parent.parts[-2:] == ("tools", "tasks") or not path.name else path.name


def _is_model(run: RunStarted) -> bool:
    return run.author != "offline"


def _line(*words: str) -> str:
    return shlex.join(words)
