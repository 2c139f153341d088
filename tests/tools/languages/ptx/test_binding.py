import pytest
import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Swizzled
from triton.tools.tensor_descriptor import TensorDescriptor

from kerneltune.tools.languages.ptx import PtxLaunchError, parse
from kerneltune.tools.languages.ptx.loader import bind, encodings, entry_of, mismatch
from tests.tools.languages.ptx.conftest import HEAD, RELU


def kernel(*params: str) -> str:
    return HEAD + f".visible .entry k({', '.join(f'.param {p} p{i}' for i, p in enumerate(params))}) {{ ret; }}"


def bound(kind: str, value: object) -> str:
    return bind(parse(kernel(kind)).entries[0], [value])[0]


@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [
        (".u32", 7, "i32"), (".u32", (1 << 32) - 1, "u32"), (".s32", -1, "i32"), (".u64", 1 << 63, "u64"),
        (".b8", True, "i8"), (".u16", 65535, "u16"), (".f32", 1, "fp32"), (".f64", 0.5, "fp64"), (".b32", 0.5, "fp32"),
        (".b32", 5, "i32"), (".u64", torch.zeros(1), "*fp32"), (".b64", torch.zeros(1, dtype=torch.bfloat16), "*bf16"),
        (".u64", torch.zeros(1, dtype=torch.bool), "*i1"), (".b64", 0.5, "fp64"),
    ],
)  # fmt: skip
def test_a_value_gets_the_type_that_its_parameter_takes(kind: str, value: object, name: str) -> None:
    assert bound(kind, value) == name
    assert mismatch(parse(kernel(kind)).entries[0], (name,)) is None


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (".u32", 1 << 32, "does not fit"), (".u8", -129, "does not fit"), (".u32", 0.5, r"0\.5 \(float\)"),
        (".u32", torch.zeros(1), "an address takes .u64"), (".f64", torch.zeros(1), "an address takes .u64"),
        (".u64", None, r"None \(NoneType\)"), (".f32", "1", r"'1' \(str\)"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_the_parameter_s_line(kind: str, value: object, words: str) -> None:
    with pytest.raises(PtxLaunchError, match=words) as raised:
        bound(kind, value)
    assert "PTX line 4" in str(raised.value)


def test_an_array_takes_descriptors_alone() -> None:
    with pytest.raises(PtxLaunchError, match=r"an array, given 1 .*only a TensorDescriptor"):
        bind(parse(HEAD + ".entry k(.param .b8 p[16]) { ret; }").entries[0], [1])


OF_TWO = ".param .align 64 .b8 x[128], .param .u32 h, .param .u32 w, .param .u64 pitch, .param .u64 step, .param .u32 n"


def test_a_descriptor_fills_a_map_its_sizes_and_its_strides() -> None:
    entry = parse(HEAD + f".entry k({OF_TWO}) {{ ret; }}").entries[0]
    kinds = bind(entry, [TensorDescriptor.from_tensor(torch.zeros(64, 64), [8, 32]), 7])
    assert kinds == ("tensordesc<fp32[8, 32]>", "i32")
    assert mismatch(entry, kinds) is None


@pytest.mark.parametrize(
    "wrong",
    [
        (".align 64 ", ""), (".b8 x[128]", ".u64 x"), (".b8 x[128]", ".b8 x[64]"), (".u32 w", ".u64 w"),
        (".u64 step", ".u32 step"), (".u64 step, .param ", ""),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_take_a_descriptor_is_told_what_could(wrong: tuple[str, str]) -> None:
    entry = parse(HEAD + f".entry k({OF_TWO.replace(*wrong)}) {{ ret; }}").entries[0]
    with pytest.raises(PtxLaunchError, match=r"fills 1 \+ 2 \* N parameters: `.param .align 64 .b8 x\[128\]`"):
        bind(entry, [TensorDescriptor.from_tensor(torch.zeros(64, 64), [8, 32]), 7])


def swizzled(rows: int, columns: int, **more: bool) -> Swizzled:
    """Of halves, as wide a swizzle as Gluon chooses."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16, **more)
    return Swizzled.from_tensor(torch.zeros(256, 256, dtype=torch.float16), [rows, columns], layout)


def test_the_map_of_a_descriptor_has_the_compiler_s_numbers() -> None:
    """Which the driver and the emulator read: those of a Gluon kernel with the same descriptor."""
    like_gluon = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [32, 32], "fp4_padded": False}
    plain = TensorDescriptor.from_tensor(torch.zeros(64, 64, dtype=torch.bfloat16), [8, 64])
    assert encodings([7, swizzled(32, 32), plain]) == [
        like_gluon, like_gluon | {"swizzle": 0, "elem_type": 10, "block_size": [8, 64]}
    ]  # fmt: skip


def rounding() -> TensorDescriptor:
    """A field since Triton 3.7; on 3.6, where no keyword sets it, an attribute like another."""
    made = TensorDescriptor.from_tensor(torch.zeros(64, 64), [8, 4])
    made.round_f32_to_tf32 = True
    return made


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (swizzled(8, 128), r"more than the 128 of its swizzle; write block_shape\[-1\] = 64"),
        (swizzled(64, 64, transposed=True), "transposed"),
        (TensorDescriptor.from_tensor(torch.zeros(64, 64), [8, 2]), r"8 bytes.*make block_shape\[-1\] a multiple of 4"),
        (TensorDescriptor.from_tensor(torch.zeros(512, 64), [512, 4]), "a side has 256 at most"),
        (rounding(), "round in the PTX"),
    ],
)
def test_a_box_that_the_driver_would_refuse_is_refused_with_what_to_write(value: object, words: str) -> None:
    with pytest.raises(PtxLaunchError, match=words):
        encodings([value])


def test_the_number_of_arguments_is_told_with_the_parameters() -> None:
    with pytest.raises(PtxLaunchError, match=r"takes 3 arguments \(\.u64 y, \.u64 x, \.u32 n\), not 1"):
        bind(parse(RELU).entries[0], [1])


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (HEAD, None, "has no entry"),
        (RELU + RELU.removeprefix(HEAD), None, r"more than once \(PTX lines 4, 28\)"),
        (RELU + RELU.removeprefix(HEAD).replace("relu", "other"), None, "entry='relu'"),
        (RELU, "other", "no entry 'other'; it has relu"),
        (HEAD + ".visible .func relu() { ret; }", "relu", "has no entry"),
    ],
)
def test_an_entry_that_is_missing_or_doubled_is_named(text: str, name: str | None, words: str) -> None:
    with pytest.raises(PtxLaunchError, match=words):
        entry_of(parse(text), name)


@pytest.mark.parametrize(
    "signature",
    [("*fp32", "*fp32"), ("*fp32", "*fp32", "i64"), ("i32", "*fp32", "i32"), ("*fp32", "*fp32", "zz32"),
     ("*fp32", "*fp32", "fp8"), ("*fp32", "*fp32", "i"), ("*fp32", "*fp32", "32")],
)  # fmt: skip
def test_a_signature_that_the_entry_cannot_take_is_refused(signature: tuple[str, ...]) -> None:
    assert mismatch(parse(RELU).entries[0], signature)
