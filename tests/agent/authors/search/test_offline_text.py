"""How Inductor's text becomes text that a person would have written: kernels, lines, names. No torch here."""

import ast
import textwrap
import time

import pytest

from kerneltune.agent.authors.search.clean import (
    WIDTH,
    CaseArguments,
    Hoist,
    LoweringFacts,
    Rewrite,
    Role,
    library_calls,
    readable_name,
    tidy,
    wrapped,
)


def tidied(body: str, **names: str) -> str:
    """A kernel's body after `tidy`."""
    text = "def kernel(in_ptr0, in_ptr1, out_ptr0, n):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    tidy(function, names)
    return ast.unparse(function).partition("\n")[2]


def test_steps_that_are_read_once_move_to_where_they_are_read() -> None:
    assert tidied(
        """
        tmp0 = tl.load(in_ptr0 + x0, None)
        tmp1 = tl.full([1], 0.5, tl.float32)
        tmp2 = tmp0 * tmp1
        tmp3 = tl.exp(tmp2)
        tl.store(out_ptr0 + x0, tmp3, None)
        """,
        in_ptr0="scores_ptr",
    ).split("\n    ") == [
        "    scores = tl.load(scores_ptr + x0)",
        "tl.store(out_ptr0 + x0, tl.exp(scores * 0.5))",
    ]


def test_a_sum_that_goes_on_in_a_loop_is_not_moved_out_of_its_place() -> None:
    text = tidied(
        """
        _tmp1 = tl.zeros([8], tl.float32)
        for r in tl.range(0, n, 8):
            tmp0 = tl.load(in_ptr0 + r)
            tmp5 = _tmp1 * 2
            _tmp1 = _tmp1 + tmp0
            tl.store(out_ptr0 + r, tmp5)
        """
    )
    assert "tmp5 = _tmp1 * 2\n        _tmp1 = _tmp1 + tmp0" in text


def test_two_constants_beside_one_operator_stay_tensors() -> None:
    text = tidied(
        """
        tmp1 = tl.full([1], 1.0, tl.float32)
        tmp2 = tl.full([1], 2.0, tl.float32)
        tmp3 = tmp1 / tmp2
        tl.store(out_ptr0 + x0, tmp3.to(tl.bfloat16))
        """
    )
    assert "1.0 / 2.0" not in text


def test_two_loads_of_one_pointer_have_two_names() -> None:
    text = tidied(
        """
        tmp0 = tl.load(in_ptr0 + x0)
        tmp1 = tl.load(in_ptr0 + x1)
        tl.store(out_ptr0 + x0, tmp0 + tmp1 * tmp0)
        """,
        in_ptr0="x_ptr",
    )
    assert "x = tl.load(x_ptr + x0)" in text
    assert "x_2 = tl.load(x_ptr + x1)" in text
    assert "x + x_2 * x" in text


def test_a_size_of_one_is_cast_by_a_function() -> None:
    """Triton takes an argument of 1 for a constant, which has no `to`."""
    node = Rewrite({"ks0"}).visit(ast.parse("a = (ks0 * 2).to(tl.float32) + tmp0.to(tl.float32)"))
    assert ast.unparse(node) == "a = tl.cast(ks0 * 2, tl.float32) + tmp0.to(tl.float32)"


def test_powers_of_plain_numbers_are_computed_by_the_host() -> None:
    power = "libdevice.pow(tl.full([], 0.9, tl.float64), tl.cast(ks0, tl.float64))"
    text = f"a = tmp0 / (tl.full([], 1.0, tl.float64) + -1 * {power}).to(tl.float32)"
    hoist = Hoist({"ks0"})
    assert ast.unparse(hoist.visit(ast.parse(text))) == "a = tmp0 / factor0"
    assert {name: eval(value, {"ks0": 10}) for name, value in hoist.hoisted.items()} == {"factor0": 1 - 0.9**10}


def test_powers_of_elements_stay_in_the_kernel() -> None:
    text = "a = libdevice.pow(tmp0, tl.cast(ks0, tl.float32)).to(tl.float32)"
    hoist = Hoist({"ks0"})
    assert ast.unparse(hoist.visit(ast.parse(text))) == text
    assert hoist.hoisted == {}


def test_a_kernel_is_named_after_its_operators_in_the_order_of_the_forward() -> None:
    taken: set[str] = set()
    role = Role(["native_layer_norm", "mul", "relu"])
    assert readable_name("triton_red_fused_mul_native_layer_norm_relu_0", taken, role) == "layer_norm_mul_relu_kernel"
    again = readable_name("triton_poi_fused_mul_native_layer_norm_relu_1", taken, role)
    assert again == "layer_norm_mul_relu_elements_kernel"
    alone = Role(["mul"], stem="softmax", ending="_any_1")
    assert readable_name("triton_poi_fused_mul_0", taken, alone) == "softmax_any_1_kernel"


def test_long_lines_are_broken_between_arguments_and_mean_the_same() -> None:
    call = (
        f"    run_kernel[triton.cdiv(n, 4),]({', '.join(f'argument_{i}' for i in range(20))}, key='a, b', num_warps=4)"
    )
    text = wrapped("def f():\n" + call)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "[(triton.cdiv(n, 4),)](" in text
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse("def f():\n" + call))


@pytest.mark.parametrize("called", ["(made_anew if fits else made_of_zeros)", "größter_gemeinsamer_teiler"])
def test_a_long_call_of_what_is_no_plain_name_is_broken_behind_its_bracket(called: str) -> None:
    call = f"    y = {called}({', '.join(f'argument_{i}' for i in range(20))})"
    text = wrapped("def f():\n" + call)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse("def f():\n" + call))


def test_what_a_library_does_is_said_without_the_views() -> None:
    code = """
def call(args):
    # Topologically Sorted Source Nodes: [], Original ATen: [aten.permute, aten.mm]
    extern_kernels.mm(arg0, reinterpret_tensor(arg1, (4, 4), (1, 4), 0), out=buf0)
    buf1 = torch.ops.aten.sort.default(buf0)
"""
    assert library_calls(code) == "mm, sort"


GUARDS = {  # on a size of 48
    "s0 >= 2 and s0 % 16 == 0": True,
    "max(1, s0 // 3) == 16": True,
    "s0**2 < 2048": False,
    "1.0 / (float(s0) ** 0.5) >= 0.0": True,  # of attention's scale
    "(-s0) ** 0.5 >= 0.0": False,  # a complex number
    "-s0 + 50 > 0 or not s0": True,
    "": False,
    "s1 == 48": False,
    "s0 ==": False,
    "s0 / 0 > 1": False,
    "().__class__.__base__.__subclasses__()": False,
    "__import__('os').abort() or True": False,
    "(lambda: True)()": False,
    "max(*[9] * 10**9)": False,
    "9**9**9 > 0": False,
    "s0**4**4**4**4**4 > 0": False,
    "int(int(s0**4)**4)**0.5 > 0": False,
    "'a' * 10**9 > ''": False,
    "(" * 9000 + "s0" + ")" * 9000: False,
    "s0 > 0 and " * 10**6 + "True": False,
}


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard[:40])
def test_a_condition_on_sizes_is_arithmetic_or_does_not_hold(guard: str) -> None:
    """A process that ran a stranger's task wrote it, and the process that reads it holds the keys."""
    facts = LoweringFacts({}, [], [([16], "float32", None)], {"s0": (0, 0)}, [guard], "", {}, {})
    started = time.process_time()
    assert facts.covers(CaseArguments({}, [((48,), "float32")], {})) is GUARDS[guard]
    assert time.process_time() - started < 1.0
