"""The launch plan: everything that a candidate does on the GPU, as data. Pure: knows neither torch nor triton.

A plan is for one case of a task (fixed shapes) and one variant of the candidate (one choice of autotune configs).
It is what crosses from the jail to the trusted side, what the runner replays, what the store keeps and what the
hash in a receipt is taken over. All tensors are (storage, dtype, shape, stride, offset), so views vanish.
`docs/launch-plan.md` is the prose of this file.

Which of its steps the outputs depend on, and the bytes that they move, are said here, too. Liveness is followed
backwards from the outputs, storage by storage: a step is live when it may write a storage whose content is still
wanted. What a later forward reads from memory that is kept between calls is wanted too.

Operators and compile options are closed lists: what is not on them is refused by whoever receives or replays a plan.
Triton's options reach the compiler and the assembler as they are: some name files, some are command lines.
"""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode

SCHEMA_VERSION = 1

MOST_NESTED = 50  # of a tree of arguments or outputs
MOST_STEPS = 10_000  # of a plan, and of one call as it is recorded
_SIZES = {16: "complex128", 8: "float64 int64 uint64 complex64", 4: "float32 int32 uint32",
          2: "float16 bfloat16 int16 uint16"}  # fmt: skip
_ITEM_BYTES = {name: size for size, names in _SIZES.items() for name in names.split()}


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a torch dtype name."""
    return _ITEM_BYTES.get(dtype, 1)


Origin = Literal["input", "state", "constant", "prepared", "scratch"]


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a storage. `dtype` is torch's name without `torch.`; stride and offset count elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it shows; an expanded dimension is read from cache."""
        sizes = (size for size, stride in zip(self.shape, self.stride, strict=True) if stride)
        return math.prod(sizes) * item_bytes(self.dtype)


@dataclass(frozen=True)
class Storage:
    """One allocation. `origin` says who fills it:

    input      an argument of forward; `name` is its path in the argument list ("0", "1", "2.mask")
    state      a parameter or buffer of the reference; `name` is its state_dict key
    constant   data made by host code; `data` holds the bytes (base64 of zlib)
    prepared   made by __init__ or by the first forward, kept between calls
    scratch    made by every forward; poisoned before each run when nothing else initialises it
    """

    id: int
    nbytes: int
    origin: Origin
    name: str | None = None
    data: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A device kernel as text: device code, whatever the candidate's language was. `signature` has one type per
    argument ("*fp32", "i32", "tensordesc<…>")."""

    name: str
    language: Literal["ttir", "ptx"]
    text: str
    signature: tuple[str, ...]
    options: dict[str, Json] = field(default_factory=dict)

    @functools.cached_property
    def sha256(self) -> str:
        """Names the kernel with its options: what a cubin is filed under."""
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TensorArg:
    """A pointer argument."""

    tensor: TensorRef
    kind: Literal["tensor"] = "tensor"


@dataclass(frozen=True)
class ScalarArg:
    """A number passed by value; `type` is Triton's name ("i32", "i64", "fp32", "u1", …)."""

    value: int | float | bool
    type: str
    kind: Literal["scalar"] = "scalar"


@dataclass(frozen=True)
class DescriptorArg:
    """A tensor descriptor built on the host (TMA). `tensor` gives base, shape and strides; `padding` zero or nan."""

    tensor: TensorRef
    block_shape: tuple[int, ...]
    padding: str = "zero"
    kind: Literal["descriptor"] = "descriptor"


LaunchArg = TensorArg | ScalarArg | DescriptorArg
_DESCRIBED = re.compile(r"tensordesc(?:_im2col)?<[^\[>]*\[([^\]]*)\]")


def described_rank(kind: str) -> int:
    """Dimensions that a type of a descriptor has, "tensordesc<fp16[64, 32]>"; 0 for other types."""
    found = _DESCRIBED.match(kind)
    return found[1].count(",") + 1 if found else 0


def is_descriptor(value: Any) -> bool:
    """Whether an argument that host code launches with is a TensorDescriptor, Triton's or Gluon's."""
    return hasattr(value, "block_shape") and hasattr(value, "base")


@dataclass(frozen=True)
class ArgEffect:
    """What a kernel may do to the memory behind one of its arguments."""

    reads: bool
    writes: bool


NOTHING, EVERYTHING = ArgEffect(reads=False, writes=False), ArgEffect(reads=True, writes=True)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `kernel` indexes Plan.kernels; `args` leave out constexprs, in the kernel's order."""

    kernel: int
    grid: tuple[int, int, int]
    args: tuple[LaunchArg, ...]
    cooperative: bool = False
    pdl: bool = False
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True)
class Aten:
    """One ATen operator ("aten::add.Tensor") of the allow-list.

    `args`/`kwargs` are JSON with tagged objects for what JSON lacks: {"$tensor": TensorRef}, {"$dtype": name},
    {"$float": "inf"}, {"$memory_format": name}. Devices are dropped: there is one. `outs` are the results in order
    (None where an op returns nothing there); a result in a storage that no earlier step made is a new storage.
    `library` says that the op computes (and so counts as library time, not as the candidate's kernel).
    """

    op: str
    args: tuple[Json, ...]
    kwargs: dict[str, Json]
    outs: tuple[TensorRef | None, ...]
    library: bool = False
    kind: Literal["aten"] = "aten"


Step = Launch | Aten
LaunchEffects = Callable[[Launch], Iterable[tuple[TensorRef, ArgEffect]]]  # of each tensor that it is given


@dataclass(frozen=True)
class Plan:
    """What one forward of a candidate does. `outputs` is the returned structure: {"$tensor": …}, lists, {"$dict": …},
    {"$tuple": […]}, scalars."""

    case: str
    variant: str
    arch: str
    storages: tuple[Storage, ...]
    kernels: tuple[Kernel, ...]
    prepare: tuple[Step, ...]
    run: tuple[Step, ...]
    outputs: Json
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"plan schema {self.schema_version}; this version reads {SCHEMA_VERSION}")

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches of one forward, in order."""
        return tuple(s for s in self.run if isinstance(s, Launch))

    @property
    def library_ops(self) -> tuple[str, ...]:
        """Names of the library operators that one forward calls, in order."""
        return tuple(s.op.removeprefix("aten::") for s in self.run if isinstance(s, Aten) and s.library)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that the steps of one forward touch, each tensor once per step: a lower bound on its memory traffic
        when nothing stays in cache between steps."""
        return sum(map(step_bytes, self.run))

    @functools.cached_property
    def _hash(self) -> str:  # asked for many times; of a Swin Transformer it takes 0.2 s
        bare = replace(self, kernels=tuple(map(_bare, self.kernels)))
        return hashlib.sha256(json.dumps(encode(bare), sort_keys=True).encode()).hexdigest()

    def storage(self, storage_id: int) -> Storage:
        """The storage with this id; raises KeyError."""
        for storage in self.storages:
            if storage.id == storage_id:
                return storage
        raise KeyError(storage_id)


# What decides where a location begins and ends: strings and comments hide brackets, and `@loc(`, `%x.loc(` are names.
_PIECE = re.compile(
    r"""(?P<hidden>"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*)
    | (?P<alias>^\#[\w$.-]+[ ]=[ ]loc\()
    | (?P<location>(?<![\w$.@%\#!^-])loc\()
    | (?P<bracket>[()])""",
    re.VERBOSE | re.MULTILINE,
)


# A line of PTX that says where the next instructions come from, and can say nothing else, wherever it stands.
_LOC = re.compile(
    r"^[ \t]*\.loc[ \t]+\d+[ \t]+\d+[ \t]+\d+(?:, function_name [\w$]+(?:\+\d+)?, inlined_at \d+ \d+ \d+)?"
    r"[ \t]*(?://[^*\"\n]*)?\n",
    re.MULTILINE,
)

MOST_REMEMBERED_TEXT = 1 << 18


def without_locations(text: str) -> str:
    """TTIR without its debug locations: the same kernel moved down a line must keep its hash.

    Only what MLIR reads as a location goes: not what looks like one in a string (inline assembly), a comment or a name.
    """
    return (_remembered if len(text) <= MOST_REMEMBERED_TEXT else _without_locations)(text)


def _without_locations(text: str) -> str:
    kept: list[str] = []
    done = depth = 0
    alias = False
    for piece in _PIECE.finditer(text):
        if depth == 0 and piece.lastgroup in ("alias", "location"):
            kept.append(text[done : piece.start()].rstrip(" "))
            done, depth, alias = done + len(kept[-1]), 1, piece.lastgroup == "alias"
        elif depth and piece.lastgroup != "hidden":
            depth += -1 if piece[0] == ")" else 1
            if depth == 0:
                done = piece.end() + (alias and text.startswith("\n", piece.end()))
    return "".join(kept) + text[done:]


# three quarters of hashing a plan, whose kernels are those of the last ones
_remembered = functools.lru_cache(maxsize=64)(_without_locations)


def plan_hash(plan: Plan) -> str:
    """sha256 over the plan without debug locations: names the work, whatever the source looked like."""
    return plan._hash


def _bare(kernel: Kernel) -> Kernel:
    if kernel.language == "ttir":
        return replace(kernel, text=without_locations(kernel.text))
    return replace(kernel, text=_LOC.sub("", kernel.text))


def tensor_refs(value: Json) -> Iterator[TensorRef]:
    """All tensors inside an `Aten` argument or an `outputs` tree, in order. Raises DecodeError for one that is none,
    and for a bottomless tree."""
    level: list[Iterator[Json]] = [iter((value,))]  # a generator in a generator for each level takes 50 times as long
    while level:
        for item in level[-1]:
            if isinstance(item, dict) and "$tensor" in item:
                yield decode(TensorRef, item["$tensor"])
            elif isinstance(item, dict | list | tuple):
                level.append(iter(item.values() if isinstance(item, dict) else item))
                break
        else:
            level.pop()
        if len(level) > MOST_NESTED + 1:
            raise DecodeError(f"nested more than {MOST_NESTED} deep")


def step_refs(step: Step) -> Iterator[TensorRef]:
    """All tensors that a step names: of an operator its results first."""
    if isinstance(step, Launch):
        yield from (a.tensor for a in step.args if isinstance(a, TensorArg | DescriptorArg))
        return
    yield from filter(None, step.outs)
    yield from tensor_refs([list(step.args), step.kwargs])


def step_bytes(step: Step) -> int:
    """Bytes that a step touches, each tensor once; an allocation moves nothing."""
    if isinstance(step, Aten) and base_name(step.op) in EMPTY:
        return 0
    return distinct_bytes(step_refs(step))


def distinct_bytes(refs: Iterable[TensorRef]) -> int:
    """Bytes of the tensors; of several views of one storage the largest counts."""
    largest: dict[int, int] = {}
    for ref in refs:
        largest[ref.storage] = max(largest.get(ref.storage, 0), ref.nbytes)
    return sum(largest.values())


# Allocations: they move nothing. What they return is poisoned until somebody writes it.
EMPTY = frozenset("empty empty_like empty_strided new_empty new_empty_strided".split())

# Constant fills, with the place of the value among the positional arguments (or the value itself).
FILLS: Mapping[str, int | None] = {
    "zeros": None, "zeros_like": None, "new_zeros": None, "ones": None, "ones_like": None, "new_ones": None,
    "full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0,
}  # fmt: skip

# They only change which storage or how much of it a tensor sees; later references say so themselves.
NO_OPS = frozenset("resize_ set_ detach alias lift_fresh".split())

_OTHER_GLUE = """
fill_ zero_ copy_ clone _to_copy arange linspace eye tril_indices triu_indices constant_pad_nd uniform_ normal_ rand
randn randint rand_like randn_like random_ bernoulli_ normal exponential_ copy contiguous fill
"""
_ELEMENTWISE = """
abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh deg2rad digamma div
elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu gt hardshrink
hardsigmoid hardswish hardtanh heaviside hypot i0 isfinite isinf isnan isneginf isposinf ldexp le leaky_relu lerp
lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit lt masked_fill maximum minimum mish mul mvlgamma nan_to_num ne neg nextafter polygamma pow
_prelu_kernel prelu rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin
sinc sinh softplus softshrink sqrt square sub tan tanh threshold trunc true_divide where xlogy special_entr
special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta
"""
_OPERATOR_SIGNS = """
__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__
"""
_REDUCTIONS = """
all amax amin aminmax any argmax argmin argsort bincount cummax cummin cumprod cumsum count_nonzero kthvalue
log_softmax _log_softmax logcumsumexp logsumexp max mean median min mode nanmedian nansum norm prod softmax _softmax
std std_mean sort sum topk var var_mean linalg_vector_norm histc searchsorted bucketize trace _safe_softmax
"""
_INDEXING = """
cat diag_embed diagonal_copy embedding _embedding_bag _embedding_bag_forward_only expand_copy flip gather
index index_add index_copy index_fill index_put _unsafe_index _unsafe_index_put index_select masked_scatter
one_hot permute_copy put repeat repeat_interleave roll rot90 scatter scatter_add scatter_reduce select_copy
select_scatter slice_copy slice_scatter diagonal_scatter as_strided_scatter stack take tril triu unfold_copy
view_copy narrow_copy pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im squeeze_copy unsqueeze_copy
"""
_CONTRACTIONS = """
addbmm addmm addmv addr baddbmm bmm dot linear matmul mm mv vdot _scaled_mm _int_mm convolution _convolution
cudnn_convolution cudnn_convolution_relu conv_depthwise3d _conv_depthwise2d slow_conv_transpose2d slow_conv3d
_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_attention_math scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
_addmm_activation _grouped_mm _scaled_grouped_mm _weight_int4pack_mm _weight_int8pack_mm mkldnn_convolution
cudnn_convolution_transpose _fused_rms_norm _flash_attention_forward _efficient_attention_forward
linalg_inv_ex linalg_cholesky_ex linalg_solve_triangular triangular_solve linalg_cross cdist _cdist_forward
"""
_LAYERS = """
native_dropout
_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d
max_pool2d_with_indices max_pool3d_with_indices max_pool2d native_batch_norm _native_batch_norm_legit cudnn_batch_norm
_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update native_group_norm
native_layer_norm rms_norm batch_norm_elemt nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss
binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss multi_margin_loss
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d
upsample_trilinear3d _upsample_nearest_exact2d _upsample_bilinear2d_aa grid_sampler_2d grid_sampler_3d
reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
_thnn_fused_lstm_cell _thnn_fused_gru_cell complex polar view_as_real_copy _fft_c2c _fft_r2c _fft_c2r
_foreach_add _foreach_mul _foreach_copy_ _pdist_forward cosine_similarity bernoulli multinomial
"""

_TEXT = _OTHER_GLUE + _ELEMENTWISE + _OPERATOR_SIGNS + _REDUCTIONS + _INDEXING + _CONTRACTIONS + _LAYERS
GLUE = frozenset(_OTHER_GLUE.split()) | EMPTY | NO_OPS | frozenset(FILLS)
ALLOWED = frozenset(_TEXT.split()) | EMPTY | NO_OPS | frozenset(FILLS)


def base_name(op: str) -> str:
    """ "aten::add.Tensor" -> "add"."""
    return op.removeprefix("aten::").partition(".")[0]


def is_library(op: str) -> bool:
    """Whether the operator ("aten::mm", "aten::add.Tensor") computes, and so counts as library time."""
    return base_name(op) not in GLUE


def fill_of(op: str, args: Sequence[Any]) -> list[Any] | None:
    """For an allocating operator what fills the result: [] nothing, [value] a number; None for any other operator."""
    name = base_name(op)
    if name in EMPTY:
        return []
    if name == "scalar_tensor" or name not in FILLS:
        return None
    place = FILLS[name]
    return [args[place] if place is not None else int("ones" in name)]


def is_allowed(op: str) -> bool:
    """Whether the operator, or the operator of which it is the in-place form, is on the list."""
    name = base_name(op)
    return op.startswith("aten::") and (name in ALLOWED or (name.endswith("_") and name[:-1] in ALLOWED))


# In-place operators that do not look at what they overwrite.
_OVERWRITE = frozenset("copy_ fill_ zero_ uniform_ normal_ random_ bernoulli_ exponential_".split())


@dataclass(frozen=True)
class ForwardPass:
    """The steps of one call and what is around them: `outputs`, `inputs` and `made` (by these steps) are storages,
    `nbytes` their sizes. All other storages are kept between calls. `effects`: what a launch may do to its tensors."""

    steps: Sequence[Step]
    effects: LaunchEffects
    outputs: Collection[int]
    inputs: Collection[int]
    made: Collection[int]
    nbytes: Mapping[int, int]


def live_steps(forward: ForwardPass) -> list[bool]:
    """For each step whether it has to stay: its results reach an output, or it makes a storage that a live step
    mentions, or it is an operator that changes memory which was there before the call."""
    usage = [_usage(step, forward) for step in forward.steps]
    wanted = set(forward.outputs)
    for _ in range(_MOST_ROUNDS):
        alive, read = _backwards(usage, wanted)
        kept = read - set(forward.made) - set(forward.inputs)
        if kept <= wanted:
            return alive
        wanted |= kept
    mentioned = set[int]().union(*(step.mentions for step in usage))
    return _backwards(usage, wanted | mentioned - set(forward.made) - set(forward.inputs))[0]


_MOST_ROUNDS = 16  # then all that is kept is wanted: 6,000 launches in a chain would take 6,000 rounds


@dataclass(frozen=True)
class _Usage:
    reads: set[int]
    writes: set[int]
    replaces: set[int]
    makes: bool = False
    stays: bool = False
    names: frozenset[int] = frozenset()  # what it is given, though it may neither read nor write it

    @property
    def mentions(self) -> set[int]:
        return self.reads | self.writes | self.names


def _backwards(usage: Sequence[_Usage], wanted: Iterable[int]) -> tuple[list[bool], set[int]]:
    """Find the live steps, and all storages that those read, when `wanted` is wanted at the end."""
    needed, mentioned, read = set(wanted), set(wanted), set[int]()
    alive = [False] * len(usage)
    for i in reversed(range(len(usage))):
        step = usage[i]
        if step.stays or step.writes & needed:
            needed -= step.replaces
            needed |= step.reads
            read |= step.reads
        elif not (step.makes and step.writes & mentioned):  # memory that is overwritten before anybody looks
            continue
        alive[i] = True
        mentioned |= step.mentions
    return alive, read


def _usage(step: Step, forward: ForwardPass) -> _Usage:
    return _launched(step, forward.effects) if isinstance(step, Launch) else _operator(step, forward)


def _launched(step: Launch, effects: LaunchEffects) -> _Usage:
    if min(step.grid) <= 0:
        return _Usage(set(), set(), set())
    found = [(ref.storage, effect) for ref, effect in effects(step)]
    reads, writes = {n for n, effect in found if effect.reads}, {n for n, effect in found if effect.writes}
    return _Usage(reads, writes, set(), names=frozenset(n for n, _ in found))


def _operator(step: Aten, forward: ForwardPass) -> _Usage:
    outs = {r.storage for r in step.outs if r is not None}
    named, positional = list(tensor_refs(step.kwargs)), list(tensor_refs(list(step.args)))
    given = {r.storage for r in [*named, *positional]}
    if not outs & given and outs:
        return _Usage(given, outs, outs, makes=True, stays=not outs.issubset(forward.made))
    # in place, `out=`, or nothing returned: which arguments change is in the schema, which is not at hand here
    changed = given if not outs or "batch_norm" in step.op else outs
    unseen = {r.storage for r in filter(None, step.outs) if _covers(r, forward.nbytes.get(r.storage, -1))}
    if base_name(step.op) in _OVERWRITE:
        seen = positional[1:]
    elif "out" in step.op.partition(".")[2]:
        seen = positional
    else:
        seen, unseen = positional, set()
    reads = {r.storage for r in seen} | (given - unseen)
    return _Usage(reads, changed | outs, unseen, stays=not (changed | outs).issubset(forward.made))


def _covers(ref: TensorRef, nbytes: int) -> bool:
    """Whether the view is all of its storage."""
    elements = 1
    for size, stride in sorted(zip(ref.shape, ref.stride, strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != elements:
            return False
        elements *= size
    return ref.offset == 0 and elements * item_bytes(ref.dtype) >= nbytes
