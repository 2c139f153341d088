"""What templates say of a task, a GPU and an attempt, as plain values: short words and rounded numbers. Pure."""

from collections.abc import Mapping, Sequence
from math import prod

from agent.authors.base import Attempt
from tools.codec import Json
from tools.gpus import Gpu
from tools.receipt import HIDDEN, author_view
from tools.roofline import speed_of_light
from tools.spec import CaseSpec, TaskSpec, TensorSpec
from tools.verdict import KernelReport, Verdict

Values = dict[str, object]
MOST_CASES = 8  # that a prompt lists
MOST_PARAMETERS = 12  # of one case
MOST_OF_A_TREE = 300  # characters
MOST_OF_A_DETAIL = 1000  # characters of a failure that is told in full
MOST_KERNELS = 4  # of one attempt
PRECISIONS = {
    "float64": "float64: all arithmetic in float64",
    "float32": "float32: products and sums with 24-bit mantissas; plain TF32 or 16-bit operands fail, three TF32 "
    "products pass",
    "tf32_ok": "tf32: products may be TF32 (11 bits), sums are float32",
    "tf32": "tf32: products may be TF32 (11 bits), sums are float32",
    "float16": "float16: operands may be float16 (11 bits), sums are float32",
    "bfloat16": "bfloat16: operands may be bfloat16 (8 bits), sums are float32",
}


def task(spec: TaskSpec) -> Values:
    """The task without its held-out cases."""
    shown = [case for case in spec.cases if not case.held_out]
    return {
        "name": spec.name,
        "precision": PRECISIONS.get(spec.precision, f"{spec.precision}: no narrower operands, sums are float32"),
        "notes": spec.notes,
        "source": spec.source,
        "cases": [_case(case) for case in shown[:MOST_CASES]],
        "unlisted": max(0, len(shown) - MOST_CASES),
        "bytes": _amount(spec.main.bytes_moved, "B"),
        "flops": _amount(spec.main.flops, "FLOP") if spec.main.flops else "",
        "intensity": _short(spec.main.flops / spec.main.bytes_moved) if spec.main.bytes_moved else "?",
    }


def _case(case: CaseSpec) -> Values:
    state = [f"{name}: {tree(spec)}" for name, spec in case.state.items()]
    more = [f"… {len(state) - MOST_PARAMETERS} more"] if len(state) > MOST_PARAMETERS else []
    return {
        "name": case.name,
        "inputs": ", ".join(map(tree, case.inputs)),
        "init_args": ", ".join(map(tree, case.init_args)),
        "outputs": tree(case.outputs),
        "state": ", ".join(state[:MOST_PARAMETERS] + more),
    }


def tree(value: Json | TensorSpec) -> str:
    """A tree of tensors in short: "float32[8, 4]", "(int64[3], True)"."""
    words = _tree(value)
    return words if len(words) <= MOST_OF_A_TREE else words[: MOST_OF_A_TREE - 1] + "…"


def _tree(value: Json | TensorSpec) -> str:
    if isinstance(value, TensorSpec):
        return _tensor(value.shape, value.dtype, value.stride)
    if isinstance(value, Mapping):
        return _node(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_tree, value))})"
    return repr(value)


def _node(value: Mapping[str, Json]) -> str:
    if "$tensor" in value:
        leaf = value["$tensor"]
        return (
            _tree(leaf) if isinstance(leaf, TensorSpec) else _tensor(leaf["shape"], leaf["dtype"], leaf.get("stride"))
        )
    if len(value) == 1 and next(iter(value)).startswith("$"):  # a tuple, a dict, a dtype, …
        inner = next(iter(value.values()))
        return inner if isinstance(inner, str) else _tree(inner)
    return "{" + ", ".join(f"{key}: {_tree(inner)}" for key, inner in value.items()) + "}"


def _tensor(shape: Sequence[int], dtype: str, stride: Sequence[int] | None) -> str:
    row_major = [prod(shape[i + 1 :]) for i in range(len(shape))]
    strides = f" stride {list(stride)}" if stride is not None and list(stride) != row_major else ""
    return f"{dtype}{list(shape)}{strides}"


def hardware(gpu: Gpu) -> Values:
    """The numbers of a GPU."""
    return {
        "name": gpu.name,
        "multiprocessors": gpu.multiprocessors,
        "memory_gib": gpu.memory_bytes >> 30,
        "l2_mib": gpu.l2_bytes >> 20,
        "bandwidth_gbps": f"{gpu.bandwidth_gbps:,.0f}",
        "measured_copy_gbps": f"{gpu.measured_copy_gbps:,.0f}" if gpu.measured_copy_gbps else "",
        "shared_per_sm_kib": gpu.shared_per_sm_bytes >> 10,
        "shared_per_block_kib": gpu.shared_per_block_bytes >> 10,
        "warps_per_sm": gpu.warps_per_sm,
        "blocks_per_sm": gpu.blocks_per_sm,
        "rates": ", ".join(f"{dtype} {rate:g}" for dtype, rate in gpu.tflops.items()),
        "tf32x3": f"{gpu.tflops['tf32'] / 3:.0f}",
    }


def light(spec: TaskSpec, gpu: Gpu) -> Values | None:
    """How fast the timed case could be; None when the rates of its precision are not known."""
    try:
        floor = speed_of_light(spec.main, gpu, spec.precision)
    except KeyError:
        return None
    measured = _short(floor.measured_us) if floor.measured_us is not None else ""
    return {"us": _short(floor.us), "bound": floor.bound, "measured_us": measured}


def attempt(spec: TaskSpec, made: Attempt, numbers: Mapping[str, int]) -> Values:
    """An attempt in full, as an author may see it. `numbers`: of the attempts that may be its parent."""
    verdict = author_view(made.verdict, spec)
    return {
        "number": made.number,
        "parent": numbers.get(made.parent_id or ""),
        "status": verdict.status.value,
        "accepted": verdict.accepted,
        "tried": made.proposal.rationale,
        "source": made.proposal.source,
        "result": result(made, verdict),
        "detail": "" if verdict.accepted else verdict.detail[:MOST_OF_A_DETAIL],
        "failed": "" if verdict.accepted else _failed(verdict),
        "sol_percent": f"{100 * verdict.sol_fraction:.0f}" if verdict.sol_fraction is not None else "",
        "coverage_percent": f"{100 * verdict.coverage:.0f}" if verdict.coverage is not None else "",
        "variant": verdict.variant if verdict.variant != "default" else "",
        "compiled": [_kernel(report) for report in made.kernels[:MOST_KERNELS]],
    }


def result(made: Attempt, verdict: Verdict) -> str:
    """What counts about an accepted attempt: its time and speed-ups, or its rank; else ""."""
    if verdict.timing is not None:
        gains = "".join(f", {c.speedup:.3g}x {c.baseline}" for c in verdict.comparisons)
        return f"{_us(verdict.timing.median_us)} us{gains}"
    if not verdict.accepted or len(made.rank_key) != 4:
        return ""
    traffic, spills, warps, registers = made.rank_key
    return f"{_amount(int(traffic), 'B')}, spills {spills:.0f} B, occupancy {-warps:.2f}, {registers:.0f} registers"


def _failed(verdict: Verdict) -> str:
    """The worst comparison of those that failed."""
    wrong = [case for case in verdict.cases if not case.ok]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda case: case.error_ratio)
    where = "a case with held-out shapes" if worst.case == HIDDEN else f"case {worst.case}, {worst.inputs} inputs"
    size = f"{_short(worst.error_ratio)} tolerances off"
    return f"{len(wrong)} of {len(verdict.cases)} comparisons fail; worst: {where}, {size}"


def _kernel(report: KernelReport) -> Values:
    return {
        "name": report.name,
        "registers": report.registers,
        "spill_bytes": report.spill_store_bytes + report.spill_load_bytes,
        "shared_bytes": report.shared_bytes,
        "num_warps": report.num_warps,
        "num_stages": report.num_stages,
        "occupancy": f"{report.occupancy:.2f}",
    }


def _us(number: float) -> str:
    return f"{number:,.1f}" if number >= 100 else f"{number:.3g}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _amount(count: int, unit: str) -> str:
    """A count with a prefix of thousands: "537 MB"."""
    size, prefixes = float(count), ["", "k", "M", "G", "T", "P"]
    while size >= 999.5 and len(prefixes) > 1:
        size, prefixes = size / 1000, prefixes[1:]
    return f"{size:.3g} {prefixes[0]}{unit}".strip()
