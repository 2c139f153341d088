"""LoRA, or with `--rank 0` all weights, on an export's prompts and completions.

    python recipes/sft.py EXPORT --config fim --model MODEL --out OUT

EXPORT is a folder of `optimize export` with that format and `verl`; MODEL a folder that transformers reads. OUT holds
checkpoints, from which the same command goes on, and in the end the merged model, OUT/model. Ends in a table.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from data import adapter, merged, rows_of, table, trained_dtype, write


def main() -> None:
    """Train, merge, tell."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    args = _parsed()
    made = args.out / "model"
    if (made / "config.json").exists():
        raise SystemExit(f"{made} is there already")
    data = {split: rows_of(args.export, args.config, split, args.max_tokens) for split in ("train", "test")}
    if not data["train"]:
        raise SystemExit(f"no row of {args.config} is in train, or none has at most {args.max_tokens} tokens")
    gpu = torch.cuda.is_available()
    tokens = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=trained_dtype(args.rank))
    settings: dict[str, Any] = {
        **{"output_dir": str(args.out), "max_steps": args.steps, "per_device_train_batch_size": args.batch},
        **{
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": max(args.steps // 20, 1),
        },
        **{"max_length": None, "packing": False, "seed": args.seed, "logging_steps": 1, "report_to": "none"},
        **{"save_steps": args.save_every, "save_total_limit": 1, "use_cpu": not gpu, "bf16": gpu, "disable_tqdm": True},
        **{"gradient_checkpointing": False, "per_device_eval_batch_size": args.batch},
    }
    kept = {
        split: Dataset.from_list([{k: r[k] for k in ("prompt", "completion")} for r in its])
        for split, its in data.items()
        if its
    }
    trainer = SFTTrainer(
        model,
        args=SFTConfig(**settings),
        train_dataset=kept["train"],
        eval_dataset=kept["test"].select(range(min(args.measured, len(kept["test"])))) if "test" in kept else None,
        processing_class=tokens,
        peft_config=adapter(args.rank),
    )
    before = trainer.evaluate()["eval_loss"] if "test" in kept else None
    trainer.train(resume_from_checkpoint=any(args.out.glob("checkpoint-*")) or None)
    after = trainer.evaluate()["eval_loss"] if "test" in kept else None
    merged(trainer.model).save_pretrained(made)
    tokens.save_pretrained(made)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    told = {
        **{"rows": len(data["train"]), "tasks": len({r["task"] for r in data["train"]}), "steps": len(losses)},
        **{"loss": [round(sum(part) / len(part), 4) for part in (losses[:10], losses[-10:])]},
        **{"held_out_loss": [before and round(before, 4), after and round(after, 4)], "model": str(made)},
    }
    write(args.out / "sft.json", json.dumps(told, indent=1))
    print(table(("rows", "tasks", "steps", "loss", "held-out loss", "model"), [list(told.values())]))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--config", default="fim", help="fim, sft-best, fix or convert")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    for name, kind, value in (
        *(("steps", int, 300), ("batch", int, 16), ("rank", int, 64), ("learning-rate", float, 1e-3), ("seed", int, 1)),
        *(("max-tokens", int, 3000), ("save-every", int, 100), ("measured", int, 32)),
    ):
        parser.add_argument(f"--{name}", type=kind, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
