"""The receipt of a verdict: everything that a sceptic needs to believe it, or to repeat it, as one JSON value. Pure.

It names held-out cases, and may hold seeds: it is for people and for the record. What an author may see of a verdict is
`author_view`.

Its `statement` is one sentence that can be quoted, made of the facts that exist and of no others.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kerneltune.tools.backends.base import throttled
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.schema.codec import Json, encode, number, plural
from kerneltune.tools.schema.plan import Plan, plan_hash
from kerneltune.tools.schema.task import HIDDEN_CASE, TaskSpec, contracts_in_words
from kerneltune.tools.schema.verdict import (
    CaseResult,
    Comparison,
    Status,
    Tier,
    Verdict,
    fastest_first,
    light_in_words,
    limitations_by_sentence,
    limitations_in_words,
    losses_in_words,
    of_a_process,
)
from kerneltune.tools.update import Update


def statement(task: TaskSpec, verdict: Verdict, gpu: Json) -> str:
    """One sentence: the claim first, then how it was reached."""
    if not verdict.accepted:
        return f"{verdict.status.value}: {verdict.detail}"
    parts = [*_timed(verdict, gpu), *_evidence(task, verdict)]
    return "; ".join(filter(None, parts))


def _timed(verdict: Verdict, gpu: Json) -> Iterator[str]:
    timing, facts = verdict.timing, verdict.receipt
    if timing is None:
        yield "right in the CPU interpreter, not timed (no GPU)"
        return
    if verdict.comparisons:
        yield _speedup(verdict)
    name = gpu.get("name", "a GPU") if isinstance(gpu, Mapping) else "a GPU"
    interval = f"{timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}] device time"
    if verdict.case_times:
        interval += f" on average over {len(verdict.case_times)} weighted cases"
    yield ", ".join([interval, "cold L2", str(name), *_clocks(of_a_process(facts))])
    if lost := losses_in_words(verdict.case_times):
        yield lost
    if verdict.tier:
        yield _tier(verdict.tier, timing.n_blocks, facts)
    if verdict.sol_fraction is not None:
        yield light_in_words(verdict.sol_fraction)
    if verdict.coverage is not None:
        yield f"{verdict.coverage:.0%} of device time in its own kernels"
    if (resolution := number(facts.get("aa_resolution"))) is not None:
        yield f"session resolution {resolution:.2%}"


def _speedup(verdict: Verdict) -> str:
    ordered = fastest_first(verdict.comparisons)
    best = ordered[0]
    others = ", ".join(f"{c.baseline} {c.speedup:.3f}x" for c in ordered)
    of = f" (best of {len(ordered)} baselines: {others})" if len(ordered) > 1 else ""
    return f"{_ratio(best, number(verdict.receipt.get('aa_resolution')) or 0.0)} vs {best.baseline}{of}"


def _ratio(best: Comparison, resolution: float) -> str:
    interval = f"{best.speedup:.3f}x [{best.low:.3f}, {best.high:.3f}]"
    if best.low <= 1.0 <= best.high or abs(best.speedup - 1.0) <= resolution:
        return f"no difference measured, {interval}"
    return interval


def _tier(tier: str, n_blocks: int, facts: Mapping[str, Json]) -> str:
    processes = facts.get("processes")
    where = f" in {len(processes)} fresh processes" if isinstance(processes, list) else ""
    return f"{tier}{where} ({n_blocks} blocks)"


def _clocks(facts: Mapping[str, Json]) -> Iterator[str]:
    clocks = facts.get("sm_clock_mhz")
    if isinstance(clocks, Mapping) and (median_mhz := number(clocks.get("median"))) is not None:
        p5_mhz = number(clocks.get("p5"))
        yield f"SM {median_mhz:.0f} MHz median" + (f" (p5 {p5_mhz:.0f})" if p5_mhz is not None else "")
    reasons = facts.get("throttle_reasons")
    if isinstance(reasons, int):
        yield "no throttle" if not throttled(reasons) else f"throttled (reasons {reasons:#x})"


def _evidence(task: TaskSpec, verdict: Verdict) -> Iterator[str]:
    yield f"precision {task.precision}"
    if task.contracts:
        yield f"contract: {contracts_in_words(task.contracts)}"
    if verdict.cases:
        shapes = len({c.case for c in verdict.cases})
        worst = max(c.error_ratio for c in verdict.cases)
        failures = sum(not c.ok for c in verdict.cases)
        yield (
            f"{plural(shapes, 'case')}, {len(verdict.cases)} input sets, {failures} failures, worst error "
            f"{worst:.2g} of the tolerance"
        )
    if found := limitations_by_sentence(verdict):
        yield f"not checked in full: {limitations_in_words(found)}"
    plan = verdict.receipt.get("plan")
    if isinstance(plan, str) and verdict.accepted:
        yield f"plan sha256 {plan[:16]}"


SCHEMA_VERSION = 1
HIDDEN = "held-out"
_HIDDEN_WORDS = (HIDDEN_CASE, "a case with held-out shapes")  # in verdicts of old records, which name no case


@dataclass(frozen=True)
class ReceiptContext:
    """What holds for all verdicts of one session. `gpu` is JSON of `GpuInfo`; `protocol` and `evaluator_sha256` are of
    `schema.verdict`."""

    task: TaskSpec
    arch: str
    gpu: Json
    versions: Mapping[str, str]
    protocol: str
    evaluator_sha256: str
    warnings: tuple[str, ...] = ()


def receipt(
    setting: ReceiptContext,
    sandbox: Mapping[str, Enforced],
    *,
    attempt_id: str,
    source: str,
    update: Update,
    verdict: Verdict,
    asked: Tier | None,
    date: str,
) -> dict[str, Json]:
    """The receipt of one verdict. `sandbox`: what holds a worker, by role; `asked`: the tier that was asked for (None
    where nothing is timed); `date` in ISO."""
    plans = update.judged_plans(verdict.variant)
    main = update.judged_plan(verdict.variant)
    spare = "interpreter" if setting.gpu else "runner"  # the role that has nothing to do here
    held = {role: encode(enforced) for role, enforced in sandbox.items() if role != spare}
    return {
        "schema_version": SCHEMA_VERSION,
        "attempt_id": attempt_id,
        "date": date,
        "statement": statement(setting.task, verdict, setting.gpu),
        "protocol": {"version": setting.protocol, "evaluator_sha256": setting.evaluator_sha256},
        "versions": dict(setting.versions),
        "task": _task(setting.task),
        "candidate": {
            "source_sha256": _sha256(source) if source else None,  # what is no text has no source
            "plan_sha256": plan_hash(main) if main else None,
            "case_plans": {plan.case: plan_hash(plan) for plan in plans},
            "variant": verdict.variant or (main.variant if main else ""),
            "variants_dropped": list(update.dropped_variants),
            "launches": len(main.launches) if main else 0,
            "library_ops": list(main.library_ops) if main else [],
        },
        "compiled": {"arch": setting.arch, "kernels": _kernels(update, main)},
        "where": {"gpu": setting.gpu, "sandbox": held, "warnings": list(setting.warnings)},
        "tier": {"asked": asked, "given": verdict.tier},
        "verdict": {k: v for k, v in encode(verdict).items() if k not in ("cases", "receipt")},
        "cases": [_case(setting.task, result, verdict) for result in verdict.cases],
        "evidence": encode(verdict.receipt),
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _task(task: TaskSpec) -> dict[str, Json]:
    cases = [
        {
            "name": c.name,
            "inputs": list(c.inputs),
            "held_out": c.held_out,
            "bytes_moved": c.bytes_moved,
            "flops": c.flops,
        }
        for c in task.cases
    ]
    found = {"name": task.name, "sha256": task.sha256, "precision": task.precision, "cases": cases}
    return found | ({"contracts": [encode(its) for its in task.contracts]} if task.contracts else {})


def _kernels(update: Update, plan: Plan | None) -> list[Json]:
    return [encode(report) for report in update.kernels_of(plan)]


def _case(task: TaskSpec, result: CaseResult, verdict: Verdict) -> dict[str, Json]:
    seeds = verdict.receipt.get("seeds")
    return {
        **encode(result),
        "held_out": _is_held_out(task, result.case),
        "seed": _seed(seeds, result.case, result.inputs) if isinstance(seeds, dict) else None,
    }


def _seed(seeds: Mapping[str, Json], case: str, inputs: str) -> Json:
    """Of a case and battery, whether filed under "case/battery" or under case, then battery."""
    flat, nested = seeds.get(f"{case}/{inputs}"), seeds.get(case)
    return flat if flat is not None else nested.get(inputs) if isinstance(nested, dict) else None


def _is_held_out(task: TaskSpec, case: str) -> bool:
    return any(c.held_out for c in task.cases if c.name == case)


def author_view(verdict: Verdict, task: TaskSpec) -> Verdict:
    """The verdict as an author may see it: no name, shape or value of a held-out case, and no receipt."""
    cases = tuple(_anonymous(task, result) for result in verdict.cases)
    if not verdict.accepted and _fails_held_out(verdict, task):
        verdict = replace(verdict, kernel="", lines=(), ptx_lines=(), needed_shared_bytes=None, cause=None)
    hidden = _is_held_out(task, verdict.case)
    left_out = tuple(dict.fromkeys(_anonymous_name(task, name) for name in verdict.left_out))
    case_times = tuple(replace(c, case=HIDDEN) if _is_held_out(task, c.case) else c for c in verdict.case_times)
    return replace(
        verdict,
        detail=_public_detail(verdict, task),
        cases=cases,
        receipt={},
        case=HIDDEN if hidden else verdict.case,
        left_out=left_out,
        case_times=case_times,
    )


def _anonymous(task: TaskSpec, result: CaseResult) -> CaseResult:
    if not _is_held_out(task, result.case):
        return result
    return replace(result, case=HIDDEN, detail="" if result.ok else "wrong", max_abs_error=0.0)


def _anonymous_name(task: TaskSpec, name: str) -> str:
    """ "case/battery" without the name of a held-out case."""
    case, _, battery = name.rpartition("/")
    return f"{HIDDEN}/{battery}" if _is_held_out(task, case) else name


def _public_detail(verdict: Verdict, task: TaskSpec) -> str:
    if verdict.accepted or not _fails_held_out(verdict, task):
        return _names(task).sub(HIDDEN, verdict.detail)
    words = {Status.WRONG: "is wrong", Status.TIMED_OUT: "takes too long", Status.REJECTED: "cannot be traced"}
    failed = next((r for r in verdict.cases if not r.ok), None)
    size = f": error {failed.error_ratio:.2g} times the tolerance" if failed else ""
    what = words.get(verdict.status, f"ends as {verdict.status.value}")
    return f"a case with held-out shapes {what}{size}; be right for every size: masks, tails, strides, odd lengths"


def _fails_held_out(verdict: Verdict, task: TaskSpec) -> bool:
    """Whether it is a held-out case's failure, or quotes the name of one (a candidate chooses words of its own)."""
    culprit = verdict.case or next((r.case for r in reversed(verdict.cases) if not r.ok), "")
    quoted = any(words in verdict.detail for words in _HIDDEN_WORDS) or _names(task).search(verdict.detail) is not None
    return quoted or _is_held_out(task, culprit)


def _names(task: TaskSpec) -> re.Pattern[str]:
    """Any held-out case's name, as a word."""
    names = sorted((re.escape(c.name) for c in task.cases if c.held_out), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(names)})(?!\w)" if names else r"(?!)")
