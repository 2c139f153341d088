import pytest
import torch

from kerneltune.tools.languages.ptx import PtxLaunchError, parse
from kerneltune.tools.languages.ptx.loader import bind, entry_of, mismatch
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


def test_an_array_cannot_be_passed() -> None:
    with pytest.raises(PtxLaunchError, match="an array"):
        bind(parse(HEAD + ".entry k(.param .b8 p[16]) { ret; }").entries[0], [1])


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
