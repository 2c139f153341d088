"""The prompts that are stored and compared word for word."""

from dataclasses import replace
from pathlib import Path

from kerneltune.agent.attempt import Lesson
from kerneltune.agent.authors.llm.prompts import RunPrompts, Trouble, format_bench
from kerneltune.agent.export import instructions
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.schema.verdict import CaseTime, Comparison, Status, Timing, Verdict, losses_in_words
from tests.agent.authors.llm.run_parts import (
    REJECTED,
    TASK,
    THOUGHTS,
    attempt,
    checked,
    story,
    with_products,
    workbench,
)
from tests.agent.export.made_runs import run as made_run

GOLDEN = Path(__file__).with_name("golden")
_TARGETS = {
    "system_h200": ("sm_90", "NVIDIA H200", "triton"),
    "system_b200_ptx": ("sm_100", "NVIDIA B200", "ptx"),
    "system_a100": ("sm_80", "NVIDIA A100-SXM4-80GB", "triton"),
    "system_without_gpu_sm_89": ("sm_89", None, "triton"),
    "system_unknown_gpu": ("sm_120", "NVIDIA GeForce RTX 5090", "triton"),
    "system_b200": ("sm_100", "NVIDIA B200", "triton"),
    "system_h200_ptx": ("sm_90", "NVIDIA H200", "ptx"),
    "system_h200_cuda": ("sm_90", "NVIDIA H200", "cuda"),
    "system_h200_gluon": ("sm_90", "NVIDIA H200", "gluon"),
    "system_a100_ptx": ("sm_80", "NVIDIA A100-SXM4-80GB", "ptx"),
    "system_without_gpu_sm_89_ptx": ("sm_89", None, "ptx"),
    "system_without_gpu_sm_89_cuda": ("sm_89", None, "cuda"),
    "system_without_gpu_sm_89_gluon": ("sm_89", None, "gluon"),
    "system_unknown_gpu_ptx": ("sm_120", "NVIDIA GeForce RTX 5090", "ptx"),
}
ARCHES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
TROUBLES: tuple[Trouble, ...] = ("talk", "empty", "cut_off", "refused")


def renderings() -> dict[str, str]:
    """Every stored prompt by the name of its file."""
    found = {name: RunPrompts(workbench(), *target).system for name, target in _TARGETS.items()}
    found["products"] = "\n\n".join(_of_products(arch, language) for arch in ARCHES for language in FOLDERS)
    for language in FOLDERS:
        spoken = RunPrompts(workbench(), "sm_90", "NVIDIA H200", language)
        found[f"docs_{language}"] = "\n\n".join(
            f"[{t}]\n{spoken.topic(t).partition('```')[0].rstrip()}" for t in spoken.topics
        )
    attempts = story()
    words = RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200", outcomes=lambda: THOUGHTS)
    found["opening"] = RunPrompts(workbench(), "sm_90", "NVIDIA H200").opening()
    found["opening_of_a_short_conversation"] = RunPrompts(workbench(), "sm_90", "NVIDIA H200").opening(rounds=2)
    learned = (
        Lesson("a/3", TASK.name, TASK.sha256, "", "half as many warps", "it waits for barriers", True, 1.31, 1.2),
        Lesson("b/7", "softmax", "1" * 64, "", "two rows a program", "two rows a program", False, 0.96),
    )
    found["opening_with_lessons"] = RunPrompts(workbench(), "sm_90", "NVIDIA H200", lessons=learned).opening()
    found["opening_with_seeds"] = words.opening((attempts[0], attempts[2]))
    found["history"] = words.history()
    found["history_of_nothing"] = RunPrompts(workbench(), "sm_90", None).history()
    failures = workbench(attempt(1, REJECTED), attempt(2, REJECTED, 1))
    found["history_of_failures"] = RunPrompts(failures, "sm_90", "NVIDIA H200").history()
    counted = workbench(attempt(1, checked()), attempt(2, checked(), 1))
    found["history_without_gpu"] = RunPrompts(counted, "sm_90", None).history()
    found["crossover"] = words.crossover(attempts[0], attempts[2], rounds=2)
    found["drafts"] = words.drafts(attempts[:2])
    found["nudges"] = "\n\n".join(f"{trouble}: {words.nudge(trouble)}" for trouble in TROUBLES)
    its = made_run(gpu="NVIDIA H200").run
    error = "line 14: name 'tl' is not defined"
    for language in ("triton", "ptx"):
        found[f"export_solve_{language}"] = _messages(instructions.solve(its, language))
        found[f"export_convert_to_{language}"] = _messages(instructions.convert(its, "import torch", language))
    found["export_talk"] = instructions.talk(its)
    found["export_fix"] = _messages(instructions.fix(its, "import torch", "compile_failed", error))
    after = "\n\ndef halves(x):\n    ...\n\nclass ModelNew: ..."
    found["export_fim"] = _messages(instructions.fim(its, "copy", ("def copy(x, y):", after), left_out=True))
    found["weighted_cases"] = _of_weights()
    return {f"{name}.txt": text + "\n" for name, text in found.items()}


def _of_products(arch: str, language: str) -> str:
    """What a prompt says of hardware and language where the task has contractions, and not otherwise."""
    plain, products = (RunPrompts(bench, arch, None, language).system for bench in (workbench(), with_products()))
    more = [line for line in products.splitlines() if line not in plain]
    return "\n".join([f"{arch} {language}:", *more])


def _of_weights() -> str:
    """What a prompt says of the cases where several have a weight and not otherwise, and a bench of their times."""
    bench = workbench()
    cases = (replace(bench.task.main, weight=3.0), replace(bench.task.cases[1], weight=1.0), *bench.task.cases[2:])
    weighted = replace(bench, task=replace(bench.task, cases=cases))
    plain, words = (RunPrompts(its, "sm_90", "NVIDIA H200").system for its in (bench, weighted))
    more = [line for line in words.splitlines() if line not in plain.splitlines()]
    times = (Timing(9.0, 8.9, 9.1, 40, 400), Timing(5.0, 4.9, 5.1, 40, 400))
    told = tuple(
        CaseTime(case.name, case.weight, us, (Comparison("compile", 8.1, 0.9, 0.89, 0.91),))
        for case, us in zip(cases, times, strict=False)
    )
    verdict = Verdict(
        Status.CORRECT, f"right; {losses_in_words(told)}", timing=times[0], case_times=told, tier="judged"
    )
    return "\n".join([*more, "", format_bench(attempt(1, verdict), weighted, None, None)])


def _messages(messages: list[dict[str, str]]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
