"""Do the programs that exports are made for load them, and train on them? Run by the Python of each, not by ours.

    VENV/bin/python benchmarks/consumers.py datasets FOLDER       # datasets, whichever version
    VENV/bin/python benchmarks/consumers.py trl FOLDER            # TRL: two steps of each format that it trains
    VENV/bin/python benchmarks/consumers.py verl FOLDER           # verl's own data set and tool schemas
    VENV/bin/python benchmarks/consumers.py llamafactory FOLDER   # LLaMA-Factory: two steps on sharegpt

FOLDER has an export for each format, named by it, as this makes them:

    for f in …; do optimize export --format $f -o FOLDER/$f --runs-dir docs/demo; done

(`rl-turns:state=messages,reward=fast_0` for that format). Prints a line a format: rows that were read, or losses of the
two steps; ends with 1 where one fails. Nothing is fetched: models are two layers of random weights, and tokenizers are
trained on the rows. LLaMA-Factory imports torchaudio, which has no CPU build for this torch: give it an empty module.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
SFT, STEPS = ("sft-best", "fim", "convert", "fix", "rl-turns"), 2


def loaded(folder: Path, cache: str) -> Any:
    """All rows of the training split of an export with one format."""
    from datasets import load_dataset

    return load_dataset(str(folder), folder.name, split="train", cache_dir=cache)


def read_by_datasets(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every format, by its name in the card."""
    for each in sorted(p for p in folder.iterdir() if p.is_dir()):
        with_cache = tempfile.mkdtemp()
        yield each.name, lambda each=each, cache=with_cache: f"{len(list(loaded(each, cache)))} rows"  # type: ignore[misc]


def trained_by_trl(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Two steps of SFT, DPO, KTO or GRPO, with what the card says of lengths."""
    import trl

    for name in ("sft-chat", *SFT, "dpo", "kto", "verl"):
        if not (folder / name).is_dir():
            continue
        rows = loaded(folder / name, tempfile.mkdtemp())
        kind = {"dpo": "DPO", "kto": "KTO", "verl": "GRPO"}.get(name, "SFT")
        more: dict[str, Any] = {"max_length": None}
        told: dict[str, Any] = {}
        if name == "sft-chat":
            rows, more["assistant_only_loss"] = rows.filter(lambda row: not row["n_untrained"]), True
        if kind == "GRPO":
            more = {"num_generations": 2, "max_completion_length": 8, "per_device_train_batch_size": 2}
            told["reward_funcs"] = lambda completions, **_: [float(len(str(c))) for c in completions]

        def train(rows: Any = rows, kind: str = kind, more: Any = more, told: Any = told) -> str:
            tokens = tokenizer(map(str, rows))
            tokens.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3_training.jinja").read_text()
            settings = {
                **{"output_dir": tempfile.mkdtemp(), "max_steps": STEPS, "per_device_train_batch_size": 2},
                **{"logging_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True, "bf16": False},
                **more,
            }
            config, trainer = getattr(trl, f"{kind}Config")(**settings), getattr(trl, f"{kind}Trainer")
            if kind in ("DPO", "KTO"):
                told["ref_model"] = tiny(len(tokens))
            made = trainer(tiny(len(tokens)), args=config, train_dataset=rows, processing_class=tokens, **told)
            made.train()
            losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
            assert len(losses) == STEPS
            return f"{len(rows)} rows, {kind} losses {', '.join(f'{loss:.3f}' for loss in losses)}"

        yield name, train


def tokenizer(texts: Iterator[str]) -> Any:
    """Byte-level BPE, learned from these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=SPECIAL[1], pad_token=SPECIAL[2])


def tiny(vocabulary: int) -> Any:
    """A Llama of two layers, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=32_768, **sizes, **tokens))


def read_by_verl(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """The data set that its trainer makes of the file, with prompts as token ids, and its check of tool schemas."""

    def rows() -> str:
        from omegaconf import OmegaConf
        from verl.utils.dataset.rl_dataset import RLHFDataset

        files = [str(path) for path in sorted((folder / "verl").rglob("train-*.parquet"))]
        tokens = tokenizer(iter(["kernel " * 1000]))
        tokens.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        made = RLHFDataset(
            files,
            tokens,
            OmegaConf.create({"max_prompt_length": 8192, "prompt_key": "prompt", "filter_overlong_prompts": False}),
        )
        first = made[0]
        assert first["reward_model"]["ground_truth"].startswith(('"""', "import"))
        assert first["tools_kwargs"]["bench"]["create_kwargs"]["task"]
        return f"{len(made)} rows, first prompt {len(str(first['raw_prompt']))} characters"

    def tools() -> str:
        from verl.tools.schemas import OpenAIFunctionToolSchema

        line = json.loads(next(iter((folder / "openai").rglob("data/**/*.jsonl"))).read_text().splitlines()[0])
        names = [OpenAIFunctionToolSchema.model_validate(tool).function.name for tool in line["tools"]]
        return f"takes the schemas of {', '.join(names)}"

    yield "verl", rows
    yield "tools", tools


def trained_by_llama_factory(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Two steps with its own command's function, on its own view of the file."""
    from llamafactory.train.tuner import run_exp

    columns = {"messages": "conversations", "system": "system", "tools": "tools"}
    for name in ("sharegpt",):

        def train(name: str = name) -> str:
            work = Path(tempfile.mkdtemp())
            (file,) = (folder / name / "data" / name).glob("train-*")
            told = {"file_name": str(file), "formatting": name, "columns": columns}
            (work / "dataset_info.json").write_text(json.dumps({name: told}))
            tokens = tokenizer(iter([file.read_text(errors="replace")]))
            tokens.save_pretrained(work / "model")
            tiny(len(tokens)).save_pretrained(work / "model")
            asked = {
                **{
                    "stage": "sft",
                    "do_train": True,
                    "finetuning_type": "full",
                    "template": "qwen3",
                    "cutoff_len": 16_384,
                },
                **{"dataset": name, "dataset_dir": str(work), "model_name_or_path": str(work / "model")},
                **{"output_dir": str(work / "out"), "overwrite_cache": True, "preprocessing_num_workers": 1},
                **{"max_steps": STEPS, "per_device_train_batch_size": 1, "logging_steps": 1, "save_strategy": "no"},
                **{"report_to": "none", "use_cpu": True, "bf16": False},
            }
            run_exp(asked)
            log = [json.loads(line) for line in (work / "out" / "trainer_log.jsonl").read_text().splitlines()]
            losses = [entry["loss"] for entry in log if "loss" in entry]
            assert len(losses) == STEPS, log
            return f"losses {', '.join(f'{loss:.3f}' for loss in losses)}"

        yield name, train


CONSUMERS = {
    "datasets": read_by_datasets,
    "trl": trained_by_trl,
    "verl": read_by_verl,
    "llamafactory": trained_by_llama_factory,
}


def main(consumer: str, folder: str, *only: str) -> int:
    """Try all formats of one consumer, or only some; 1 if one failed."""
    import importlib.metadata

    print(f"{consumer} {importlib.metadata.version(consumer)}")
    failed = 0
    for name, attempt in CONSUMERS[consumer](Path(folder).resolve()):
        if only and name not in only:
            continue
        try:
            print(f"  {name}: {attempt()}", flush=True)
        except Exception as error:  # noqa: BLE001 - the next format is tried, and the exit code tells
            failed += 1
            print(f"  {name}: FAILED {type(error).__name__}: {str(error).strip()[:200]}", flush=True)
            if os.environ.get("VERBOSE"):
                traceback.print_exc()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
