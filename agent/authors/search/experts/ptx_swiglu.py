# says: 16 bytes an access, several of each tensor in flight
# task: swiglu = swiglu(gate, up)
"""SwiGLU in PTX: silu(gate) * up, elementwise, so nothing counts but bytes in flight.

Each thread takes UNROLL pieces of 16 bytes of each tensor and issues all its loads before it uses the first: with
UNROLL 1 and 2048 threads on an SM, 64 KiB are on their way, and more was slower. Pieces of a thread lie a block apart,
so a warp always reads 512 bytes in a row.
The tensors are seen as one long vector: rows of any length run alike, and only the last block has a ragged end.
"""

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

TEXT = r"""
//: set BITS = 32 if T == "f32" else 16
//: set SIZE = BITS // 8
//: set WORDS = VEC * BITS // 32
//: set STRIDE = block * VEC * SIZE
//: macro words(name, first)
{<% for i in range(WORDS) %>%${name}${first + i}${", " if not loop.last}<% endfor %>}
//:- endmacro
//: macro activate(g, u)
    // g / (1 + exp(-g)) * u, with exp(-g) as 2^(-g * log2 e). Overflow to infinity is right: 1 / inf is 0
    mul.f32             %e, ${g}, 0fBFB8AA3B;
    ex2.approx.ftz.f32  %e, %e;
    add.f32             %e, %e, 0f3F800000;
    rcp.approx.ftz.f32  %e, %e;
    mul.f32             ${g}, ${g}, %e;
    mul.f32             ${g}, ${g}, ${u};
//: endmacro
//: macro widen(low, high, word)
//: if T == "bf16"
    // a bfloat16 is the upper half of a float32
    shl.b32             ${low}, ${word}, 16;
    and.b32             ${high}, ${word}, 0xFFFF0000;
//: else
    mov.b32             {%h0, %h1}, ${word};
    cvt.f32.f16         ${low}, %h0;
    cvt.f32.f16         ${high}, %h1;
//: endif
//: endmacro
//: macro loads(first, at)
    ld.global${".L2::cache_hint" if LAST}.v${WORDS}.b32 ${words("g", first)}, [%gate+${at}]${", %last" if LAST};
    ld.global${".L2::cache_hint" if LAST}.v${WORDS}.b32 ${words("u", first)}, [%up+${at}]${", %last" if LAST};
//: endmacro
//: macro finish(first, at)
//: for i in range(first, first + WORDS)
//: if BITS == 32
${activate("%g" ~ i, "%u" ~ i)}
//:- else
${widen("%a0", "%a1", "%g" ~ i)}${widen("%b0", "%b1", "%u" ~ i)}
//:- for j in (0, 1)
${activate("%a" ~ j, "%b" ~ j)}
//:- endfor
    cvt.rn.${T}x2.f32   %g${i}, %a1, %a0;
//: endif
//: endfor
    st.global.v${WORDS}.b32 [%out+${at}], ${words("g", first)};
//: endmacro
.version 8.0
.target sm_80
.address_size 64

.visible .entry swiglu(.param .u64 out, .param .u64 gate, .param .u64 up, .param .u64 n)
.reqntid ${block}
{
    .reg .pred  %p;
    .reg .b16   %h<2>;
    .reg .b32   %block, %lane, %piece;
    .reg .b32   %g<${UNROLL * WORDS}>, %u<${UNROLL * WORDS}>;
    .reg .b64   %out, %gate, %up, %first, %from, %left, %last;
    .reg .f32   %e, %a<2>, %b<2>;

    // %first: this thread's first element; %left: how many there are from it on. 64 bits: n may pass 2^32
    mov.u32             %block, %ctaid.x;
    mov.u32             %lane, %tid.x;
    mul.wide.u32        %first, %block, ${block * UNROLL * VEC};
    mul.wide.u32        %from, %lane, ${VEC};
    add.s64             %first, %first, %from;
    ld.param.u64        %left, [n];
    sub.s64             %left, %left, %first;
    shl.b64             %from, %first, ${1 if SIZE == 2 else 2};
    ld.param.u64        %out, [out];
    ld.param.u64        %gate, [gate];
    ld.param.u64        %up, [up];
    cvta.to.global.u64  %out, %out;
    cvta.to.global.u64  %gate, %gate;
    cvta.to.global.u64  %up, %up;
    add.s64             %out, %out, %from;
    add.s64             %gate, %gate, %from;
    add.s64             %up, %up, %from;

    ${"createpolicy.fractional.L2::evict_last.b64 %last, 1.0;" if LAST}

    // does this thread's last piece still lie inside?
    setp.lt.s64         %p, %left, ${(UNROLL - 1) * block * VEC + VEC};
    @%p bra             ragged;

    // ${2 * UNROLL} loads in flight, then the arithmetic
//: for c in range(UNROLL)
${loads(c * WORDS, c * STRIDE)}
//:- endfor
//: for c in range(UNROLL)
${finish(c * WORDS, c * STRIDE)}
//:- endfor
    ret;

ragged:
    // piece by piece; the one that is cut off by the end goes element by element
    mov.u32             %piece, 0;
next:
    setp.lt.s64         %p, %left, ${VEC};
    @%p bra             elements;
${loads(0, 0)}${finish(0, 0)}    add.s64             %out, %out, ${STRIDE};
    add.s64             %gate, %gate, ${STRIDE};
    add.s64             %up, %up, ${STRIDE};
    sub.s64             %left, %left, ${block * VEC};
    add.u32             %piece, %piece, 1;
    setp.lt.u32         %p, %piece, ${UNROLL};
    @%p bra             next;
    ret;
elements:
    setp.le.s64         %p, %left, 0;
    @%p ret;
//: if BITS == 32
    ld.global.b32       %a0, [%gate];
    ld.global.b32       %b0, [%up];
${activate("%a0", "%b0")}    st.global.b32       [%out], %a0;
//: else
    ld.global.u16       %g0, [%gate];
    ld.global.u16       %u0, [%up];
${widen("%a0", "%a1", "%g0")}${widen("%b0", "%b1", "%u0")}${activate("%a0", "%b0")}    cvt.rn.${T}.f32     %h0, %a0;
    st.global.b16       [%out], %h0;
//: endif
    add.s64             %out, %out, ${SIZE};
    add.s64             %gate, %gate, ${SIZE};
    add.s64             %up, %up, ${SIZE};
    sub.s64             %left, %left, 1;
    bra                 elements;
}
"""

# On an H200 (8192x11008 bfloat16) blocks of 1024 threads with one piece each took 124.0 us, of 128 to 512 threads 124.5
# to 124.6, with .nc loads and .cs stores 124.4, two pieces of each thread 125.7, loads with an L2 policy of evict_first
# 131.2, rings of bulk copies 134.9. With the policy evict_last on what is read 122.88 (512 threads 123.4, 256 123.65),
# and 122.73 where two blocks begin together, as a cluster.
SHAPES = (
    (1024, 1, 2),
    (1024, 1, 1),
    (512, 1, 1),
    (256, 1, 1),
)  # threads of a block, pieces, blocks together


def configs(name, size, n_bytes):
    """Long streams with the policy, in clusters where the GPU has them; what fits the L2 needs neither, and has small
    blocks to choose from, too."""
    kept = n_bytes > 2**25
    clusters = kept and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    shapes = SHAPES[0 if clusters else 1 :] + (() if kept else ((128, 1, 1), (256, 2, 1)))
    same = {"T": name, "VEC": 16 // size, "LAST": kept}
    return [{**same, "block": block, "UNROLL": unroll, "CLUSTER": together} for block, unroll, together in shapes]


def packed(tensor):
    """The tensor without gaps, from a 16-byte boundary on: a copy only where a view begins elsewhere."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def swiglu(gate, up):
    """silu(gate) * up, of float32, bfloat16 or float16."""
    gate, up = packed(gate), packed(up)
    out = torch.empty_like(gate)
    n = gate.numel()
    kernel = PtxKernel(TEXT, configs=configs(NAMES[gate.dtype], gate.element_size(), gate.nbytes))
    kernel[lambda c: -(-n // (c["block"] * c["UNROLL"] * c["VEC"] * c["CLUSTER"])) * c["CLUSTER"]](
        out, gate, up, n, cluster=lambda c: c["CLUSTER"]
    )
    return out
