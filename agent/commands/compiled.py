"""What a stored attempt compiles to: its plan is compiled again, confined, for the GPU of its run."""

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kerneltune.agent.commands.session import Workshop, session, workshop
from kerneltune.agent.commands.stored_task import stored_task
from kerneltune.agent.events import Event, Note
from kerneltune.agent.record.store import Store, StoredAttempt
from kerneltune.agent.settings import Settings
from kerneltune.agent.view.show import CompiledAttempt
from kerneltune.tools.schema.codec import DecodeError, decode
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.update import Artefact, KernelCompiler, UpdateLimits, needs_too_much


def compiled_attempts(store: Store, attempt_ids: Sequence[str], settings: Settings) -> list[CompiledAttempt]:
    """Each attempt's kernels, compiled and disassembled: those of the variant that was timed. Raises StoreError for an
    attempt that has no plan, or whose plan does not compile here."""
    found = [store.find_attempt(attempt_id) for attempt_id in attempt_ids]
    plans = [_stored_plan(stored) for stored in found]  # what cannot work is said before the workers start
    with workshop(settings, _starting) as shop:
        return [_compiled(stored, plan, shop) for stored, plan in zip(found, plans, strict=True)]


def _starting(event: Event) -> None:
    if isinstance(event, Note):
        with contextlib.suppress(BrokenPipeError):
            print(f"… {event.topic}: {event.text}", file=sys.stderr)


def _compiled(stored: StoredAttempt, plan: Plan, shop: Workshop) -> CompiledAttempt:
    variant = stored.finished.verdict.variant if stored.finished else ""
    is_stored = variant in ("", plan.variant)
    if not is_stored:
        plan = _traced_again(stored, variant, shop) or plan
    kernels = list({kernel.sha256: kernel for kernel in plan.kernels}.values())
    compiling = KernelCompiler(shop.machine.compiler, stored.run.arch, compile_s=UpdateLimits().compile_s)
    artefacts = _artefacts(stored.proposed.attempt_id, compiling, kernels, stored.run.arch)
    reply = compiling.sass(artefacts)
    if reply.problem:
        raise StoreError(f"attempt {stored.proposed.attempt_id} cannot be disassembled here: {reply.problem}")
    judged = {report.cubin_sha256 for report in stored.updated.kernels} if stored.updated else set()
    return CompiledAttempt(
        attempt_id=stored.proposed.attempt_id,
        variant=plan.variant,
        timed_variant=variant or plan.variant,
        arch=stored.run.arch,
        versions_then=stored.run.versions,
        versions_now=shop.place.versions,
        assembler=reply.assembler,
        disassembler=reply.disassembler,
        same_cubins=judged == {a.compiled.report.cubin_sha256 for a in artefacts} if is_stored else None,
        ptx=tuple(k.text if k.language == "ptx" else its.ptx for k, its in zip(kernels, reply.kernels, strict=True)),
        reports=tuple(a.compiled.report for a in artefacts),
        sass=reply.kernels,
    )


def _stored_plan(stored: StoredAttempt) -> Plan:
    """The plan of the default variant. Raises StoreError."""
    attempt_id, updated = stored.proposed.attempt_id, stored.updated
    if updated is None or updated.plan is None:
        why = f"its verdict is {updated.failure.status.value}" if updated and updated.failure else "it was never traced"
        raise StoreError(f"attempt {attempt_id} has no kernels that could be compiled: {why}")
    try:
        plan = decode(Plan, updated.plan)
    except DecodeError as error:
        raise StoreError(f"the stored plan of attempt {attempt_id} cannot be read: {error}") from error
    if not plan.kernels:
        raise StoreError(f"attempt {attempt_id} launches no kernel of its own")
    return plan


def _traced_again(stored: StoredAttempt, variant: str, shop: Workshop) -> Plan | None:
    """The plan of another variant than the one that is stored; None where it does not come of the source here."""
    with tempfile.TemporaryDirectory(prefix="kerneltune-task-") as scratch:
        found = stored_task(stored.run, None, Path(scratch))
        with session(replace(shop, arch=stored.run.arch), found.file) as opened:
            plan = opened.tools.updater.update(stored.proposed.source).judged_plan(variant)
    return plan if plan is not None and plan.variant == variant else None


def _artefacts(attempt_id: str, compiling: KernelCompiler, kernels: list[Kernel], arch: str) -> list[Artefact]:
    """What the kernels compile to, in their order. Raises StoreError."""
    built = compiling.compile([kernels])
    too_large = (needs_too_much(k, arch, built.too_large[k.sha256]) for k in kernels if k.sha256 in built.too_large)
    problem = built.failure.detail if built.failure else next(too_large, "")
    if problem:
        raise StoreError(f"attempt {attempt_id} does not compile here: {problem[:1000]}")
    return [built.artefacts[kernel.sha256] for kernel in kernels]
