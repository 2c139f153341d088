"""The words of one run: what the templates in prompts/ say of its task, its GPU and its attempts.

Nothing here may tell of a held-out case: cases are those with `held_out` False, verdicts are `author_view`s.
"""

from collections.abc import Callable, Sequence

from agent.authors.base import Attempt
from agent.converse import facts
from agent.converse.conversation import Trouble
from agent.converse.trail import history_values
from agent.record.events import Reflected
from agent.workbench import Workbench
from prompts import render
from tools.gpus import GPUS, Gpu, gpu_named

_LANGUAGES = {"triton": "Triton", "ptx": "PTX"}


class RunPrompts:
    """`arch`: what is compiled for ("sm_90"); `gpu`: what the driver calls the GPU that times, or None where nothing is
    timed; `outcomes`: what has been reflected in this run so far, oldest first. Raises ValueError for an unknown
    `language`; an unknown GPU or target gets words without numbers."""

    def __init__(
        self,
        bench: Workbench,
        arch: str,
        gpu: str | None,
        language: str = "triton",
        outcomes: Callable[[], Sequence[Reflected]] = lambda: (),
    ) -> None:
        if language not in _LANGUAGES:
            raise ValueError(f"no prompts for language {language!r}; known: {', '.join(_LANGUAGES)}")
        self._bench, self._outcomes, self._timed = bench, outcomes, gpu is not None
        hardware = _hardware(arch, gpu)
        self.system = render(
            "system.j2",
            arch=arch,
            gpu_name=_bare(gpu) if gpu else "a GPU that is not at hand",
            timed=self._timed,
            language=language,
            language_name=_LANGUAGES[language],
            hardware=facts.hardware(hardware) if hardware else None,
            task=facts.task(bench.task),
            light=facts.light(bench.task, hardware) if hardware and gpu else None,
        )

    def opening(self, seeds: tuple[Attempt, ...] = ()) -> str:
        """The first words of a conversation; `seeds` are attempts to start from."""
        return render("opening.j2", timed=self._timed, seeds=[self._whole(a) for a in seeds])

    def history(self) -> str:
        """What has been tried in this run so far, and what came of it. Bounded, but for the best source."""
        attempts = list(self._bench.attempts)
        return render("history.j2", timed=self._timed, **history_values(self._bench.task, attempts, self._outcomes()))

    def crossover(self, first: Attempt, second: Attempt) -> str:
        """The first words of a conversation that shall join two attempts."""
        return render("crossover.j2", timed=self._timed, first=self._whole(first), second=self._whole(second))

    def nudge(self, trouble: Trouble) -> str:
        """The answer to a reply that called no tool."""
        return render("nudge.j2", trouble=trouble)

    def _whole(self, attempt: Attempt) -> dict[str, object]:
        numbers = {a.attempt_id: a.number for a in list(self._bench.attempts)}
        return facts.attempt(self._bench.task, attempt, numbers)


def _bare(gpu: str) -> str:
    return gpu if gpu.startswith("NVIDIA ") else f"NVIDIA {gpu}"


def _hardware(arch: str, gpu: str | None) -> Gpu | None:
    """The GPU that times; where there is none, the first known one of the target. None if nothing is known."""
    if gpu is None:
        return next((g for g in GPUS if f"sm_{g.arch}" == arch), None)
    try:
        return gpu_named(gpu)
    except KeyError:
        return None
