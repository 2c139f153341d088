"""What the receipt of the best attempt says: versions, GPU, clocks, protocol, confinement. Pure, and patient with
receipts that are damaged or of another version: what is not there is left out, never made up."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.report.material import Material, dig, number
from tools.codec import Json
from tools.verdict import NOT_IN_FULL

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


class Fact(NamedTuple):
    """A name and what there is to say."""

    name: str
    value: str


def facts(material: Material) -> list[Fact]:
    """In the order in which a sceptic asks."""
    run, told = material.trajectory.run, material.receipt
    versions = ", ".join(f"{k} {run.versions[k]}" for k in _VERSIONS if k in run.versions)
    found = [Fact("versions", versions), Fact("compiled for", run.arch), *_gpu(material)]
    found += [*_clocks(material.process), *_measurement(told), *_protocol(told), *_cases(told), *_sandbox(material)]
    return [fact for fact in found if fact.value]


def _gpu(material: Material) -> Iterator[Fact]:
    run = material.trajectory.run
    if run.gpu is None:
        yield Fact("GPU", "none: kernels were checked by an interpreter of Triton's IR, and not timed")
        return
    measured = dig(material.receipt, "evidence", "gpu")
    driver = dig(measured, "driver") or dig(run.machine, "gpu", "driver")
    memory = number(dig(measured, "memory_bytes")) or number(dig(run.machine, "gpu", "memory_bytes"))
    limit = number(dig(measured, "power_limit_w"))
    told = [run.gpu, f"driver {driver}" if driver else "", f"{memory / 2**30:.0f} GiB" if memory else ""]
    told.append(f"power limit {limit:.0f} W" if limit else "")
    yield Fact("GPU", ", ".join(filter(None, told)))


def _clocks(process: Json) -> Iterator[Fact]:
    middle, slow = number(dig(process, "sm_clock_mhz", "median")), number(dig(process, "sm_clock_mhz", "p5"))
    if middle is not None:
        yield Fact("SM clock", f"{middle:.0f} MHz median" + (f", {slow:.0f} MHz at the 5th percentile" if slow else ""))
    reasons = dig(process, "throttle_reasons")
    if isinstance(reasons, int):
        bad = "slowed down by heat or hardware" if reasons & _BAD_THROTTLE else "not slowed down by heat or hardware"
        yield Fact("throttling", bad + ("; at times held back by the power limit" if reasons & _POWER_CAP else ""))
    for name, key, unit in (("power", "power_w", "W"), ("temperature", "temperature_c", "°C")):
        low, high = number(dig(process, key, 0)), number(dig(process, key, 1))
        if low is not None and high is not None:
            yield Fact(name, f"{low:.0f} to {high:.0f} {unit} while measuring")
    foreign = dig(process, "foreign_processes")
    if isinstance(foreign, int):
        yield Fact("others on the GPU", "none" if foreign == 0 else f"{foreign} processes")


def _measurement(told: Json) -> Iterator[Fact]:
    timing = dig(told, "verdict", "timing")
    blocks, launches = number(dig(timing, "n_blocks")), number(dig(timing, "n_launches"))
    if blocks is not None and launches is not None:
        processes = dig(told, "evidence", "processes")
        where = f" in {len(processes)} fresh processes" if isinstance(processes, list) else ""
        yield Fact("measured", f"{blocks:.0f} blocks, {launches:.0f} launches{where}, cold L2")
    if (resolution := number(dig(told, "evidence", "aa_resolution"))) is not None:
        yield Fact("resolution", f"{resolution:.2%}: the largest difference that the same kernel showed to itself")
    if (copy := number(dig(told, "evidence", "copy_gbps"))) is not None:
        yield Fact("copy bandwidth", f"{copy:,.0f} GB/s measured in the same session")
    light = dig(told, "evidence", "speed_of_light")
    if (us := number(dig(light, "us"))) is not None:
        yield Fact("speed of light", f"{us:.2f} µs by {dig(light, 'source')}")


def _protocol(told: Json) -> Iterator[Fact]:
    version, evaluator = dig(told, "protocol", "version"), dig(told, "protocol", "evaluator_sha256")
    if version is not None:
        yield Fact("protocol", f"version {version}, evaluator sha256 {str(evaluator)[:16]}")
    words = dig(told, "evidence", "protocol")
    if isinstance(words, str):
        yield Fact("method", words)
    if isinstance(sha256 := dig(told, "candidate", "source_sha256"), str):
        yield Fact("source sha256", sha256)
    if isinstance(sha256 := dig(told, "candidate", "plan_sha256"), str):
        yield Fact("plan sha256", sha256)


def _cases(told: Json) -> Iterator[Fact]:
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
    yield Fact("checked", f"{len(shapes)} shapes, {len(cases)} sets of inputs{kept}, {wrong} wrong{worst}")
    lacking = dig(told, "evidence", NOT_IN_FULL)
    for words, names in list(lacking.items())[:8] if isinstance(lacking, Mapping) else ():
        yield Fact("not in full", f"{words}: {', '.join(map(str, names)) if isinstance(names, list) else names}")
    if isinstance(precision, str):
        yield Fact("precision", f"{precision}, compared with float64{' but where that is said' if lacking else ''}")


def _sandbox(material: Material) -> Iterator[Fact]:
    roles = dig(material.receipt, "where", "sandbox")
    roles = roles if isinstance(roles, Mapping) else {"tracer": dig(material.trajectory.run.machine, "sandbox")}
    for role, enforced in list(roles.items())[:8]:
        if isinstance(enforced, Mapping):
            abi = enforced.get("landlock_abi")
            on = [f"Landlock (ABI {abi})"] if abi else []
            on += [word for key, word in _FENCES.items() if enforced.get(key) is True]
            yield Fact(f"confined: {role}", ", ".join(on) or "NOT CONFINED")
    warnings = dig(material.receipt, "where", "warnings")
    for warning in warnings[:8] if isinstance(warnings, list) else ():
        yield Fact("warning", str(warning))
