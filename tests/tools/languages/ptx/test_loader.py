"""Candidates with PTX in the real tracer and compiler, and what wrong ones are told."""

from collections.abc import Callable

import pytest

from kerneltune.tools.languages.ptx import PtxKernel, PtxLaunchError
from kerneltune.tools.languages.ptx.language import PtxRecorder
from kerneltune.tools.languages.ptx.loader import block_of, cluster_of, sizes
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.plan import DescriptorArg, Kernel, Launch, ScalarArg, TensorArg
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.trace.recorder import LaunchLog, Tape
from kerneltune.tools.update import Update, UpdateLimits, Updater
from tests.tools.languages.ptx.conftest import BODY, ENTRY, HEAD, LOAD, RELU, STORE, candidate, with_lines

Updates = Callable[[str], Update]
SHAPE = {"$tensor": {"shape": [1000], "dtype": "float32", "stride": None}}


@pytest.fixture
def update(machine: Machine) -> Updates:
    """Trace and compile for a task with one input of 1000 floats."""
    task = TaskSpec("relu", "0" * 64, "float32", "", (CaseSpec("main", (SHAPE,), (), SHAPE),))
    limits = UpdateLimits(trace_s=20.0, compile_s=60.0)
    return Updater(task, "sm_90", machine.tracer, machine.compiler, limits).update


def only(update: Update) -> tuple[Kernel, Launch]:
    assert update.failure is None, update.failure
    assert update.main_plan is not None
    (launch,) = update.main_plan.launches
    return update.main_plan.kernels[launch.kernel], launch


def failed(update: Update) -> Verdict:
    assert update.failure is not None
    return update.failure


def test_a_launch_is_written_down_and_its_text_assembled(update: Updates) -> None:
    done = update(candidate())
    kernel, launch = only(done)
    assert (kernel.name, kernel.language, kernel.signature) == ("relu", "ptx", ("*fp32", "*fp32", "i32"))
    assert kernel.options == {"block": [128, 1, 1], "shared_bytes": 0}
    assert kernel.text.strip() == RELU.strip()
    assert launch.grid == (8, 1, 1)
    assert [type(a) for a in launch.args] == [TensorArg, TensorArg, ScalarArg]
    (report,) = done.kernels
    assert (report.name, report.num_warps, report.shared_bytes) == ("relu", 4, 0)
    assert report.registers > 4


def test_a_launch_may_say_all_of_it(update: Updates) -> None:
    text = HEAD + ENTRY.replace(".reqntid 128\n", ".maxntid 256\n") + BODY
    call = "y, x, x.numel(), block=(32, 4), shared_bytes=1024, cluster=(2, 1, 1), cooperative=True"
    kernel, launch = only(update(candidate(text, call=call)))
    assert kernel.options == {
        "block": [32, 4, 1], "shared_bytes": 1024, "cluster": [2, 1, 1], "launch_cooperative_grid": True
    }  # fmt: skip
    assert launch.cooperative


def test_a_descriptor_is_written_down_with_how_its_map_is_encoded(update: Updates) -> None:
    """As a launch of Gluon is: 1000 floats of a box of 128, taken as they are from where the map says."""
    more = ".param .align 64 .b8 m[128], .param .u32 m_n, .param .u64 m_step, .param .u64 x,"
    source = candidate(RELU.replace(".param .u64 x,", more), call="y, described, x, x.numel()")
    imports = "import torch\nfrom triton.tools.tensor_descriptor import TensorDescriptor\n"
    made = "        described = TensorDescriptor.from_tensor(x, [128])\n"
    source = source.replace("import torch\n", imports).replace("        relu[", f"{made}        relu[")
    kernel, launch = only(update(source))
    assert kernel.signature == ("*fp32", "tensordesc<fp32[128]>", "*fp32", "i32")
    choice = {"swizzle": 0, "elem_size": 4, "elem_type": 7, "block_size": [128], "fp4_padded": False}
    assert kernel.options["tensordesc_meta"] == [choice]
    assert [type(a) for a in launch.args] == [TensorArg, DescriptorArg, TensorArg, ScalarArg]
    refused = failed(update(source.replace("[128])", "[512])")))
    assert (refused.status, "a side has 256 at most" in refused.detail) == (Status.REJECTED, True), refused


@pytest.mark.parametrize(
    ("grid", "blocks"),
    [("8", (8, 1, 1)), ("(8,)", (8, 1, 1)), ("[4, 2]", (4, 2, 1)), ("(2, 2, 2)", (2, 2, 2)),
     ("lambda config: (8, 1)", (8, 1, 1))],
)  # fmt: skip
def test_a_grid_has_many_forms(update: Updates, grid: str, blocks: tuple[int, int, int]) -> None:
    assert only(update(candidate(grid=grid)))[1].grid == blocks


def test_each_config_of_a_template_becomes_a_variant(update: Updates) -> None:
    text = RELU.replace(".reqntid 128\n", ".maxntid 256\n").replace("%r2, 128, %r3", "%r2, ${block * PER}, %r3")
    looped = text.replace(LOAD, "//: for i in range(PER)\n" + LOAD).replace(STORE, STORE + "//: endfor\n")
    configs = '[{"PER": 1, "block": 128}, {"PER": 2, "block": 64, "shared_bytes": 512}]'
    source = candidate(looped, grid='lambda c: 1000 // (c["PER"] * c["block"]) + 1')
    done = update(source.replace('""")', f'""", configs={configs})'))
    assert done.failure is None, done.failure
    plans = done.plans["main"]
    assert len(plans) == 2
    assert [p.kernels[0].text.count("ld.global") for p in plans] == [1, 2]
    assert [p.kernels[0].options["block"] for p in plans] == [[128, 1, 1], [64, 1, 1]]
    assert plans[1].kernels[0].options["shared_bytes"] == 512


def test_kernels_of_one_name_are_tuned_apart() -> None:
    log = LaunchLog(Tape("cpu"), choices={"k (2)": 1})
    recorder = PtxRecorder(log)
    few, many = ({"A": 1}, {"A": 2}), ({"B": 1}, {"B": 2}, {"B": 3})
    chosen = [recorder.choose("k", (), configs, lambda config: None) for configs in (few, many, few)]
    assert chosen == [0, 1, 0]
    assert log.offered == {"k": ["A: 1", "A: 2"], "k (2)": ["B: 1", "B: 2", "B: 3"]}


OTHER = ENTRY.replace("relu", "other") + BODY
WRONG = {
    "another_gpu": (candidate(RELU.replace("sm_90", "sm_100a")), "rejected",
                    "PTX line 3, candidate line 7: the text is for sm_100a, this run's GPU is sm_90; write .target"),
    "newer_version": (candidate(RELU.replace("8.0", "9.9")), "compile_failed",
                      "PTX line 2, candidate line 6: ptxas: Unsupported .version 9.9"),
    "comma": (candidate(with_lines("max.f32 %f1, %f1 %f2;")), "compile_failed",
              "PTX line 23, candidate line 27: expected ',' or ';' before '%f2': max.f32 %f1, %f1 %f2;"),
    "semicolon": (candidate(with_lines("max.f32 %f1, %f1, %f2")), "compile_failed",
                  "PTX line 23, candidate line 27: expected ',' or ';' behind '%f2'"),
    "brace": (candidate(RELU.rstrip().rstrip("}")), "compile_failed", "PTX line 7, candidate line 11: this '{'"),
    "operand": (candidate(with_lines("max.f32 %f1, %f1, %q2;")), "compile_failed",
                "PTX line 23, candidate line 27: ptxas:"),
    "no_entry": (candidate(RELU.replace(".entry", ".func")), "rejected", "has no entry"),
    "other_entry": (candidate().replace('""")', '""", entry="rely")'), "rejected", "no entry 'rely'; it has relu"),
    "doubled_entry": (candidate(RELU + ENTRY + BODY), "rejected", "more than once (PTX lines 5, 29)"),
    "several_entries": (candidate(RELU + OTHER), "rejected", "entry='relu'"),
    "fewer": (candidate(call="y, x"), "rejected", "takes 3 arguments (.u64 y, .u64 x, .u32 n), not 2"),
    "more": (candidate(call="y, x, 1, 2"), "rejected", "takes 3 arguments"),
    "type": (candidate(call="y, x, 1.5"), "rejected",
             "`.u32 n` of relu (PTX line 5, candidate line 9) is given 1.5 (float)"),
    "swapped": (candidate(call="y, 3, x"), "rejected", "an address takes .u64"),
    "misaligned": (candidate(with_lines("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+4];")), "rejected",
                   "PTX line 23, candidate line 27: ld.global.v4.f32 needs 16-byte alignment"),
    "megabyte": (candidate().replace('r"""', '"// x\\n" * 300_000 + r"""'), "compile_failed", "the limit is 1048576"),
    "endless": (candidate(with_lines("again: bra again;")), "rejected", "PTX line 23, candidate line 27: this loop"),
    "no_block": (candidate(RELU.replace(".reqntid 128", "")), "rejected", "block=256"),
    "other_block": (candidate(call="y, x, x.numel(), block=64"), "rejected", "the text says .reqntid 128"),
    "large_block": (candidate(RELU.replace("128\n", "2048\n", 1)), "rejected", "the most is 1024"),
    "bounded_block": (candidate(RELU.replace("reqntid", "maxntid"), call="y, x, 1, block=256"), "rejected",
                      ".maxntid 128"),
    "float_grid": (candidate(grid="x.numel() / 128"), "rejected", "grid is a whole number, not 7.8125"),
    "negative_grid": (candidate(grid="-1"), "rejected", "grid cannot be -1"),
    "four_grids": (candidate(grid="(1, 1, 1, 1)"), "rejected", "one to three sizes"),
    "cluster": (candidate(call="y, x, 1, cluster=3"), "rejected", "cannot be divided into clusters"),
    "shared": (candidate(call="y, x, 1, shared_bytes=300_000"), "compile_failed", "shared_bytes=300000"),
    "bytes": (candidate().replace('r"""', 'rb"""'), "rejected", "takes PTX as a str, not bytes"),
    "open_parameter": (candidate(with_lines("mov.u32 %r5, ${M};")).replace('""")', '""", configs=[{"N": 1}])'),
                       "compile_failed", "PTX line 23, candidate line 27: the template cannot be filled in: 'M' is"),
    "brkpt": (candidate(with_lines("brkpt;")), "rejected", "PTX line 23, candidate line 27: brkpt: it stops the GPU"),
    "host_tensor": (candidate(call="torch.empty(3, device='cpu'), x, 1"), "rejected", "cpu"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_bad_input_has_a_verdict_that_names_the_line_and_what_to_do(update: Updates, name: str) -> None:
    source, status, words = WRONG[name]
    verdict = failed(update(source))
    assert verdict.status.value == status, verdict.detail
    assert words in verdict.detail


def test_sizes_are_whole_and_positive() -> None:
    assert sizes("grid", (3, 2)) == (3, 2, 1)
    assert sizes("grid", 0, least=0) == (0, 1, 1)
    for wrong in (0, -1, (), (1, 2, 3, 4), 1.0, "8", None):
        with pytest.raises(PtxLaunchError):
            sizes("grid", wrong)


def test_what_the_text_demands_of_a_launch_is_taken_where_it_says_nothing() -> None:
    assert block_of(None, {"reqntid": (8, 4)}, "k") == (8, 4, 1)
    assert cluster_of(None, (8, 1, 1), {"reqnctapercluster": (4,)}) == (4, 1, 1)
    assert cluster_of(None, (7, 1, 1), {}) == (1, 1, 1)
    with pytest.raises(PtxLaunchError, match="reqnctapercluster"):
        cluster_of(2, (8, 1, 1), {"reqnctapercluster": (4,)})
    with pytest.raises(PtxLaunchError, match="the most is 16"):
        cluster_of(32, (32, 1, 1), {})


def test_a_kernel_is_made_without_looking_at_its_text() -> None:
    assert PtxKernel("no PTX at all").text == "no PTX at all"
