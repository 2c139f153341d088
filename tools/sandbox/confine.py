"""Confinement of our forked workers: what each kind may touch, put on by the child itself before hostile code runs.

    TRACER, INTERPRETER  LLM-written Python: reads Python and its libraries, writes `scratch` if given, starts threads;
                         no network, no processes, no signals, no other files
    COMPILER             LLM-written IR in Triton and ptxas: the same, and may run Triton's own tools
    RUNNER               LLM-written device code: keeps what CUDA needs; no network, no programs, no foreign files
    TASK                 the task's own code, in the judge and in TorchInductor: reads libraries and the task's folder,
                         writes `scratch`, runs programs, keeps what CUDA needs; no network, no foreign files or signals
    TRUSTED              our own code: dies with its parent, holds no foreign file descriptor

The first three live in bubblewrap's namespaces as well, where bwrap is present (`bubblewrap`). A kernel that
lacks one of the means is no error: `Enforced` says what took effect and goes into the receipts.
Not hidden without bubblewrap: that a path exists and its size (Landlock does not cover stat).
"""

import json
import os
import resource
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kerneltune.tools.sandbox import bubblewrap, linux
from kerneltune.tools.sandbox import rules as sandbox_rules
from kerneltune.tools.sandbox.bubblewrap import Jail, NamespaceHolder
from kerneltune.tools.sandbox.rules import Profile, Rule
from kerneltune.tools.sandbox.wire import Enforced, ResourceLimits
from kerneltune.tools.schema.codec import decode, encode

WITH_CUDA = (Profile.RUNNER, Profile.TASK)
JAILED = (Profile.TRACER, Profile.COMPILER, Profile.INTERPRETER)  # profiles that live in bubblewrap's namespaces
# Processes and threads: in bubblewrap's jail of one role together, else of one worker, where it has a user namespace of
# its own. Elsewhere the limit would count what the user runs besides; and the kernel exempts root from it.
_MOST_PROCESSES = 512
_COUNTED_BY_NAMESPACE = (5, 14)  # version of Linux
_NICENESS = 5  # of those that live in jails: a third of the share of the judge and its runner, where cores are few


def enter(
    profile: Profile,
    *,
    scratch: Path | None,
    limits: ResourceLimits,
    keep_fds: Collection[int],
    jail: Jail | None = None,
    rules: Sequence[Rule] = (),
) -> Enforced:
    """Confine this process for good. To be called once, right after a fork, while it has one thread.

    Every file descriptor but `keep_fds` is closed. Files may be written in `scratch` alone, and nowhere without it.
    `rules`: what may be opened besides. `jail` says in which namespaces this process should be by now; whether it is,
    it looks up itself.
    """
    linux.close_fds(keep_fds)
    linux.new_session()
    if profile is Profile.TRUSTED:
        linux.die_with_parent()
        return Enforced(profile)
    if profile is not Profile.TASK:  # whose file may be named from where the user stands
        os.chdir(scratch or "/")
    return _Entry(profile, scratch, jail or Jail(), rules).run(limits)


class _Entry:
    """The steps in an order that works: namespaces and capabilities first, since changing credentials clears the
    parent-death signal; the system-call filter last, since it refuses most of the other steps."""

    def __init__(self, profile: Profile, scratch: Path | None, jail: Jail, rules: Sequence[Rule]) -> None:
        self._profile, self._scratch, self._jail, self._rules = profile, scratch, jail, rules
        self._notes = [jail.problem] if jail.problem else []
        self._jailed = all(map(jail.holds, ("mnt", "pid", "net", "ipc", "uts", "user")))

    def run(self, limits: ResourceLimits) -> Enforced:
        alone = linux.thread_count() == 1
        if not alone:
            self._notes.append("threads that ran before stay unconfined by Landlock")
        network, user = self._unshare()
        if self._profile is not Profile.RUNNER:
            self._try(linux.first_to_go)
        capabilities = self._try(lambda: linux.drop_capabilities(self._kept_capabilities()))
        self._try(linux.forbid_new_privileges)
        abi = self._landlock() if alone else 0
        memory = self._limit(limits, own_count=self._jailed or (user and linux.version() >= _COUNTED_BY_NAMESPACE))
        if self._profile in JAILED:
            os.nice(_NICENESS)
        self._try(linux.die_with_parent)
        if self._profile is not Profile.TASK:  # its programs look at /proc/self, which would be root's
            self._try(linux.hide)
        filtered = self._filter(signals_scoped=abi >= 6)
        return Enforced(
            profile=self._profile,
            landlock_abi=abi,
            seccomp=filtered,
            network_namespace=network,
            user_namespace=user,
            capabilities_dropped=capabilities,
            signals_scoped=abi >= 6,
            memory_limited=memory,
            pid_namespace=self._jailed,
            mount_namespace=self._jailed,
            bubblewrap=self._jailed,
            bubblewrap_version=self._jail.version if self._jailed else "",
            notes=tuple(self._notes),
        )

    def _try(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except (OSError, ValueError) as error:
            self._notes.append(str(error))
            return False
        return True

    def _unshare(self) -> tuple[bool, bool]:
        """Empty network, IPC and host-name namespaces. Not beside CUDA: an IPC or user namespace breaks CUDA IPC."""
        if self._jailed:
            return True, True
        if self._profile in WITH_CUDA:
            return False, False
        user = 0 if os.geteuid() == 0 else linux.CLONE_NEWUSER
        flags = user | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
        done = self._try(lambda: linux.unshare(flags))
        return done, done and bool(user)

    def _kept_capabilities(self) -> list[int]:
        keep: list[int] = []
        if self._profile in WITH_CUDA:  # not SYS_ADMIN or PERFMON: either opens every /proc/<pid>/environ
            keep += [linux.CAP_IPC_LOCK, linux.CAP_SYS_NICE]
        if self._profile is Profile.TASK:  # root may judge another user's file; Landlock says which
            keep.append(linux.CAP_DAC_READ_SEARCH)
        elif sandbox_rules.root_in_a_foreign_folder():
            keep.append(linux.CAP_DAC_READ_SEARCH)  # imports must go on
            self._notes.append("kept CAP_DAC_READ_SEARCH: root runs from a private folder of another user")
        return keep

    def _landlock(self) -> int:
        abi = linux.landlock_abi()
        if abi == 0 or (abi == 1 and self._scratch):  # version 1 forbids renames across folders, which caches need
            self._notes.append(f"no usable Landlock (version {abi})")
            return 0
        scopes = linux.SCOPE_SIGNALS
        if self._profile is not Profile.RUNNER:
            scopes |= linux.SCOPE_ABSTRACT_SOCKETS
        rules = [*sandbox_rules.paths(self._profile, self._scratch), *self._rules]
        for path in [path for path, _ in rules if path.is_relative_to(sandbox_rules.ITSELF)]:
            linux.pin(path)
        return abi if self._try(lambda: linux.landlock(rules, abi=abi, scopes=scopes)) else 0

    def _limit(self, limits: ResourceLimits, *, own_count: bool) -> bool:
        values = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: limits.file_bytes,
            resource.RLIMIT_NOFILE: limits.open_files,
        }
        if limits.cpu_s is not None:
            values[resource.RLIMIT_CPU] = limits.cpu_s
        if own_count:
            values[resource.RLIMIT_NPROC] = _MOST_PROCESSES
        bounded = limits.memory_bytes is not None and self._profile not in WITH_CUDA  # which maps 100s of GB
        if bounded and limits.memory_bytes is not None:
            values[resource.RLIMIT_AS] = linux.virtual_bytes() + limits.memory_bytes
        return self._try(lambda: linux.set_limits(values)) and bounded

    def _filter(self, *, signals_scoped: bool) -> bool:
        calls = sandbox_rules.calls(self._profile)
        checks = sandbox_rules.checks(self._profile, pid=os.getpid(), signals_scoped=signals_scoped)
        program = linux.assemble(calls, checks, ignored=sandbox_rules.IGNORED.get(self._profile, ()))
        if program is None:
            self._notes.append("no system-call filter for this architecture")
            return False
        return self._try(lambda: linux.install(program))


def available(profile: Profile = Profile.TRACER) -> Enforced:
    """What this machine enforces on a worker of that profile. The caller is not restricted: a forked child tries and
    tells."""
    program = bubblewrap.find() if profile in JAILED else None
    with NamespaceHolder(program, profile) as keeper:
        jail = keeper.jail() if profile in JAILED else Jail()
        return _told_by_child(profile, jail, keeper.namespaces)


def _told_by_child(profile: Profile, jail: Jail, namespaces: list[int]) -> Enforced:
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on forking with threads
        pid = os.fork()
    if pid == 0:
        _probe(profile, jail, namespaces, write_end)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return decode(Enforced, json.loads(told)) if told else Enforced(profile, notes=("the probe died",))


def _probe(profile: Profile, jail: Jail, namespaces: list[int], fd: int) -> None:
    """Join, fork (a PID namespace begins with the next process), enter, tell."""
    try:
        if namespaces:
            try:
                bubblewrap.join(namespaces)
            except OSError as error:
                jail = Jail(problem=str(error))
        if pid := os.fork():
            os.waitpid(pid, 0)
            return
        limits = ResourceLimits(memory_bytes=1 << 30, file_bytes=1 << 20, cpu_s=None, open_files=64)
        enforced = enter(profile, scratch=None, limits=limits, keep_fds=[fd], jail=jail)
        os.write(fd, json.dumps(encode(enforced)).encode())
    finally:
        os._exit(0)
