"""Arguments and results as trees of JSON: what stands in them, and what becomes of them."""

import math
from typing import Any

from kerneltune.tools.schema.task import TensorSpec, reached, rebuilt, tensors_of

LEAF: dict[str, Any] = {"$tensor": {"shape": [4, 2], "dtype": "int64"}}
TREE: list[Any] = [LEAF, {"$tuple": [1, [LEAF]]}, {"$dict": {"mask": LEAF, "scale": {"$float": "inf"}}}, {"a": None}]


def test_each_tensor_is_found_in_order_with_the_way_to_it() -> None:
    spec = TensorSpec((4, 2), "int64")
    assert list(tensors_of(TREE)) == [((0,), spec), ((1, 1, 0), spec), ((2, "mask"), spec)]
    assert list(tensors_of({"$tensor": spec})) == [((), spec)]
    assert [reached("x", way) for way, _ in tensors_of(TREE[1:])] == ["x[0][1][0]", "x[1]['mask']"]


def test_a_tree_becomes_what_python_has_with_the_paths_of_a_launch_plan() -> None:
    made = rebuilt(TREE, {"$tensor": lambda leaf, path: f"{leaf['$tensor']['dtype']} at {path}"})
    assert made == [
        "int64 at 0", (1, ["int64 at 1.1.0"]), {"mask": "int64 at 2.mask", "scale": math.inf}, {"a": None},
    ]  # fmt: skip
