"""What a process that lives long remembers."""

from kerneltune.tools.schema.latest import Latest


def test_of_all_that_is_kept_the_latest_is_remembered_and_no_more() -> None:
    latest = Latest[str, int](2)
    assert [latest.keep(name, number) for number, name in enumerate("abca")] == [0, 1, 2, 3]
    assert dict(latest) == {"c": 2, "a": 3}
