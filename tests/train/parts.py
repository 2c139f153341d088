"""What the training tests need, made on the spot: a tokenizer of some hundred tokens, a model of two small layers,
settings of a few steps. Nothing is fetched."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.train_proof import TEMPLATE

IM_START, IM_END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
ROLE = "assistant\n"


def tokenizer(texts: Iterable[str]) -> Any:
    """Byte-level BPE, learned from these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [IM_START, IM_END, PAD]
    trainer = trainers.BpeTrainer(
        vocab_size=768, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=IM_END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = TEMPLATE
    return fast


def model(vocabulary: int, *, seed: int = 0) -> Any:
    """A Llama of two layers, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)  # a second one costs more than it brings to a model of this size
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=16_384, **sizes, **tokens))


def settings(folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """What all trainers are told: a few steps on a CPU, each logged, nothing saved or reported."""
    return {
        "output_dir": str(folder / "out"),
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "seed": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        **more,
    }


def losses(trainer: Any) -> list[float]:
    """The loss of each step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def fell(curve: list[float], *, to: float) -> bool:
    """Whether the last steps lie below `to` times the first ones, in the mean of two."""
    return sum(curve[-2:]) < to * sum(curve[:2])
