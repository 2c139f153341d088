import ast
import enum
import math

import numpy as np
import pytest

from kerneltune.tools.schema.codec import literal

INF = math.inf


class _Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (INF, 'float("inf")'),
        ((1.0, -INF), '(1.0, float("-inf"))'),
        (({"low": [INF]},), '({"low": [float("inf")]},)'),
        ([_Colour.RED, np.float64(0.5), True, None, "it's"], '[1, 0.5, True, None, "it\'s"]'),
        ((), "()"),
    ],
)
def test_a_plain_value_is_written_as_python_that_means_it(value: object, text: str) -> None:
    assert ast.dump(ast.parse(literal(value))) == ast.dump(ast.parse(text))
