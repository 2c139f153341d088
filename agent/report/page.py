"""One self-contained file: markup, tables, style and drawings, no script, nothing from elsewhere.

The Content-Security-Policy names the one style by its hash, so that even markup that slipped through could neither run,
nor load, nor restyle anything. Receipts may be damaged or of another version: what is not there is left out.
"""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from kerneltune.agent.attempt import Attempt, Expectation
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.trajectory import JUDGED_FILES, Message, Trajectory
from kerneltune.agent.report import chart
from kerneltune.agent.report.chart import VerdictLook, curve, look, roof, series, spread
from kerneltune.agent.report.data import (
    RunData,
    ancestors,
    baseline_name,
    claim,
    dig,
    finite,
    hardest,
    interval,
    number,
    ranked,
    timing_of,
    tone_of,
)
from kerneltune.agent.report.text import Sanitizer, diff, source, transcripts
from kerneltune.agent.view import text as words
from kerneltune.tools.backends.base import throttled
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.evidence import in_words
from kerneltune.tools.schema.verdict import NOT_IN_FULL, Comparison, Status

if TYPE_CHECKING:
    from jinja2 import Environment


def run_page(material: RunData, shown: Sanitizer, *, version: str) -> str:
    """The report of one run."""
    return render("run.html.j2", shown, version, _run_values(material, shown))


def render(template: str, shown: Sanitizer, version: str, values: dict[str, object]) -> str:
    """A page with its style. Raises jinja2.UndefinedError for a value that is missing."""
    style = (resources.files("kerneltune.agent.report") / "templates" / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    made_by = f"kerneltune {version}" if version[:1].isdigit() else "kerneltune, from a checkout"
    fixed = {"style": Markup(style), "style_sha256": digest, "made_by": made_by}  # noqa: S704 - a file of ours
    return environment(shown).get_template(template).render(fixed | values)


def environment(shown: Sanitizer) -> "Environment":
    """The engine: every value is made fit to be shown, then escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("kerneltune.agent.report", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=shown.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"one_line": shown.line, "ends": shown.ends}
    made.globals |= {
        "look": look, "words": words, "hardest": hardest, "timing_of": timing_of, "interval": interval,
        "finite": finite, "baseline_name": baseline_name, "shows": shows, "measured": measured,
    }  # fmt: skip
    return made


def moment(at: float) -> str:
    """A time for people; a damaged record may hold any number."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def both(shown: Sanitizer, draw: Callable[[float], Markup]) -> tuple[Markup, Markup]:
    """A drawing at both widths."""
    return shown.drawing(draw(chart.WIDE)), shown.drawing(draw(chart.NARROW))


def _run_values(material: RunData, shown: Sanitizer) -> dict[str, object]:
    run = material.trajectory
    blocks = series(material)
    above = roof(material)
    return {
        "title": f"{run.run.task}: {run.run.run_id}",
        "material": material,
        "run": run.run,
        "claim": claim(material),
        "began": moment(run.run.at),
        "took": words.duration(material.elapsed_s) if material.elapsed_s is not None else "",
        "counts": counts(run),
        "tiles": _tiles(material),
        "baselines": ranked(material.best) if material.best else [],
        "curve": both(shown, partial(curve, material)) if run.attempts else None,
        "roof": above,
        "roof_drawn": both(shown, above.draw) if above else None,
        "spread": both(shown, partial(spread, blocks)) if blocks else None,
        "series": blocks,
        "best": _best(material, shown),
        "attempts": run.attempts,
        "costs": cost_lines(run),
        "judge_s": material.judge_s,
        "hypotheses": hypotheses(run),
        "transcripts": transcripts(run, shown),
        "facts": facts(material),
        "receipt_date": dig(material.receipt, "date"),
        "steps": steps(material),
        "task_source": source(run.run.task_source, shown, most=30_000),
    }


def _tiles(material: RunData) -> list[tuple[str, str, str]]:
    """(what, figure, beside it)."""
    run = material.trajectory
    tiles = []
    if material.best is not None and (timing := timing_of(material.best)):
        tiles.append(
            ("time", words.microseconds(timing.median_us), f"95 %: {timing.low_us:.2f} to {timing.high_us:.2f}")
        )
    accepted = sum(a.accepted for a in run.attempts)
    tiles.append(("attempts", f"{len(run.attempts)}", f"{accepted} right"))
    busy = words.duration(material.judge_s)
    tiles.append(("GPU" if run.run.gpu else "judge", busy, "busy checking" + (" and timing" if run.run.gpu else "")))
    costs = cost_lines(run)
    beside = run.run.author if costs else "no model was asked"
    tiles.append(("cost of the model", costs[-1].cost if costs else "none", beside))
    return tiles


def _best(material: RunData, shown: Sanitizer) -> dict[str, object] | None:
    best, run = material.best, material.trajectory
    if best is None:
        return None
    line = ancestors(run, best)
    first = line[-1] if line else None
    before = first.source if first else run.run.task_source
    return {
        "attempt": best,
        "source": source(best.source, shown),
        "against": f"attempt {first.number}, the first of its line" if first else "the PyTorch reference",
        "diff": diff(before, best.source, shown),
    }


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
    lines = [_cost_line(model or "unknown", [m for m in replies if m.model == model]) for model in models]
    return [*lines, _cost_line("together", replies)] if len(lines) > 1 else lines


def _cost_line(model: str, replies: Sequence[Message]) -> CostLine:
    """What is unknown is not 0."""
    tokens = {kind: sum(_tokens(m, kind) for m in replies) for kind in ("input", "cached", "output")}
    counted = bool(tokens["input"] or tokens["output"])
    shown = {kind: words.tokens(n) if counted else "not counted" for kind, n in tokens.items()}
    share = f"{tokens['cached'] / tokens['input']:.0%}" if tokens["input"] else "unknown"
    prices = [usd for m in replies if (usd := finite(m.cost_usd)) is not None]
    unpriced = len(replies) - len(prices)
    more = f", and {unpriced} replies of unknown price" if unpriced else ""
    cost = words.dollars(sum(prices)) + more if prices else "unknown"
    return CostLine(model, len(replies), shown["input"], share, shown["output"], cost)


def _tokens(message: Message, kind: str) -> int:
    count = (message.usage or {}).get(f"{kind}_tokens")
    return count if isinstance(count, int) else 0


Evidence = tuple[str, str]  # a name and what there is to say


def shows(material: RunData, against: Comparison) -> str:
    """What the comparison of the best attempt with a baseline shows."""
    if material.doubt:
        return "did not hold"
    tone = tone_of(against, material.resolution)
    return "no difference measured" if tone == "even" else tone


def hypotheses(run: Trajectory) -> list[tuple[Attempt, Expectation]]:
    """Every hypothesis with the last that is known of it: one that was decided is not listed as open too."""
    decided = {(e.hypothesis, e.prediction) for a in run.attempts for e in a.expectations if e.outcome != "open"}
    return [
        (a, e)
        for a in run.attempts
        for e in a.expectations
        if e.outcome != "open" or (e.hypothesis, e.prediction) not in decided
    ]


def measured(said: Expectation) -> str:
    """The speed-ups that were predicted and measured, where they are known."""
    found = ((word, number(said.evidence.get(f"{word}_speedup"))) for word in ("predicted", "measured"))
    return ", ".join(f"{word} {speedup:.3g}x" for word, speedup in found if speedup is not None and 0 < speedup < 1e6)


def counts(run: Trajectory) -> list[tuple[VerdictLook, int]]:
    """Every verdict that occurred, and how often."""
    tally = Counter(a.status for a in run.attempts)
    return [(look(status), tally[status]) for status in (*Status, None) if tally[status]]


_POWER_CAP = 0x4
_VERSIONS = ("kerneltune", "torch", "triton", "numpy", "python", "platform")
_FENCES = {
    "seccomp": "seccomp",
    "network_namespace": "no network",
    "capabilities_dropped": "no capabilities",
    "memory_limited": "memory limit",
    "bubblewrap": "bubblewrap",
}


def facts(material: RunData) -> list[Evidence]:
    """In the order in which a sceptic asks."""
    run, told = material.trajectory.run, material.receipt
    versions = ", ".join(f"{k} {run.versions[k]}" for k in _VERSIONS if k in run.versions)
    found = [("versions", versions), ("compiled for", run.arch), *_gpu(material)]
    found += [*_clocks(material.process), *_measurement(told)]
    found += in_words(material.best.judged) if material.best else []
    found += [*_protocol(told), *_cases(told), *_sandbox(material)]
    return [(name, value) for name, value in found if value]


def _gpu(material: RunData) -> Iterator[Evidence]:
    run = material.trajectory.run
    if run.gpu is None:
        yield "GPU", "none: kernels were checked by an interpreter of Triton's IR, and not timed"
        return
    measured = dig(material.receipt, "evidence", "gpu")
    driver = dig(measured, "driver") or dig(run.machine, "gpu", "driver")
    memory = number(dig(measured, "memory_bytes")) or number(dig(run.machine, "gpu", "memory_bytes"))
    limit = number(dig(measured, "power_limit_w"))
    told = [run.gpu, f"driver {driver}" if driver else "", f"{memory / 2**30:.0f} GiB" if memory else ""]
    told.append(f"power limit {limit:.0f} W" if limit else "")
    yield "GPU", ", ".join(filter(None, told))


def _clocks(process: Json) -> Iterator[Evidence]:
    middle, slow = number(dig(process, "sm_clock_mhz", "median")), number(dig(process, "sm_clock_mhz", "p5"))
    if middle is not None:
        yield "SM clock", f"{middle:.0f} MHz median" + (f", {slow:.0f} MHz at the 5th percentile" if slow else "")
    reasons = dig(process, "throttle_reasons")
    if isinstance(reasons, int):
        bad = "slowed down by heat or hardware" if throttled(reasons) else "not slowed down by heat or hardware"
        yield "throttling", bad + ("; at times held back by the power limit" if reasons & _POWER_CAP else "")
    for name, key, unit in (("power", "power_w", "W"), ("temperature", "temperature_c", "°C")):
        low, high = number(dig(process, key, 0)), number(dig(process, key, 1))
        if low is not None and high is not None:
            yield (name, f"{low:.0f} to {high:.0f} {unit} while measuring")
    foreign = dig(process, "foreign_processes")
    if isinstance(foreign, int):
        yield "others on the GPU", "none" if foreign == 0 else f"{foreign} processes"


def _measurement(told: Json) -> Iterator[Evidence]:
    timing = dig(told, "verdict", "timing")
    blocks, launches = number(dig(timing, "n_blocks")), number(dig(timing, "n_launches"))
    if blocks is not None and launches is not None:
        processes = dig(told, "evidence", "processes")
        where = f" in {len(processes)} fresh processes" if isinstance(processes, list) else ""
        yield "measured", f"{blocks:.0f} blocks, {launches:.0f} launches{where}, cold L2"
    if (resolution := number(dig(told, "evidence", "aa_resolution"))) is not None:
        yield "resolution", f"{resolution:.2%}: the largest difference that the same kernel showed to itself"
    if (copy := number(dig(told, "evidence", "copy_gbps"))) is not None:
        yield "copy bandwidth", f"{copy:,.0f} GB/s measured in the same session"
    light = dig(told, "evidence", "speed_of_light")
    if (us := number(dig(light, "us"))) is not None:
        yield "speed of light", f"{us:.2f} µs by {dig(light, 'source')}"


def _protocol(told: Json) -> Iterator[Evidence]:
    version, evaluator = dig(told, "protocol", "version"), dig(told, "protocol", "evaluator_sha256")
    if version is not None:
        yield "protocol", f"version {version}, evaluator sha256 {str(evaluator)[:16]}"
    if isinstance(method := dig(told, "evidence", "protocol"), str):
        yield "method", method
    if isinstance(sha256 := dig(told, "candidate", "source_sha256"), str):
        yield "source sha256", sha256
    if isinstance(sha256 := dig(told, "candidate", "plan_sha256"), str):
        yield "plan sha256", sha256


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
    yield "checked", f"{len(shapes)} shapes, {len(cases)} sets of inputs{kept}, {wrong} wrong{worst}"
    lacking = dig(told, "evidence", NOT_IN_FULL)
    for lack, names in list(lacking.items())[:8] if isinstance(lacking, Mapping) else ():
        yield "not in full", f"{lack}: {', '.join(map(str, names)) if isinstance(names, list) else names}"
    if isinstance(precision, str):
        yield "precision", f"{precision}, compared with float64{' but where that is said' if lacking else ''}"


def _sandbox(material: RunData) -> Iterator[Evidence]:
    roles = dig(material.receipt, "where", "sandbox")
    roles = roles if isinstance(roles, Mapping) else {"tracer": dig(material.trajectory.run.machine, "sandbox")}
    for role, enforced in list(roles.items())[:8]:
        if isinstance(enforced, Mapping):
            abi = enforced.get("landlock_abi")
            on = [f"Landlock (ABI {abi})"] if abi else []
            on += [word for key, word in _FENCES.items() if enforced.get(key) is True]
            yield (f"confined: {role}", ", ".join(on) or "NOT CONFINED")
    warnings = dig(material.receipt, "where", "warnings")
    for warning in warnings[:8] if isinstance(warnings, list) else ():
        yield "warning", str(warning)


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


def steps(material: RunData) -> Iterator[tuple[str, str]]:
    """What to type and what it does, the most useful first."""
    run, best = material.trajectory.run, material.best
    if best:
        its = shlex.quote(best.attempt_id)
        yield f"optimize verify {its}", "judges it again with fresh inputs, and says whether it held"
        yield f"optimize show {its} --source > best.py", "writes the source exactly as it was judged"
    if run.author != JUDGED_FILES:  # its files are not known
        server = "; it was asked at another address, which takes --base-url too" if run.limits.get("base_url") else ""
        other = f"; a model may write something else{server}" if _is_model(run) else ""
        yield rerun(run), f"runs the same again{other}"
    run_id = shlex.quote(run.run_id)
    yield f"optimize show {run_id}", "lists the attempts; RUN/NUMBER shows one with its receipt"
    yield f"optimize report {run_id} -o report.html", "writes this page again"


def rerun(run: RunStarted) -> str:
    """The command line of a run, from what it kept of its flags."""
    line = ["optimize", "--task", _task(run), "--model", run.author, "--seed", str(run.seed)]
    for name, flag in _LIMITS.items():
        value = run.limits.get(name)
        if value is not None and (name not in _OF_MODELS or _is_model(run)):
            line += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    if run.limits.get("warm_start") is False:
        line.append("--no-warm-start")
    if run.gpu is None:
        line += ["--arch", run.arch]
    return shlex.join(line)


def _task(run: RunStarted) -> str:
    path = PurePath(str(run.machine.get("task_path") or ""))
    return run.task if path.parent.parts[-2:] == ("tools", "tasks") or not path.name else path.name


def _is_model(run: RunStarted) -> bool:
    return run.author != "offline"
