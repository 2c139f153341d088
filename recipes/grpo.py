"""GRPO against the service, from a model that gets something right already.

    KERNELTUNE_SERVICE=… python recipes/grpo.py EXPORT --config fim --model MODEL --out OUT
    KERNELTUNE_SERVICE=… python recipes/grpo.py EXPORT --config verl --turns --model MODEL --out OUT

With `--turns` the policy calls tools over several turns, and each turn has an advantage of its own (TRLOO); it must
know a chat template with tools. Otherwise an answer is a file, or what is missing from one, and is paid 1 for being
right, 0.2 for compiling. `--answers FILE`, of `evaluate.py --split train`, leaves the rows that the model answered
right in a tenth to nine tenths of the cases: the others teach nothing, and fewer rows come again sooner. OUT holds
checkpoints, from which the same command goes on, and in the end OUT/model. It ends in a table, and in what part of a
step was the judge's. `--rank 0` trains all weights: replies are drawn without an adapter then, which of a model with 30
layers took 0.6 of the time on a CPU, as each of 210 adapters is three operations more a token.
"""

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

from data import RIGHT, Row, adapter, all_judged, merged, rights, rows_of, service_fault, table, trained_dtype, write


def main() -> None:
    """Train, merge, tell."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    args = _parsed()
    made = args.out / "model"
    if (made / "config.json").exists():
        raise SystemExit(f"{made} is there already")
    if fault := service_fault():
        raise SystemExit(fault)
    rows = rows_of(args.export, args.config, "train", args.max_tokens)
    if args.answers:
        rows = _learnable(rows, args.answers)
    gpu = torch.cuda.is_available()
    tokens = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=trained_dtype(args.rank))
    settings: dict[str, Any] = {
        **{"output_dir": str(args.out), "max_steps": args.steps, "num_generations": args.group, "beta": 0.0},
        **{"per_device_train_batch_size": args.batch, "max_completion_length": args.max_new_tokens, "seed": args.seed},
        **{"learning_rate": args.learning_rate, "scale_rewards": "none", "temperature": args.temperature},
        **{"gradient_accumulation_steps": args.accumulate},
        **{"save_steps": args.save_every, "save_total_limit": 1, "logging_steps": 1, "report_to": "none"},
        **{"logging_nan_inf_filter": False},
        **{"use_cpu": not gpu, "bf16": gpu, "disable_tqdm": True, "gradient_checkpointing": False},
    }
    keys = [k for k in ("prompt", "prefix", "suffix", "task_sha256", "extra_info", "reward_model") if k in rows[0]]
    told: dict[str, Any] = {"reward_funcs": _paid(args.export)}
    kind: Any = GRPOTrainer
    if args.turns:
        from kernel_trl import KernelEnv
        from kernel_trl_turns import TurnGRPO

        told, kind = {"environment_factory": KernelEnv}, TurnGRPO
    trainer = kind(
        model,
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list([{k: row[k] for k in keys} for row in rows]),
        processing_class=tokens,
        peft_config=adapter(args.rank),
        callbacks=[only_numbers()],
        **told,
    )
    trainer.train(resume_from_checkpoint=any(args.out.glob("checkpoint-*")) or None)
    merged(trainer.model).save_pretrained(made)
    tokens.save_pretrained(made)
    curve = [entry["reward"] for entry in trainer.state.log_history if not math.isnan(entry.get("reward", math.nan))]
    write(args.out / "grpo.json", json.dumps({"rewards": curve, "rows": len(rows), "model": str(made)}, indent=1))
    third = max(len(curve) // 3, 1)
    shown = [(name, len(part), *_spread(part)) for name, part in (("first", curve[:third]), ("last", curve[-third:]))]
    print(table(("steps", "n", "mean reward", "95 % interval"), shown))
    parts = [(entry["judged_s"], entry["step_time"]) for entry in trainer.state.log_history if "judged_s" in entry]
    if parts:
        print("judging: {:.1f} of {:.1f} s a step, medians".format(*map(median, zip(*parts, strict=True))))


def _learnable(rows: list[Row], answers: Path) -> list[Row]:
    """Those right in 0.1 to 0.9 of their answers: where all of a group are right, or none is, no answer is better than
    another, and nothing is learned."""
    known = rights(map(json.loads, answers.read_text().splitlines()))
    shares = {name: sum(right) / len(right) for name, right in known.items()}
    found = [row for row in rows if 0.1 <= shares.get(row["attempt_id"], 0.0) <= 0.9]
    print(f"{len(found)} of {len(shares)} rows were answered right sometimes", flush=True)
    if not found:
        raise SystemExit(f"{answers} leaves no row of {len(rows)}; ask for more: evaluate.py --split train --rows 200")
    return found


def only_numbers() -> Any:
    """Leaves out a step whose gradients are no numbers, which would make all weights NaN and each checkpoint after it:
    one of 28 steps in bfloat16 on an H200 was such."""
    import torch
    from transformers import TrainerCallback

    class OnlyNumbers(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any, **more: Any) -> None:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            if gradients and not torch.stack(torch._foreach_norm(gradients)).isfinite().all():
                model.zero_grad(set_to_none=True)
                print(f"step {state.global_step + 1} left out: its gradients are no numbers", flush=True)

    return OnlyNumbers()


def _paid(export: Path) -> Any:
    """A reward function over the answers of a batch; it tells TRL the seconds that the judge took."""

    def paid(completions: list[Any], log_metric: Any, **columns: list[Any]) -> list[float | None]:
        names = [name for name in ("prefix", "suffix", "task_sha256", "extra_info") if name in columns]
        rows = [{name: columns[name][i] for name in names} for i in range(len(completions))]
        for row in rows:
            if "task_sha256" not in row:
                row["task_sha256"] = row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]["task_sha256"]
        begun = time.perf_counter()
        found = all_judged(export, [(row, done[-1]["content"]) for row, done in zip(rows, completions, strict=True)])
        log_metric("judged_s", time.perf_counter() - begun)
        worth = {**dict.fromkeys(RIGHT, 1.0), "wrong": 0.2, "crashed": 0.2}
        return [None if status is None else worth.get(status, 0.0) for status in found]

    return paid


def _spread(part: list[float]) -> tuple[str, str]:
    if not part:
        return "-", "-"
    mean = sum(part) / len(part)
    half = 1.96 * math.sqrt(sum((r - mean) ** 2 for r in part) / max(len(part) - 1, 1) / len(part))
    return f"{mean:.3f}", f"{mean - half:.3f} to {mean + half:.3f}"


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--config", default="fim", help="fim, or verl for whole files")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="of evaluate.py --split train")
    for name, kind, value in (
        *(("steps", int, 12), ("batch", int, 32), ("group", int, 8), ("rank", int, 16), ("learning-rate", float, 1e-5)),
        *(("max-tokens", int, 3000), ("max-new-tokens", int, 512), ("temperature", float, 1.0), ("seed", int, 1)),
        *(("save-every", int, 4), ("accumulate", int, 1)),
    ):
        parser.add_argument(f"--{name}", type=kind, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
