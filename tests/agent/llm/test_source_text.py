"""Sources as plain text, with the other arguments in comment lines."""

import pytest

from agent.llm import source_text
from tests.agent.llm.talk import BENCH, UPDATE
from tools.codec import Json

SOURCE = 'import triton\n\n# parent: not a field here\nx = "é\\n"\n'


def parse(text: str) -> dict[str, Json]:
    return source_text.parse(UPDATE, text)


def values(**given: Json) -> dict[str, Json]:
    return {"parent": None, "rationale": "why", "source": SOURCE, "edits": None} | given


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"# parent: 3\n# rationale: why\n{SOURCE}", values(parent=3)),
        (f"# rationale: why\n{SOURCE}", values()),
        (f"#parent:none\n#  Rationale :  why\n\n{SOURCE}", values()),
        (f"\n# parent: #12\n# rationale: a\n#   b\n#   c\n{SOURCE}", values(parent=12, rationale="a b c")),
        (f"```python\n# parent: 3\n# rationale: why\n{SOURCE}```", values(parent=3, source=SOURCE.rstrip())),
        (f"# parent: 3\r\n# rationale: why\r\n{SOURCE}", values(parent=3)),
        (f"# A softmax\n# rationale: why\n{SOURCE}", values(source=f"# A softmax\n{SOURCE}")),
        (f"# parent: the third\n# rationale: why\n{SOURCE}", values(parent="the third")),
        (f"# rationale: why\n# rationale: twice\n{SOURCE}", values(source=f"# rationale: twice\n{SOURCE}")),
        ("# parent: 3\n# rationale: why\n", values(parent=3, source="")),
    ],
)  # fmt: skip
def test_comment_lines_carry_the_other_arguments(text: str, wanted: dict[str, Json]) -> None:
    assert parse(text) == wanted


def test_what_is_required_and_not_there_is_left_out_for_others_to_name() -> None:
    assert parse(SOURCE) == {"parent": None, "source": SOURCE, "edits": None}
    assert parse("") == {"parent": None, "source": "", "edits": None}


def test_what_is_written_is_read_back() -> None:
    assert parse(source_text.write(UPDATE, values(parent=7))) == values(parent=7)


def test_the_description_names_every_field_that_a_line_can_carry() -> None:
    said = source_text.description(UPDATE)
    assert "# parent: <number of the attempt that this one changes>" in said
    assert "# rationale: <why this will be faster>" in said
    assert "edits" not in said
    assert source_text.name(UPDATE) == "update_source"
    assert BENCH.source is None
