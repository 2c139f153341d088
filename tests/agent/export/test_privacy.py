import json
import pickle
import time
from pathlib import Path

import pytest

from kerneltune.agent.export.base import Row
from kerneltune.agent.export.privacy import PrivateNames, Scrubber, names_here, names_in
from kerneltune.tools.schema.codec import Json

ROOT = Path(__file__).resolve().parents[3]
HOME, OWN = "/home", "/ro" + "ot"  # spelled so that no path of a machine stands in this file
NAMES = PrivateNames(frozenset(("node17", "node17.cluster.lan")), frozenset(("alice",)))
HEX, B64 = "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
RANDOM = "AbCdEf0123456789aBcDeF9876543210ghij"
SECRETS = {  # what must be gone, in a text that has it
    "anthropic": ("sk-ant-api03-" + RANDOM + "_-" + RANDOM + "-AA", "key {}"),
    "openai project": ("sk-proj-" + RANDOM, "OPENAI_API_KEY={}"),
    "openai service": ("sk-svcacct-" + RANDOM + "_" + RANDOM, "'{}'"),
    "openai old": ("sk-" + RANDOM, "use {}, please"),
    "openrouter": ("sk-or-v1-" + HEX + HEX, "{}"),
    "google": ("AIza" + "SyA1234567890abcdefghijklmnopqrstuv", "?key={}&x=1"),
    "google oauth": ("ya29." + RANDOM, "{}"),
    "hugging face": ("hf_" + RANDOM, "login(token='{}')"),
    "github classic": ("ghp_" + RANDOM, "https://{}@github.com/a/b"),
    "github server": ("ghs_" + RANDOM, "{}"),
    "github fine": ("github_pat_11ABCDEFG0_" + RANDOM, "{}\n"),
    "gitlab": ("glpat-AbCd_f0123456789-xyz", "{}"),
    "slack": ("xoxb-123456789012-" + RANDOM, "{}"),
    "aws id": ("AKIAIOSFODNN7EXAMPLE", "[{}]"),
    "aws session id": ("ASIAIOSFODNN7EXAMPLE", "[{}]"),
    "aws secret": (B64, "aws_secret_access_key = {}"),
    "stripe": ("sk_live_" + RANDOM, "{}"),
    "npm": ("npm_" + RANDOM, "{}"),
    "pypi": ("pypi-AgEIcHlwaS5vcmc" + RANDOM, "{}"),
    "groq": ("gsk_" + RANDOM, "{}"),
    "nvidia": ("nvapi-" + RANDOM, "{}"),
    "sendgrid": ("SG." + RANDOM[:22] + "." + RANDOM, "{}"),
    "bearer": ("abc123def456ghi789", "Authorization: Bearer {}"),
    "lower bearer": (HEX, "-H 'authorization: bearer {}'"),
    "json web token": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123", "cookie {};"),
    "private key": ("MIIEvQIBADANBgkqh", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"),
    "cut private key": ("b3BlbnNzaC1rZXktdjE", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n"),
    "password in a url": ("hunter2pw", "postgres://bob:{}@db:5432/x"),
    "password": ("hunter2", "password={}"),
    "quoted password": ("corr3ct-horse", '{{"db_password": "{}"}}'),
    "named key": (HEX, "WANDB_API_KEY={}"),
    "own variable": (HEX, "export MY_SERVICE_KEY={}"),
    "header": (HEX, "X-Api-Key: {}"),
    "token": (HEX, 'token = "{}"'),
    "uuid secret": ("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "client_secret: {}"),
    "option": (HEX, "--api-key {} --verbose"),
    "query": (HEX, "https://x.y/z?access_token={}&b=1"),
    "azure": (RANDOM + RANDOM + "==", "AccountName=a;AccountKey={};End"),
    "wandb": ("wandb_v1_" + HEX + HEX, "WANDB={}"),
    "fireworks": ("fw_3Z" + RANDOM, "{}"),
    "slack webhook": ("T00000000/B00000000/" + RANDOM, "https://hooks.slack.com/services/{}"),
    "azure link": (RANDOM + "%3D", "https://a.blob.core.windows.net/c/x?sv=2024-01-01&sig={}"),
    "cluster's scratch": ("dave", "File '/scratch/users/{}/kt/softmax.py', line 3"),
    "cluster's data": ("erin", "/data/{}/run.db is locked"),
    "shared file system": ("grace", "/gpfs/home2/{}/.cache/triton/x"),
    "a test's folder": ("zoe", "/tmp/pytest-of-{}/pytest-0/x.py"),
    "user in a name": ("alice", "/opt/{}_envs/kt"),
    "internal host": ("vllm.secretcorp.internal", "POST http://{}:8000/v1/chat failed"),
    "cluster host": ("node3.gpu.corp", "connection to {} refused"),
    "home": ("bob", HOME + "/{}/kt/softmax.py:3"),
    "home in a url": ("bob", "file://" + HOME + "/{}/kt"),
    "other home": ("bob", "/mnt/nfs" + HOME + "/{}/kt"),
    "own home": (OWN, "File '{}/.cache/triton/x.py', line 3"),
    "mac home": ("bob.smith", "/Users/{}/x"),
    "windows home": ("Bob", "C:\\Users\\{}\\x"),
    "escaped windows home": ("Bob", "C:\\\\Users\\\\{}\\\\x"),
    "escaped home": ("bob", "\\/home\\/{}\\/x"),
    "mail": ("a.b+c@sub.example.co.uk", "from <{}>, yesterday"),
    "mail in code": ("bob@example.com", "# author: {}"),
    "mail in a string": ("a@b.org", 'q = x@self.wq; __author__ = "{}"'),
    "mail of a country": ("a@b.fr", "# {}: q = x@self.wq"),
    "address": ("10.1.2.3", "ssh {} -p 22"),
    "public address": ("93.184.216.34", "http://{}:8000/v1"),
    "link address": ("fe80::1ff:fe23:4567:890a", "ping {}"),
    "long address": ("2001:db8:0:1:8a2e:370:7334:1", "[{}]:80"),
    "host": ("node17", "on {}: out of memory"),
    "whole host": ("node17.cluster.lan", "at {}."),
    "user": ("alice", "{}@node17:~$ ls"),
    "shouted user": ("ALICE", "USER={}"),
}


@pytest.fixture(scope="module")
def scrubber() -> Scrubber:
    return Scrubber(NAMES)


def kernels() -> list[Path]:
    folders = ("corpus/honest", "tests/corpus/public/kernels", "tools/tasks", "agent/authors/search/experts")
    return [p for f in folders for p in sorted((ROOT / f).rglob("*.py"))] + sorted((ROOT / "tests").rglob("*.jsonl"))


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_gone_from_texts_and_from_json_in_texts(name: str, scrubber: Scrubber) -> None:
    secret, around = SECRETS[name]
    text = around.format(secret)
    wraps = (text, f"x = 1\n{text}\ny = 2\n", json.dumps(text), json.dumps(json.dumps({"a": text})), f"\\n{text}\\n")
    for whole in wraps:
        mended = scrubber.text(whole)
        assert secret not in mended
        assert json.dumps(secret)[1:-1] not in mended
        assert "<" in mended
        assert scrubber.text(mended) == mended


@pytest.mark.parametrize("name", SECRETS)
def test_json_stays_json_when_its_text_is_mended(name: str, scrubber: Scrubber) -> None:
    secret, around = SECRETS[name]
    whole = json.dumps({"before": 1, "text": f'line\n"{around.format(secret)}"\tend', "after": [2]})
    mended = json.loads(scrubber.text(whole))
    assert (mended["before"], mended["after"]) == (1, [2])
    assert secret not in mended["text"]


def test_planted_secrets_are_gone_from_every_field_and_key(scrubber: Scrubber) -> None:
    planted = {name: around.format(secret) for name, (secret, around) in SECRETS.items()}
    row: dict[str, Json] = {
        "source": "\n".join(planted.values()),
        "messages": [
            {"role": "user", "content": text, "tool_calls": [{"arguments": {"a": text}}]} for text in planted.values()
        ],
        "raw": {text: {"items": [text, [text, {text: text}]]} for text in planted.values()},
        "encoded": json.dumps(planted),
        "numbers": [1, 2.5, None, True],
    }
    assert len(SECRETS) >= 25
    mended = scrubber.row(row)
    for where, value in mended.items():
        said = json.dumps(value, ensure_ascii=False)
        found = [name for name, (secret, _) in SECRETS.items() if secret in said]
        assert found == [], where
    assert list(mended) == list(row)
    assert len(mended["messages"]) == len(planted)
    assert len(mended["raw"]) == len(planted), "keys that become alike are numbered"
    assert mended["numbers"] == [1, 2.5, None, True]


def test_a_secret_that_only_its_key_gives_away_is_gone(scrubber: Scrubber) -> None:
    value = {
        "api_key": HEX,
        "headers": {"X-Auth-Token": HEX},
        "password": "pw12",
        "deep": [{"client_secret": RANDOM}],
    }
    assert scrubber.value(value) == {
        "api_key": "<api-key>",
        "headers": {"X-Auth-Token": "<api-key>"},
        "password": "<api-key>",
        "deep": [{"client_secret": "<api-key>"}],
    }
    kept = {
        "plan_sha256": HEX,
        "cubin_sha256": HEX,
        "n_tokens": "1234567890123456",
        "tokens": 12,
        "key": "cols",
        "id": HEX,
    }
    assert scrubber.value(kept) == kept


def test_the_rest_of_a_path_and_of_a_line_stays(scrubber: Scrubber) -> None:
    assert scrubber.text(f'File "{HOME}/bob/kt/x.py", line 3') == 'File "<home>/kt/x.py", line 3'
    assert scrubber.text(f"{OWN}/.cache/x") == "<home>/.cache/x"
    assert scrubber.text("C:\\Users\\Bob\\x.py") == "<home>\\x.py"
    assert scrubber.text("postgres://bob:pw1@db/x") == "postgres://<user>:<api-key>@db/x"
    assert scrubber.text("alice@node17: mail a@b.com from 10.0.0.9") == "<user>@<host>: mail <email> from <ip>"
    assert scrubber.text("Authorization: Bearer abc123def456ghi") == "Authorization: Bearer <api-key>"


def test_honest_kernels_tasks_and_stories_stay_as_they_are(scrubber: Scrubber) -> None:
    paths = kernels()
    assert len(paths) > 100
    assert [p.name for p in paths if scrubber.text(p.read_text()) != p.read_text()] == []
    assert [p.name for p in paths if Scrubber().text(json.dumps(p.read_text())) != json.dumps(p.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "y = a @ b.to(x)",
        "y=a@w.T",
        "y=a@self.weight.t()",
        "y=q@k.mT",
        "y=q@k.mm(v)",
        "y = x@w.at[0]",
        "q=x@self.wq; k=x@self.wk",
        "h=x@block.wq",
        "return x@self.id + y@self.attention.co",
        "@triton.jit",
        "@triton.autotune(configs=configs, key=['n_cols', 'dtype'])",
        "n = sk-1",
        "acc = sk-row_offset_in_block_of_tokens",
        "mask_sk = sk - sk_offset",
        "x[::2], x[1:2:3], x[2000::2]",
        "n_tokens=tokens_per_block",
        "token_idx = tl.load(token_ids + row)",
        "tokenizer=SmolLM2Tokenizer135Minstruct",
        "secret = key ^ seed",
        "auth = None; password = None",
        "torch 2.11.0+cu128, triton==3.6.0, nvidia-cublas==12.4.5.8, driver 580.65.06",
        "127.0.0.1 and 0.0.0.0 are everybody's",
        "12:34:56",
        "torch.ops.aten::mm",
        "mean = total / root",
        "ratio = n /root_of_n",
        "anthropic:claude-opus-4-1-20250805",
        "hf_config = load(hf_hub)",
        "20261121-140500-softmax-f45a/12",
        "cache_key = 'a8f5f167f44f4964e6c998dee827110c'",
        "ghp = github_patch",
        "basic understanding of the bearer protocol",
        "see https://triton-lang.org/main/getting-started?x=1#top",
        "AKIA is a prefix",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str, scrubber: Scrubber) -> None:
    assert scrubber.text(text) == text


def test_known_clean_lines_do_not_hide_a_secret_that_follows(scrubber: Scrubber) -> None:
    text = "import torch\nx = 1\n"
    assert scrubber.text(text) == text
    assert scrubber.text(text + f"k = 'sk-proj-{RANDOM}'") == text + "k = '<api-key>'"
    assert scrubber.text("MIIEvQIBADANBgkqh") == "MIIEvQIBADANBgkqh"
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqh\n-----END PRIVATE KEY-----"
    assert scrubber.text(pem) == "<api-key>"


ODD = ["", "\0", "\ud800", "\ud800@\udfff.com", "a" * 500_000, "a1" * 200_000, "\\" * 100_000, ":" * 100_000]
REPEATED = (
    "@ sk- /home/ token= a.b@ 1. eyJ. password= ://:@ -----BEGIN fe80:: api_key=a1b2c3d4e5f6g7h8( x-auth:".split()
)


@pytest.mark.parametrize("odd", [*ODD, "bearer " * 50_000, *(word * 30_000 for word in REPEATED)], ids=lambda t: t[:9])
def test_odd_texts_are_survived_in_time(odd: str, scrubber: Scrubber) -> None:
    begin = time.monotonic()
    scrubber.text(odd)
    assert time.monotonic() - begin < 10


def test_tokens_go_with_what_is_taken_out_of_the_texts_that_they_spell(scrubber: Scrubber) -> None:
    row: Row = {"text": "a kernel", "token_ids": [5, 6], "logprobs": [-0.5, 0.0], "turn": 1}
    assert scrubber.row(row) == row
    taken = scrubber.row(row | {"text": "see /home/alice/k.py"})
    assert taken == row | {"text": "see <home>/k.py", "token_ids": None, "logprobs": None}
    asked = [{"role": "user", "content": "in /home/alice"}]  # the tokens were drawn after other words
    assert scrubber.row(row | {"prompt": asked})["token_ids"] is None
    assert scrubber.row({"event": row, "position": 3}) == {"event": row, "position": 3}
    inner = scrubber.row({"event": row | {"calls": [{"arguments": {"source": "# /home/alice"}}]}})["event"]
    assert (inner["token_ids"], inner["logprobs"], inner["text"]) == (None, None, "a kernel")


def test_deep_json_is_survived(scrubber: Scrubber) -> None:
    deep: Json = f"sk-proj-{RANDOM}"
    for _ in range(900):
        deep = [deep, {"a": "b"}]
    said = repr(scrubber.value(deep))
    assert RANDOM not in said
    for _ in range(100_000):
        deep = [deep]
    assert RANDOM not in repr(scrubber.value(deep))


def test_names_are_found_in_what_runs_recorded_and_ordinary_words_are_left_alone() -> None:
    machine = {
        "hostname": "node17.cluster.lan",
        "task_path": f"{HOME}/alice/t.py",
        "gpu": "H200",
        "user": "root",
        "x": [{"node": "gpu"}],
    }
    found = names_in(machine)
    assert found == PrivateNames(frozenset(("node17", "node17.cluster.lan")), frozenset(("alice",)))
    scrubber = Scrubber(found | PrivateNames(users=frozenset(("bob",))))
    assert (
        scrubber.text("alice and bob on node17, not malice on node170")
        == "<user> and <user> on <host>, not malice on node170"
    )


def test_the_names_of_this_machine_are_names_or_nothing() -> None:
    for name in (*names_here().hosts, *names_here().users):
        assert len(name) >= 3
        assert name != "root"


def test_ids_of_runs_that_become_alike_are_numbered_and_what_follows_them_is_scrubbed() -> None:
    scrubber = Scrubber(PrivateNames(users=frozenset(("alice", "carol"))), ("alice-1", "carol-1", "r3"))
    found = scrubber.value(["alice-1", "carol-1/7", "r3/2", f"carol-1/{HOME}/alice"])
    assert found == ["<user>-1", "<user>-1-2/7", "r3/2", "<user>-1-2/<home>"]


def test_names_may_hold_characters_that_mean_something_to_patterns() -> None:
    assert Scrubber(PrivateNames(users=frozenset(("a.b(c", "x+y")))).text("a.b(c axb(c x+y") == "<user> axb(c <user>"


def test_a_scrubber_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Scrubber(NAMES))).text("alice") == "<user>"


def test_known_kernels_cost_microseconds(scrubber: Scrubber) -> None:
    text = "\n".join(f"    v{i} = tl.load(x + {i}, mask=m, other=0.0)" for i in range(45))
    assert len(text) > 2000
    scrubber.text(text)
    times = []
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(100):
            scrubber.text(text)
        times.append((time.thread_time() - begin) / 100)
    assert min(times) < 20e-6, "5 us on an idle machine"


@pytest.mark.parametrize(
    "text",
    [
        "passwd" * 12_000,
        "secret" * 12_000,
        "home" + "\\" * 120_000,
        "eyJ-" * 30_000 + "a" * 12,
        "A_" * 60_000 + " _key",
    ],
    ids=lambda text: str(text[:6]),
)
def test_a_text_made_to_cost_time_costs_little(text: str) -> None:
    """The time grew with the square of the length."""
    started = time.monotonic()
    assert Scrubber().text(text) == text
    assert time.monotonic() - started < 10.0


def cost(value: Json) -> float:
    times = []
    for _ in range(3):
        begin = time.thread_time()
        Scrubber().value(value)
        times.append(time.thread_time() - begin)
    return min(times)


def test_keys_that_become_alike_cost_time_in_proportion_to_their_number() -> None:
    few, many = ({f"a{i}@b.org": i for i in range(n)} for n in (1_500, 12_000))
    assert list(Scrubber().value(few))[:3] == ["<email>", "<email>-2", "<email>-3"]
    assert cost(many) < 24 * cost(few), "8 times as many took 60 times as long"


def test_names_of_variables_cost_no_more_than_other_names() -> None:
    known, own = cost("secret_" * 2600), max(cost("_KEY_" * 3600), cost("_KEY" * 30 + " " * 18_000))
    assert own < 12 * known, "once 60 to 150 times as much"


@pytest.mark.parametrize("escapes", [1, 3, 7, 15, 31])
def test_a_home_is_found_however_often_it_was_escaped(escapes: int) -> None:
    slash = "\\" * escapes + "/"
    assert "bob" not in Scrubber().text(f"{slash}home{slash}bob{slash}x")


def test_folders_that_this_process_works_in_are_named_by_what_they_are(tmp_path: Path) -> None:
    runs = tmp_path / "somewhere" / "runs"
    names = names_here(runs)
    said = Scrubber(names).text(f"{runs.resolve()}/r1/best.py and {Path.cwd()}/task.py and {runs.resolve()}-old/x")
    assert said.startswith("<runs>/r1/best.py and <cwd>/task.py and ")
    assert "<runs>-old" not in said


@pytest.mark.parametrize("field", ["base_url", "baseUrl", "endpoint"])
def test_the_host_of_a_server_of_one_s_own_is_not_told(field: str) -> None:
    kept = Scrubber().value({field: "https://models.company.example:8443/v1", "n": 1})
    assert kept == {field: "https://<host>:8443/v1", "n": 1}
    assert Scrubber().value({field: "http://127.0.0.1:8000/v1"}) == {field: "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    "code",
    [
        "y = total[0]/data/2",
        "threading.local()",
        "self.cache.local.x",
        "from a.b.internal import c",
        "rate /scratch/ n",
    ],
)
def test_code_that_looks_like_a_folder_or_a_host_stays(code: str) -> None:
    assert Scrubber(NAMES).text(code) == code
