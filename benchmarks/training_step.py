"""Forward and backward of one op together: our two kernels against a training step of the compiled reference.

    python -m benchmarks.training_step --runs-dir DIR [--attempts 6] [--seconds 40] layer_norm cross_entropy …

For each built-in task two runs of the offline author, of the task and of its gradients (`optimize --backward`); ours is
the sum of both medians, each with a cold L2 and inputs alone saved in between. Theirs is `torch.autograd.grad` through
the reference, eager, by torch.compile and by its max-autotune, with what each chooses to save: the median of
triton.testing.do_bench, the L2 cold before the forward only, which is in their favour. The host bounds a short step so
measured (887 us of rms_norm's, whose kernels take 236), so that the sum of the two runs' fastest compiled baselines,
which have no host, counts where it is less. Prints a table in Markdown and the geometric mean over the least of the
compiled ones. Without a GPU there are verdicts and no times. Exit code 1 where a task has no accepted kernel for one of
both.
"""

import argparse
import gc
import math
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean

import kerneltune
from kerneltune.tools.task.load import builtin_names

MODES = {"eager": None, "torch.compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def ours_us(result: kerneltune.Result) -> float | None:
    """The best kernel's median; None where nothing was timed."""
    timing = result.verdict.timing if result.verdict else None
    return timing.median_us if timing else None


def compiled_us(result: kerneltune.Result) -> float:
    """The fastest baseline that torch compiled."""
    return min(
        (one.baseline_us for name, one in result.speedups.items() if name.startswith("compile")), default=math.inf
    )


def step_us(name: str, mode: str | None) -> float:
    """A training step of the task's reference on its main case: forward, and gradients of all floating inputs and
    parameters for random gradients of the outputs. Microseconds."""
    import torch
    from triton.testing import do_bench

    module = import_module(f"kerneltune.tools.tasks.{name}")
    with torch.device("cuda"):
        torch.manual_seed(0)
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()
    taken = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    taken += model.parameters()
    run = torch.compile(model, mode=mode) if mode else model

    def outputs() -> list[torch.Tensor]:
        found = run(*inputs)
        return [y for y in (found if isinstance(found, tuple) else (found,)) if y.requires_grad]

    gradients = [torch.randn_like(y) for y in outputs()]

    def step() -> None:
        torch.autograd.grad(outputs(), taken, gradients)

    return 1000 * float(do_bench(step, warmup=100, rep=300, return_mode="median"))


def row(name: str, both: Sequence[kerneltune.Result]) -> tuple[str, float | None]:
    """A line of the table, and how many times as fast ours is; None where it was not timed."""
    forward, backward = map(ours_us, both)
    if forward is None or backward is None:
        statuses = " | ".join(r.verdict.status if r.verdict else "none" for r in both)
        return f"| {name} | {statuses} |{' |' * (3 + len(MODES))}", None
    steps = []
    for mode in MODES.values():
        steps.append(step_us(name, mode))
        gc.collect()
    apart = sum(map(compiled_us, both))
    gain = min(*steps[1:], apart) / (forward + backward)
    told = " | ".join(f"{us:.1f}" for us in (forward, backward, forward + backward, *steps, apart))
    return f"| {name} | {told} | {gain:.2f} |", gain


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=builtin_names(), metavar="TASK")
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--attempts", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    print(f"| task | forward | backward | both | {' | '.join(MODES)} | compiled apart | speed-up |")
    print("| --- |" + " ---: |" * (5 + len(MODES)))
    gains, complete = [], True
    for name in given.tasks:
        both = [
            kerneltune.optimize(
                name, backward=backward, model="offline", max_attempts=given.attempts, max_time_s=given.seconds,
                runs_dir=given.runs_dir,
            )
            for backward in (False, True)
        ]  # fmt: skip
        line, gain = row(name, both)
        print(line, flush=True)
        gains += [gain] if gain else []
        complete = complete and all(result.best for result in both)
    if gains:
        print(f"\ngeometric mean {geometric_mean(gains):.3f} over the least of the compiled ones, {len(gains)} tasks")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
