"""Models that write PTX, replayed from files: an attempt, an error that teaches, a better one."""

from pathlib import Path

import pytest

from kerneltune.agent.events import Judged, Proposed, Reflected, Said
from kerneltune.agent.record.store import Store
from tests.agent.shell import optimize

STORIES = Path(__file__).parent / "stories"
VERDICTS = {
    "softmax": ["compile_failed", "checked", "checked", "checked"],
    "rms_norm": ["compile_failed", "wrong", "checked", "checked"],
    "swiglu": ["rejected", "checked", "checked"],
}
TAUGHT = {
    "softmax": ("shfl.sync.bfly.b32 %t, %m, 16, 31;", "PTX line"),
    "rms_norm": ("Arguments mismatch for instruction 'cvt'", "cvt.f32.bf16 %v, %v;", "PTX line"),
    "swiglu": ("'exp' is no PTX instruction; 'ex2' is 2^x", "PTX line"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", VERDICTS)
def test_a_model_that_writes_ptx_learns_from_its_errors(task: str, tmp_path: Path) -> None:
    story = STORIES / f"ptx_{task}.jsonl"
    done = optimize("--task", task, "--model", f"scripted:{story}", "--max-attempts", "4", "--plain",
                    "--runs-dir", "runs", cwd=tmp_path, timeout_s=240)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    with Store.open(tmp_path / "runs") as store:
        (run,) = store.run_ids()
        events = list(store.load_events(run))
    judged = {int(e.attempt_id.rpartition("/")[2]): e.verdict.status.value for e in events if isinstance(e, Judged)}
    assert [judged[n] for n in sorted(judged)] == VERDICTS[task]
    assert all("PtxKernel(" in e.source and "@triton.jit" not in e.source for e in events if isinstance(e, Proposed))
    told = [" ".join(e.text.split()) for e in events if isinstance(e, Said) and e.role == "tool"]
    assert all(words in told[0] for words in TAUGHT[task])
    assert any(isinstance(e, Reflected) and e.hypothesis for e in events)
