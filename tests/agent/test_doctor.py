"""The doctor on this machine, and on small pieces of worse ones."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltune.agent.commands.doctor import _OTHER_SCRATCH, Finding, _confine, _guarded, _others, _own, findings
from kerneltune.agent.settings import Settings
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.sandbox.confine import available
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced

ROOT = Path(__file__).resolve().parents[2]


def named(found: tuple[Finding, ...], name: str) -> Finding:
    return next(f for f in found if f.name == name)


def test_every_lack_comes_with_what_mends_it(tmp_path: Path) -> None:
    found = findings(Settings(tmp_path))
    assert len({f.name for f in found}) == len(found) >= 12
    assert [f for f in found if f.ok is False and not f.remedy] == []
    assert [f for f in found if not f.value] == []


def test_a_look_takes_under_a_second_and_loads_neither_torch_nor_triton() -> None:
    code = "import sys; from kerneltune.agent.commands.doctor import *; findings(Settings())"
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code + "; print(*sys.modules)"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = os.times()  # of the processor, with the interpreter's start: a busy machine makes anything wait
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1
    assert {"torch", "triton", "numpy"} & set(done.stdout.split()) == set()


def test_the_sandbox_is_told_for_every_role_as_it_is_in_force(tmp_path: Path) -> None:
    found = findings(Settings(tmp_path))
    for role in ("tracer", "compiler", "interpreter", "runner"):
        assert named(found, f"sandbox of the {role}").ok == available(Profile(role)).confined
    assert bool(named(found, "bubblewrap").ok) == available().bubblewrap


def test_a_bubblewrap_that_fails_is_told_with_its_own_words(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    code = "from kerneltune.agent.commands.doctor import *\n"
    code += "print(*[f for f in findings(Settings()) if f.name == 'bubblewrap'])"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=env, check=True)
    assert "ok=False" in done.stdout
    assert "setting up uid map: Permission denied" in done.stdout
    assert "remedy=''" not in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    finding = named(findings(Settings(tmp_path / "runs")), "disk for runs")
    assert (finding.ok, str(tmp_path) in finding.remedy) == (False, True)


def test_no_remedy_takes_a_folder_from_its_owner(tmp_path: Path) -> None:
    assert _own(tmp_path / "my data" / "runs").startswith(f"sudo install -d -o \"$USER\" '{tmp_path}/my data/runs' ")
    assert "--runs-dir" in _own(tmp_path)  # it is there, and may be everybody's
    assert not any("sudo" in words for words in (_own(tmp_path), _own(Path("/")), _OTHER_SCRATCH))
    assert "TMPDIR" in _OTHER_SCRATCH


def test_a_file_where_the_folder_for_runs_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    finding = named(findings(Settings(tmp_path / "taken" / "runs")), "disk for runs")
    assert (finding.ok, "sudo" in finding.remedy) == (False, False)


def test_a_folder_that_does_not_exist_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    assert named(findings(Settings(tmp_path / "a" / "b")), "disk for runs").ok is not None


def test_a_target_that_ptxas_does_not_know_is_told() -> None:
    assert named(findings(Settings(arch="sm_90")), "ptxas").ok
    assert named(findings(Settings(arch="sm_42")), "ptxas").ok is False


def test_a_check_that_fails_is_a_finding() -> None:
    def odd_place(settings: Settings, gpu: GpuInfo | None) -> Iterator[Finding]:
        yield Finding("before", True, "seen")
        raise OSError("no /proc here")

    (finding,) = _guarded(odd_place, Settings(), None)
    assert (finding.name, finding.ok, "no /proc here" in finding.value) == ("odd place", None, True)


def test_strangers_on_the_gpu_are_named_with_their_memory() -> None:
    assert _others(()).ok
    assert _others(None).ok is None
    stranger = _others(((4242, 512 << 20), (4243, None)))
    assert stranger.ok is False
    assert "4242 (512 MiB)" in stranger.value
    assert stranger.remedy == "ps -fp 4242,4243"


def test_what_would_confine_a_worker_depends_on_what_is_missing() -> None:
    assert "CONFIG_SECCOMP_FILTER" in _confine(Enforced(Profile.TRACER, landlock_abi=7))
    assert "bubblewrap" in _confine(Enforced(Profile.TRACER, seccomp=True))


@pytest.mark.gpu
def test_the_gpu_is_looked_at_without_a_context(tmp_path: Path) -> None:
    info = gpu_info()
    assert info is not None
    found = findings(Settings(cache_dir=tmp_path))
    assert info.name in named(found, "GPU").value
    assert named(found, "cuda-bindings").ok
    assert named(found, "calibration").ok is None
    assert named(found, "ptxas").ok


@pytest.mark.gpu
def test_a_hidden_gpu_is_not_a_driver_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = named(findings(Settings()), "GPU")
    assert (found.ok, "CUDA_VISIBLE_DEVICES" in found.remedy) == (None, True)
