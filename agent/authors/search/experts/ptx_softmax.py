# says: a row in registers, one barrier for maximum and sum, the L2 asked to keep what is read
# task: softmax = softmax(x)
"""Softmax over the last dimension in PTX: each row is read once, stays in registers, and is written once.

What is bought with PTX: all loads of a row are issued before the first use; offsets are immediates, so a thread
computes one address in all; and one barrier does for maximum and sum together, because each warp sums with its own
maximum and the sums are put on the same footing afterwards:

    sum_i exp(x_i - M)  =  sum over warps w of  exp(m_w - M) * sum_{i in w} exp(x_i - m_w)

Rows too long for registers take `softmax_long`: an online pass, then a second read that mostly hits the L2.
The text is made for a row length (COLS), so that only the last access of a row asks whether it is inside.
"""

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MOST_FLOATS = 64  # of a row that a thread keeps in registers

# How VEC elements, 16 bytes where rows allow it, come from memory and go there. Registers: %v floats, %w words of two
# 16-bit numbers each. A bfloat16 is the upper half of a float32, so widening it is a shift or a mask.
ACCESS = r"""
//: set WORDS = [VEC * BITS // 32, 1] | max
//: set WORD = "%v" if BITS == 32 else "%w"
//: set MINUS_INF = {"f32": "0xFF800000", "bf16": "0xFF80FF80", "f16": "0xFC00FC00"}[T]
//: set WIDTH = "" if WORDS == 1 else ".v" ~ WORDS
//: macro one(at)
${"{" if WORDS > 1}<%- for i in range(WORDS) %>${WORD}${at + i}${", " if not loop.last}<%- endfor %>${"}" if WORDS > 1}
//:- endmacro
//: macro load(chunk, guard)
//: set type = "b32" if VEC * BITS >= 32 else "u16"
//: set hint, kept = (".L2::cache_hint", ", %last") if LAST else ("", "")
    ${guard ~ " " if guard}ld.global${hint}${WIDTH}.${type} ${one(chunk * WORDS)}, [%in+${chunk * STRIDE}]${kept};
//: endmacro
//: macro unpack(chunk)
//: if BITS == 16
//: for i in range(VEC)
//: set word, to = "%w" ~ (chunk * WORDS + i // 2), "%v" ~ (chunk * VEC + i)
//: if T == "f16"
    mov.b32             {%h0, %h1}, ${word};
    cvt.f32.f16         ${to}, %h${i % 2};
//: else
    ${"and" if i % 2 else "shl"}.b32             ${to}, ${word}, ${"0xFFFF0000" if i % 2 else 16};
//: endif
//: endfor
//: endif
//: endmacro
//: macro store(chunk, guard)
//: if BITS == 16 and VEC == 1
    cvt.rn.${T}.f32 %h0, %v${chunk};
    ${guard ~ " " if guard}st.global${STORE}.b16 [%out+${chunk * STRIDE}], %h0;
//: else
//: if BITS == 16
//: for i in range(WORDS)
    cvt.rn.${T}x2.f32 %w${chunk * WORDS + i}, %v${chunk * VEC + 2 * i + 1}, %v${chunk * VEC + 2 * i};
//: endfor
//: endif
    ${guard ~ " " if guard}st.global${STORE}${WIDTH}.b32 [%out+${chunk * STRIDE}], ${one(chunk * WORDS)};
//: endif
//: endmacro
"""

# The head of both kernels, and their sums. exp(v - top) is 2^((v - top) * log2 e): the difference comes first, since
# v * log2 e alone may overflow. Of two pairs (maximum, sum), the larger maximum wins and both sums are put on it.
COMMON = r"""
//: set SIZE = BITS // 8
//: set STRIDE = LANES * VEC * SIZE
//: set VECTORS = COLS // VEC
//: macro begin(name)
.version 8.0
.target sm_80
.address_size 64

.visible .entry ${name}(.param .u64 out, .param .u64 x, .param .u32 rows)
.reqntid ${LANES}, ${ROWS}, 1
{
    .reg .pred  %beyond, %inside<${CHUNKS}>, %first, %more;
    .reg .b16   %h<2>;
    .reg .b32   %part, %row, %rows, %lane, %at, %slot, %i, %j;
    .reg .b64   %in, %out, %last;
    .reg .f32   %m, %s, %a, %b, %top, %sum, %scale;
    .reg .b32   %v<${CHUNKS * VEC}>${", %w<" ~ CHUNKS * WORDS ~ ">" if BITS == 16};
    .shared .align 8 .b8 part[${[LANES // 32, 1] | max * 8}];       // (maximum, sum) of each warp

    // ROWS rows a block, LANES threads on each; a warp never straddles two rows
    ld.param.u32        %rows, [rows];
    mov.u32             %row, %ctaid.x;
    mov.u32             %at, %tid.y;
    mad.lo.u32          %row, %row, ${ROWS}, %at;
    setp.ge.u32         %beyond, %row, %rows;
    @%beyond ret;

    ${"createpolicy.fractional.L2::evict_last.b64 %last, 1.0;" if LAST}

    // this thread's first element: row * COLS + lane * VEC, in bytes; 64 bits, a tensor may pass 4 GiB
    mov.u32             %lane, %tid.x;
//: for register, name in (("%in", "x"), ("%out", "out"))
    ld.param.u64        ${register}, [${name}];
    cvta.to.global.u64  ${register}, ${register};
    mad.wide.u32        ${register}, %row, ${COLS * SIZE}, ${register};
    mad.wide.u32        ${register}, %lane, ${VEC * SIZE}, ${register};
//: endfor
//: endmacro
//: macro exponential(register, top)
    sub.f32             ${register}, ${register}, ${top};
    mul.f32             ${register}, ${register}, 0f3FB8AA3B;
    ex2.approx.ftz.f32  ${register}, ${register};
//: endmacro
//: macro rescale()
    max.f32             %top, %m, %a;
${exponential("%m", "%top")}${exponential("%a", "%top")}    mul.f32             %s, %s, %m;
    fma.rn.f32          %s, %b, %a, %s;
    mov.f32             %m, %top;
//: endmacro
//: macro across_warps()
    // lane 0 of each warp leaves its pair; after the barrier every warp joins all pairs for itself
    and.b32             %at, %lane, 31;
    shr.u32             %slot, %lane, 5;
    mov.u32             %part, part;
    mad.lo.u32          %slot, %slot, 8, %part;
    setp.eq.u32         %first, %at, 0;
    @%first st.shared.v2.f32 [%slot], {%m, %s};
    bar.sync            0;
    and.b32             %at, %at, ${LANES // 32 - 1};
    mad.lo.u32          %at, %at, 8, %part;
    ld.shared.v2.f32    {%m, %s}, [%at];
//: endmacro
"""

ROW = (
    ACCESS
    + COMMON
    + r"""
//: set CHUNKS = (VECTORS + LANES - 1) // LANES
//: set FULL = VECTORS // LANES
${begin("softmax_row")}
//: for c in range(FULL, CHUNKS)
    // the last access of a row that is not full: what is beyond the end counts as -inf, which adds nothing
    setp.lt.u32         %inside${c}, %lane, ${VECTORS - FULL * LANES};
//: for i in range(WORDS)
    mov.b32             ${WORD}${c * WORDS + i}, ${MINUS_INF};
//: endfor
//: endfor
    // the whole row at once: ${CHUNKS} loads in flight before anybody waits for one
//: for c in range(CHUNKS)
${load(c, "@%inside" ~ c if c >= FULL else "")}
//:- endfor
//: for c in range(CHUNKS)
${unpack(c)}
//:- endfor

    // maximum of the warp. At least the smallest float: where a whole warp is -inf, -inf - -inf would be NaN
    mov.f32             %m, 0fFF7FFFFF;
//: for i in range(CHUNKS * VEC)
    max.f32             %m, %m, %v${i};
//: endfor
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32  %a, %m, ${step}, 31, -1;
    max.f32             %m, %m, %a;
//: endfor

    // exponentials and their sum; four sums side by side, so that additions need not wait for each other
//: for s in ("%s", "%a", "%b", "%sum")
    mov.f32             ${s}, 0f00000000;
//: endfor
//: for i in range(CHUNKS * VEC)
//: set s = ["%s", "%a", "%b", "%sum"][i % 4]
${exponential("%v" ~ i, "%m")}    add.f32             ${s}, ${s}, %v${i};
//: endfor
    add.f32             %s, %s, %a;
    add.f32             %b, %b, %sum;
    add.f32             %s, %s, %b;
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32  %a, %s, ${step}, 31, -1;
    add.f32             %s, %s, %a;
//: endfor

//: if LANES > 32
    mov.f32             %scale, %m;
${across_warps()}
    mov.f32             %top, %m;
//: for step in (16, 8, 4, 2, 1) if step < LANES // 32
    shfl.sync.bfly.b32  %a, %top, ${step}, 31, -1;
    max.f32             %top, %top, %a;
//: endfor
${exponential("%m", "%top")}    mul.f32             %s, %s, %m;
//: for step in (16, 8, 4, 2, 1) if step < LANES // 32
    shfl.sync.bfly.b32  %a, %s, ${step}, 31, -1;
    add.f32             %s, %s, %a;
//: endfor
    // this warp's exponentials are relative to its own maximum: exp(own - row) / sum sets them right
${exponential("%scale", "%top")}
    rcp.approx.ftz.f32  %s, %s;
    mul.f32             %scale, %scale, %s;
//: else
    rcp.approx.ftz.f32  %scale, %s;
//: endif
//: for c in range(CHUNKS)
//: for i in range(VEC)
    mul.f32             %v${c * VEC + i}, %v${c * VEC + i}, %scale;
//: endfor
${store(c, "@%inside" ~ c if c >= FULL else "")}
//:- endfor
    ret;
}
"""
)

LONG = (
    ACCESS
    + COMMON
    + r"""
//: set CHUNKS = UNROLL
//: set TILE = LANES * UNROLL
//: set TILES = (VECTORS + TILE - 1) // TILE
//: macro loads()
//: for c in range(UNROLL)
    add.u32             %j, %i, ${c * LANES};
    setp.lt.u32         %inside${c}, %j, ${VECTORS};
//: for i in range(WORDS)
    mov.b32             ${WORD}${c * WORDS + i}, ${MINUS_INF};
//: endfor
${load(c, "@%inside" ~ c)}
//:- endfor
//: for c in range(UNROLL)
${unpack(c)}
//:- endfor
//: endmacro
//: macro advance(label)
    // all threads go through all tiles: the limit is moved by the lane
    add.u32             %i, %i, ${TILE};
    add.u32             %at, %lane, ${VECTORS};
    setp.lt.u32         %more, %i, %at;
    @%more bra          ${label};
//: endmacro
${begin("softmax_long")}
    // first pass, online: a maximum and a sum of each thread
    mov.f32             %m, 0fFF7FFFFF;
    mov.f32             %s, 0f00000000;
    mov.u32             %i, %lane;
read:
${loads()}
    // the new maximum first; then one rescaling for the whole tile
    mov.f32             %top, %m;
//: for i in range(UNROLL * VEC)
    max.f32             %top, %top, %v${i};
//: endfor
${exponential("%m", "%top")}    mul.f32             %s, %s, %m;
    mov.f32             %m, %top;
//: for i in range(UNROLL * VEC)
${exponential("%v" ~ i, "%top")}    add.f32             %s, %s, %v${i};
//: endfor
    add.u64             %in, %in, ${UNROLL * STRIDE};
${advance("read")}
    // of the warp, then of the row; the larger maximum wins, and both sums are put on it
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32  %a, %m, ${step}, 31, -1;
    shfl.sync.bfly.b32  %b, %s, ${step}, 31, -1;
${rescale()}
//:- endfor
${across_warps()}
//: for step in (16, 8, 4, 2, 1) if step < LANES // 32
    shfl.sync.bfly.b32  %a, %m, ${step}, 31, -1;
    shfl.sync.bfly.b32  %b, %s, ${step}, 31, -1;
${rescale()}
//:- endfor
    rcp.approx.ftz.f32  %s, %s;

    // second pass, over what the L2 still holds
    sub.u64             %in, %in, ${TILES * UNROLL * STRIDE};
    mov.u32             %i, %lane;
write:
${loads()}
//:- for c in range(UNROLL)
//: for i in range(VEC)
${exponential("%v" ~ (c * VEC + i), "%m")}    mul.f32             %v${c * VEC + i}, %v${c * VEC + i}, %s;
//: endfor
${store(c, "@%inside" ~ c)}
//:- endfor
    add.u64             %in, %in, ${UNROLL * STRIDE};
    add.u64             %out, %out, ${UNROLL * STRIDE};
${advance("write")}    ret;
}
"""
)

# What is read has the L2 policy evict_last. On an H200 (8192x8192 float32) that took 125.4 us, 126.0 with 512 threads
# on a row, 125.6 with .cs stores or stores with a policy of evict_first, 126.8 when half of the lines had it, 126.2
# when rows were read again instead of kept; an L1 priority beside it changed nothing. Without a policy 1024 threads
# took 127.9 and 512 took 130.6; a policy of evict_first 133.5, loads with .L2::256B 134.4. Maxima by redux.sync on
# integers that are ordered as the floats changed nothing.
HINTS = ((True, ""), (True, ".cs"), (False, ""))  # whether reads have the policy, and how stores are hinted


def vector(cols, *tensors):
    """Elements of one access: as many as 16 bytes hold and every row's first address allows."""
    size = tensors[0].element_size()
    widths = (16 // size, 8 // size, 4 // size, 1)
    return next(v for v in widths if v <= 1 or (cols % v == 0 and all(t.data_ptr() % (v * size) == 0 for t in tensors)))


def row_configs(fixed, n_bytes):
    """Each number of threads that leaves 8 to 32 floats to a thread, the most threads first. For long streams with the
    policy, and the most threads with other hints too; what fits the L2 needs none."""
    cols, vec = fixed["COLS"], fixed["VEC"]
    floats = {lanes: -(-cols // (lanes * vec)) * vec for lanes in (1024, 512, 256, 128, 64, 32)}
    fits = [lanes for lanes, n in floats.items() if n <= MOST_FLOATS]
    good = [lanes for lanes in fits if 8 <= floats[lanes] <= 32] or fits[-1:]
    best, *others = HINTS if n_bytes > 2**25 else HINTS[-1:]
    made = [(lanes, *best) for lanes in good] + [(good[0], *hints) for hints in others]
    return [{**fixed, "LANES": n, "ROWS": 4 if n == 32 else 1, "LAST": last, "STORE": store} for n, last, store in made]


def long_configs(fixed):
    """Rows that no block can hold: few large blocks, so that the rows at work fit the L2 together."""
    tried = [(lanes, 16 // fixed["VEC"]) for lanes in (1024, 512)]
    same = {"ROWS": 1, "LAST": False, "STORE": ".cs"}
    return [{**fixed, **same, "LANES": lanes, "UNROLL": unroll} for lanes, unroll in tried]


def softmax(x):
    """Softmax over the last dimension of float32, bfloat16 or float16."""
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    vec = vector(cols, x, y)
    fixed = {"COLS": cols, "VEC": vec, "BITS": 8 * x.element_size(), "T": NAMES[x.dtype]}
    if -(-cols // (1024 * vec)) * vec <= MOST_FLOATS // 2:
        kernel = PtxKernel(ROW, entry="softmax_row", configs=row_configs(fixed, x.nbytes))
    else:
        kernel = PtxKernel(LONG, entry="softmax_long", configs=long_configs(fixed))
    kernel[lambda config: -(-rows // config["ROWS"])](y, x, rows)
    return y
