"""One self-contained file: markup, tables, style, drawings and a script that copies code; nothing from elsewhere.

The Content-Security-Policy names the one style and the one script by their hashes, so that even markup that slipped
through could neither run, nor load, nor restyle anything. Receipts may be damaged or of another version: what is not
there is left out.
"""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from kerneltune.agent.attempt import Attempt, Expectation
from kerneltune.agent.record.trajectory import Message, Trajectory
from kerneltune.agent.report.chart import NARROW, WIDE, VerdictLook, curve, look
from kerneltune.agent.report.data import (
    RunData,
    ancestors,
    baseline_name,
    claim,
    dig,
    hardest,
    interval,
    ranked,
    timing_of,
    tone_of,
)
from kerneltune.agent.report.text import Sanitizer, diff, source, transcripts
from kerneltune.agent.view import text as words
from kerneltune.agent.view.attempt import ShownAttempt, fact_rows, worst
from kerneltune.tools.reflect import evidence_in_words
from kerneltune.tools.schema.codec import Json, number, plural
from kerneltune.tools.schema.verdict import Comparison, Status

if TYPE_CHECKING:
    from jinja2 import Environment

    from kerneltune.agent.record.query import RunSummary


@dataclass(frozen=True)
class Site:
    """Where a page is that a service shows, and not a file. `run`: the path of its run's page; `of`: the run that it is
    about, "" for all; `seq`: how far the record was when it was made."""

    seq: int
    of: str = ""
    run: str = ""


def run_page(material: RunData, shown: Sanitizer, *, version: str, site: Site | None = None) -> str:
    """The report of one run."""
    return render("run.html.j2", shown, version, _run_values(material, shown), site)


def attempt_page(known: ShownAttempt, numbers: Sequence[int], shown: Sanitizer, *, version: str, site: Site) -> str:
    """Everything known of one attempt, but its conversation and its machine code. `numbers`: of its run's attempts."""
    attempt, its = known.record, shlex.quote(known.record.attempt_id)
    parent = known.ancestors[0] if known.ancestors else None
    at = numbers.index(attempt.number)
    values = {
        "title": f"{known.run.task} #{attempt.number}",
        "run": known.run,
        "attempt": attempt,
        "name": words.short_name(attempt),
        "before": numbers[at - 1] if at else None,
        "after": numbers[at + 1] if at + 1 < len(numbers) else None,
        "facts": [(name, str(value)) for name, value in fact_rows(known) if name != "verdict"],
        "cases": worst(attempt.cases),
        "source": source(attempt.source, shown),
        "parent": words.parent_name(attempt.attempt_id, attempt.parent_id),
        "difference": diff(parent.source, attempt.source, shown) if parent else None,
        "steps": [
            (f"optimize show {its} --sass", "lists its machine code, with source lines"),
            (f"optimize show {its} --conversation", "prints what led to it, where a model wrote it"),
            (f"optimize verify {its}", "judges it again with fresh inputs, and says whether it held"),
        ],
    }
    return render("attempt.html.j2", shown, version, values, site)


def runs_page(runs: Sequence["RunSummary"], shown: Sanitizer, site: Site, *, version: str, **about: object) -> str:
    """A list of stored runs. `about`: the `query` that they pass, the `total` of which they are, `suites`."""
    values = {"title": "Stored runs", "runs": runs, "ended": _ended, **about}
    return render("runs.html.j2", shown, version, values, site)


def _ended(run: "RunSummary") -> str:
    return "not ended" if run.why is None else f"ended: {run.why.replace('_', ' ')}"


def render(template: str, shown: Sanitizer, version: str, values: dict[str, object], site: Site | None = None) -> str:
    """A page with its style and its script. Raises jinja2.UndefinedError for a value that is missing."""
    made_by = f"kerneltune {version}" if version[:1].isdigit() else "kerneltune, from a checkout"
    scripts = ("copy.js", "live.js") if site else ("copy.js",)
    fixed = _embedded("style", "style.css") | _embedded("script", *scripts) | {"made_by": made_by, "site": site}
    return environment(shown).get_template(template).render(fixed | values)


def _embedded(name: str, *files: str) -> dict[str, object]:
    """Files of ours that are part of the page, and the hash by which the policy lets them in."""
    folder = resources.files("kerneltune.agent.report") / "templates"
    text = "".join((folder / file).read_text() for file in files)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {name: Markup(text), f"{name}_sha256": digest}  # noqa: S704 - a file of ours


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
    made.filters |= {"one_line": shown.line, "ends": shown.ends, "plural": plural}
    made.globals |= {
        "look": look, "words": words, "hardest": hardest, "timing_of": timing_of, "interval": interval,
        "number": number, "baseline_name": baseline_name, "shows": shows, "measured": measured,
    }  # fmt: skip
    return made


def moment(at: float) -> str:
    """A time for people; a damaged record may hold any number."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _run_values(material: RunData, shown: Sanitizer) -> dict[str, object]:
    run = material.trajectory
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
        "curve": [curve(material, width) for width in (WIDE, NARROW)] if run.attempts else None,
        "best": _best(material, shown),
        "attempts": run.attempts,
        "rows": {a.attempt_id: a.number for a in run.attempts},
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
    tiles.append(("attempts", f"{len(run.attempts)}", f"{accepted} accepted"))
    busy = words.duration(material.judge_s)
    tiles.append((f"{'GPU' if run.run.gpu else 'CPU'} time", busy, "checking" + (" and timing" if run.run.gpu else "")))
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
    prices = [usd for m in replies if (usd := number(m.cost_usd)) is not None]
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
    found = [
        ("limits", words.limits_in_words(run.limits)),
        ("seed", str(run.seed)),
        ("versions", versions),
        ("compiled for", run.arch),
    ]
    found += _gpu(material)
    if isinstance(statement := dig(told, "statement"), str):
        found.append(("statement", statement))
    found += evidence_in_words(material.best.judged) if material.best else []
    found += [*_protocol(told), *_sandbox(material)]
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


def steps(material: RunData) -> Iterator[tuple[str, str]]:
    """What to type and what it does, the most useful first."""
    best = material.best
    if best:
        its = shlex.quote(best.attempt_id)
        yield f"optimize verify {its}", "judges it again with fresh inputs, and says whether it held"
        yield f"optimize show {its} --source > best.py", "writes the source exactly as it was judged"
    run_id = shlex.quote(material.trajectory.run.run_id)
    yield f"optimize show {run_id}", "lists the attempts; RUN/NUMBER shows one with its receipt"
    yield f"optimize report {run_id} -o report.html", "writes this page again"
