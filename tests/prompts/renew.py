"""`python -m tests.prompts.renew` writes the stored prompts anew. Read the difference before you commit it."""

from tests.prompts.renderings import GOLDEN, renderings


def main() -> None:
    """Write those that there are, remove those that there are no more."""
    wanted = renderings()
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.txt"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
