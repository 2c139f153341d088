"""Answers of a model to held-out rows, judged by the service: how far each got, pass@1 and pass@k with intervals.

    KERNELTUNE_SERVICE=unix:… python recipes/evaluate.py EXPORT --config fim --model MODEL --out FILE

Rows are of the split `test`: compositions that nobody trained on; `--split train` finds out which of the others a model
answers right sometimes, for `grpo.py --answers`. `--shots 3` shows three training rows first; `--copy`
asks no model: the answer is that of the training row whose question is most alike, which a model must beat, else it
remembers. FILE keeps every answer with its verdict; the same command goes on where one ended, and judges what
could not be judged: answers may be asked for where the GPU is, and judged elsewhere. It ends in a table.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import REACHED, RIGHT, Row, all_judged, rights, rows_of, service_fault, table, wilson, write


def main() -> None:
    """Ask, judge, tell."""
    args = _parsed()
    rows = rows_of(args.export, args.config, args.split, args.max_tokens)
    if not rows:
        raise SystemExit(f"{args.config} has no row in {args.split}: export with --test 0.1")
    if fault := service_fault():
        print(f"{fault}; until then answers are kept, and the same command judges them", flush=True)
    random.Random(args.seed).shuffle(rows)
    rows = list({row["task"]: row for row in reversed(rows)}.values())[: args.rows]  # one of each task
    training = rows_of(args.export, args.config, "train", args.max_tokens)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    asked = Counter(one["attempt_id"] for one in done)
    left = [row for row in rows for _ in range((1 if args.copy else args.samples) - asked[row["attempt_id"]])]
    answers = _copied(left, training) if args.copy else _spoken(args, left, training)
    by_id = {row["attempt_id"]: row for row in rows}
    unjudged = [one for one in done if one["status"] is None and one["attempt_id"] in by_id]
    pairs = [(by_id[one["attempt_id"]], one["answer"]) for one in unjudged]
    for one, status in zip(unjudged, all_judged(args.export, pairs), strict=True):
        one["status"] = status
    if unjudged:
        write(args.out, "".join(json.dumps(one) + "\n" for one in done))
    with args.out.open("a") as file:
        for batch in answers:
            for (row, text), status in zip(batch, all_judged(args.export, batch), strict=True):
                one = {"attempt_id": row["attempt_id"], "family": row["family"], "answer": text, "status": status}
                file.write(json.dumps(one) + "\n")
                done.append(one)
            file.flush()
    _tell(args, done)


def _spoken(args: argparse.Namespace, rows: list[Row], training: list[Row]) -> Iterator[list[tuple[Row, str]]]:
    if not rows:
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(args.model)
    tokens.padding_side, tokens.pad_token = "left", tokens.pad_token or tokens.eos_token
    gpu = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16 if gpu else torch.float32)
    model.to("cuda" if gpu else "cpu").eval()
    torch.manual_seed(args.seed)
    shots = [
        m
        for row in sorted(training, key=lambda r: r["tokens"])[: args.shots]
        for m in (*row["prompt"], *row["completion"])
    ]
    for start in range(0, len(rows), args.batch):
        batch = rows[start : start + args.batch]
        said = [
            tokens.apply_chat_template([*shots, *r["prompt"]], tokenize=False, add_generation_prompt=True)
            for r in batch
        ]
        given = tokens(said, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        with torch.inference_mode():
            out = model.generate(
                **given, max_new_tokens=args.max_new_tokens, do_sample=True, temperature=args.temperature, top_p=0.95
            )
        texts = tokens.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        yield list(zip(batch, texts, strict=True))


def _copied(rows: list[Row], training: list[Row]) -> Iterator[list[tuple[Row, str]]]:
    known = [(_words(row), row["completion"][0]["content"]) for row in training]
    for row in rows:
        said = _words(row)
        _, text = max(known, key=lambda other: len(said & other[0]) / len(said | other[0]))
        yield [(row, text)]


def _words(row: Row) -> frozenset[tuple[str, ...]]:
    words = " ".join(m["content"] for m in row["prompt"]).split()
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def _tell(args: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    known = [one for one in done if one["status"] is not None]
    counts = Counter(one["status"] for one in known)
    print(table(("verdict", "answers"), [(s, counts[s]) for s in REACHED if counts[s]]))
    of_rows = rights(done)
    n_right, n = sum(map(sum, of_rows.values())), len(known)
    k = max(map(len, of_rows.values()), default=0)
    n_solved = sum(map(any, of_rows.values()))
    shares = [("pass@1", n_right, n), (f"pass@{k}", n_solved, len(of_rows)),
              ("compiles", sum(counts[s] for s in ("wrong", "crashed", *RIGHT)), n)]  # fmt: skip
    lines = [
        (
            name,
            f"{a} of {b}",
            f"{100 * a / b:.1f} %" if b else "-",
            "{:.1f} to {:.1f} %".format(*(100 * e for e in wilson(a, b))),
        )
        for name, a, b in shares
    ]
    print(table(("", "answers", "share", "95 % interval"), lines))
    if len(known) < len(done):
        print(f"{len(done) - len(known)} answers could not be judged, and count nowhere")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--config", default="fim")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copy", action="store_true")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="train: for grpo.py --answers")
    for name, kind, value in (
        *(("rows", int, 64), ("samples", int, 8), ("shots", int, 0), ("batch", int, 64), ("seed", int, 1)),
        *(("max-tokens", int, 3000), ("max-new-tokens", int, 512), ("temperature", float, 0.7)),
    ):
        parser.add_argument(f"--{name}", type=kind, default=value)
    args = parser.parse_args()
    if args.model is None and not args.copy:
        parser.error("name a model, or --copy")
    return args


if __name__ == "__main__":
    main()
