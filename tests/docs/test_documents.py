"""Every command in the documents does what the document says; links lead somewhere; nothing is left unmentioned."""

import re
import tomllib

import pytest

from tests.docs.documents import ROOT, SHELLS, commands, documents, read
from tests.docs.expected import Ids, difference
from tests.docs.stranger import Stranger
from tests.docs.typed import flags, optimize_problem, problem

DOCUMENTS = documents()
WITH_COMMANDS = sorted(n for n, d in DOCUMENTS.items() if any(b.language in SHELLS for b in d.blocks))
ON_A_GPU = sorted(n for n, d in DOCUMENTS.items() if any(b.needs == "gpu" for b in d.blocks))
PROGRAMS = re.compile(r"^(?:optimize|make|pytest|python -m (?:kerneltune|tests|benchmarks)\S*|\.ci/run)(?: |$)")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_a_reader_without_a_gpu_sees_what_the_document_says(stranger: Stranger, name: str) -> None:
    tell(stranger.follow(name)[1])


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_reader_with_a_gpu_sees_what_the_document_says(stranger_with_gpu: Stranger, name: str) -> None:
    tell(stranger_with_gpu.follow(name)[1])


def tell(wrong: list[str]) -> None:
    """Fail with all that was not as the document says, and nothing else."""
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_no_command_hides_in_a_block_that_is_not_run(name: str) -> None:
    others = [block for block in DOCUMENTS[name].blocks if block.language not in SHELLS]
    typed = re.compile(r"^(?:\$ |optimize |make |python -m )", re.MULTILINE)
    assert [f"line {block.line}" for block in others if typed.search(block.text)] == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_commands_in_sentences_and_tables_are_understood(name: str) -> None:
    spans = [span for span in re.findall(r"`([^`\n]+)`", DOCUMENTS[name].prose) if PROGRAMS.match(span)]
    typed = [span for span in spans if "…" not in span and span.removeprefix("optimize ") not in flags()]
    found = [problem(_concrete(span)) for span in typed]
    assert [wrong for wrong in found if wrong and not wrong.startswith("unknown command")] == []  # ours are known


def _concrete(span: str) -> str:
    """With a value for each placeholder, the first of `a|b`, and without the brackets of what may be left out."""
    number = r"(--(?:max-attempts|max-time|max-cost|patience|width|seed|limit)) [A-Z]+\b"
    first = re.sub(r"(?<=\w)\\?\|\w\S*", "", span)
    return re.sub(r"\[[^]]*\]", "", re.sub(number, r"\1 3", first))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_flags_in_sentences_exist(name: str) -> None:
    known = set().union(*flags().values(), {"--help", "--version"})
    spans = re.findall(r"`(--[a-z-]+)(?:[ =][^`]*)?`", DOCUMENTS[name].prose)
    assert [span for span in spans if span not in known] == []


@pytest.mark.parametrize("command", sorted(flags()))
def test_every_command_and_flag_is_mentioned_in_some_document(command: str) -> None:
    everything = "\n".join(document.text for document in DOCUMENTS.values())
    assert f"optimize {command}".strip() in everything
    names = {re.sub("^--(no-)?", "", flag) for flag in flags()[command]}
    assert [name for name in names if not re.search(rf"--(no-)?{name}\b(?!-)", everything)] == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_links_lead_to_files_and_headings(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", DOCUMENTS[name].prose)
    assert [wrong for pair in links if (wrong := _broken(name, "".join(pair)))] == []


def _broken(name: str, link: str) -> str:
    path, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link):
        return ""
    target = (ROOT / name).parent / path if path else ROOT / name
    if not target.exists():
        return f"{link}: no such file"
    if target.suffix not in (".md", ".ipynb", ".svg", ".png"):
        return f"{link}: not on the site, which has documents and pictures"
    return f"{link}: no such heading" if anchor and anchor not in _anchors(target.read_text()) else ""


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*sorted(DOCUMENTS), "CHANGELOG.md"])
def test_paths_in_sentences_exist(name: str) -> None:
    whole = (ROOT / name).read_text().splitlines()
    lines = [line for line in whole if "at commit" not in line]  # that line names scripts that are gone
    named = re.compile(r"`((?:agent|tools|prompts|tests|corpus|benchmarks|kerneltune)/[\w/.*-]+)`")
    assert [path for line in lines for path in named.findall(line) if not any(ROOT.glob(path.rstrip("/")))] == []


def test_every_document_is_reached_from_the_readme() -> None:
    seen: set[str] = set()
    waiting = {"README.md"}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        links = re.findall(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)", DOCUMENTS[name].text)
        found = {((ROOT / name).parent / link).resolve() for link in links if ":" not in link}
        waiting |= {str(p.relative_to(ROOT)) for p in found if p.is_relative_to(ROOT)} & set(DOCUMENTS) - seen
    assert sorted(set(DOCUMENTS) - seen) == []


def test_the_site_leads_to_every_document() -> None:
    site = (ROOT / "zensical.toml").read_text()
    assert [name for name in sorted(DOCUMENTS) if f'= "{name}"' not in site] == []


def test_the_project_has_one_address() -> None:
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    texts = (*(document.text for document in DOCUMENTS.values()), (ROOT / "pyproject.toml").read_text())
    found = {url for text in texts for url in re.findall(r"https://github\.com/[\w.-]+/kerneltune\b", text)}
    assert found == {address}
    owner = address.split("/")[-2]
    assert f"git clone {address} " in DOCUMENTS["README.md"].text
    assert f"marketplace add {owner}/kerneltune" in DOCUMENTS["docs/agents.md"].text


def test_a_document_that_lies_is_found_out() -> None:
    said = "run 20260101-120000-softmax-ab12 took 3 s\n…\n2 files, … proved, worst error 0.058"
    real = "run 20991231-235959-softmax-0f0f took 41.5 s\na\nb\n2 files, nothing proved, worst error 0.11"
    ids = Ids()
    assert difference(said, real, ids) == ""
    assert ids.in_command("optimize show 20260101-120000-softmax-ab12/2", "") == (
        "optimize show 20991231-235959-softmax-0f0f/2"
    )
    line = "best #4 in runs/20260101-120000-softmax-ab12/4: expected 11.4"
    assert difference(line, "best #1 in runs/20991231-235959-softmax-0f0f/11: expected -3.25", Ids()) == ""
    assert "expected the line" in difference(said, real.replace("2 files", "3 files"), Ids())
    assert "still" in difference(said, real + "\nand more", Ids())
    assert "no more" in difference(said, real.partition("\n")[0], Ids())


def test_marks_and_commands_of_a_document_are_read() -> None:
    text = "<!-- needs: key -->\n```console\n$ a \\\n   b\nout\nmore\n$ c\n```\nx\n```sh\nd\n```\n"
    first, second = read("x.md", text).blocks
    assert (first.needs, second.needs) == ("key", "")
    assert [(c.text, c.expected) for c in commands(first)] == [("a    b", "out\nmore"), ("c", None)]
    assert [c.text for c in commands(second)] == ["d"]
    with pytest.raises(ValueError, match="unknown reason 'luck'"):
        read("x.md", "<!-- needs: luck -->\n```sh\nd\n```\n")
    with pytest.raises(ValueError, match="unknown mark"):
        read("x.md", "<!-- wants: luck -->\n```sh\nd\n```\n")


@pytest.mark.parametrize(
    "line",
    ["optimize --tsak softmax", "optimize bench a.py --task t | optimize nothing", "make nonsense", "rm -rf /",
     "optimize runs --limit many", "python -m tests.docs.nothing", "optimize show 'RUN"],
)  # fmt: skip
def test_a_command_that_would_fail_is_found_without_running_it(line: str) -> None:
    assert problem(line) != ""


def test_a_command_that_is_right_is_let_pass() -> None:
    assert optimize_problem(["--task", "softmax", "--max-attempts", "3"]) == ""
    assert problem("ANSWER=42 optimize runs --json 2>/dev/null | head -1 && optimize tasks 2>&1") == ""
    assert problem("make demo TASK=softmax > out.txt  # a remark") == ""
