# says: a row packed in registers, one barrier, the L2 asked to keep what is read
# task: rms_norm = rms_norm(x, self.weight, self.eps)
"""Root-mean-square normalisation over the last dimension in PTX: read once, kept in registers, written once.

A thread takes a few times 16 bytes of each of BATCH rows: it issues all loads before it uses the first, the weight's
once for all rows, and reduces all sums across one barrier. ROWS groups of LANES threads share a block.
16-bit numbers stay packed in registers between the sum and the scaling. With LANES 32, a warp has a row for itself and
there is no barrier at all.
The text is made for a row length (COLS), so that only the last access of a row asks whether it is inside.
"""

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
MOST_WORDS = 64  # registers of a thread that hold packed elements

COMMON = r"""
//: set BITS = 32 if T == "f32" else 16
//: set SIZE = BITS // 8
//: set WORDS = [VEC * BITS // 32, 1] | max
//: set TYPE = "b32" if VEC * BITS >= 32 else "u16"
//: set STRIDE = LANES * VEC * SIZE
//: set VECTORS = COLS // VEC
//: set WARPS = LANES // 32
//: set HINT = ".L1::evict_last" if LAST else ""
//: macro several(name, first, count)
//: if count > 1
{<% for i in range(count) %>%${name}${first + i}${", " if not loop.last}<% endfor %>}
//:- else
%${name}${first}
//:- endif
//: endmacro
//: macro wide(count, type)
${(".v" ~ count if count > 1) ~ "." ~ type}
//:- endmacro
//: macro load(hints, name, first, address)
//: set policy, kept = (".L2::cache_hint", ", %last") if LAST else ("", "")
ld.global${hints}${policy}${wide(WORDS, TYPE)} ${several(name, first, WORDS)}, ${address}${kept};
//:- endmacro
//: macro widen(low, high, word)
//: if T == "bf16"
    shl.b32             ${low}, ${word}, 16;
    and.b32             ${high}, ${word}, 0xFFFF0000;
//: else
    mov.b32             {%h0, %h1}, ${word};
    cvt.f32.f16         ${low}, %h0;
    cvt.f32.f16         ${high}, %h1;
//: endif
//: endmacro
//: macro widen_for_sum(low, high, word)
//: if T == "bf16"
    // as widen, in other words, so that the compiler does not keep these floats until the row is scaled
    prmt.b32            ${low}, ${word}, 0, 0x1044;
    prmt.b32            ${high}, ${word}, 0, 0x3244;
//: else
${widen(low, high, word)}
//:- endif
//: endmacro
//: macro squares(sum, name, first)
//: for i in range(first, first + WORDS)
//: if BITS == 32
    fma.rn.f32          ${sum}, %${name}${i}, %${name}${i}, ${sum};
//: else
${widen_for_sum("%low", "%high", "%" ~ name ~ i)}    fma.rn.f32          ${sum}, %low, %low, ${sum};
//: if VEC > 1
    fma.rn.f32          ${sum}, %high, %high, ${sum};
//: endif
//: endif
//: endfor
//: endmacro
//: macro scaled(name, first, weight, scale)
//: for i in range(WORDS)
//: if BITS == 32
    mul.f32             %${name}${first + i}, %${name}${first + i}, ${scale};
    mul.f32             %${name}${first + i}, %${name}${first + i}, %g${weight + i};
//: else
${widen("%low", "%high", "%" ~ name ~ (first + i))}
//:- set g = "%g" ~ (weight + i)
${widen("%glow", "%ghigh", g)}    mul.f32             %low, %low, ${scale};
    mul.f32             %high, %high, ${scale};
    mul.f32             %low, %low, %glow;
    mul.f32             %high, %high, %ghigh;
//: if VEC > 1
    cvt.rn.${T}x2.f32   %${name}${first + i}, %high, %low;
//: endif
//: endif
//: endfor
//: endmacro
//: macro store(guard, name, first, address)
//: if VEC * BITS == 16
    cvt.rn.${T}.f32     %h0, %low;
    ${guard}st.global${STORE}.b16 ${address}, %h0;
//: else
    ${guard}st.global${STORE}${wide(WORDS, "b32")} ${address}, ${several(name, first, WORDS)};
//: endif
//: endmacro
//: macro across(sum)
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32  %other, ${sum}, ${step}, 31, -1;
    add.f32             ${sum}, ${sum}, %other;
//: endfor
//: endmacro
//: macro across_warps(count)
    // lane 0 of each warp leaves its sums; after the barrier every warp adds all of them for itself
    and.b32             %at, %lane, 31;
    shr.u32             %slot, %lane, 5;
    mov.u32             %part, part;
//: if ROWS > 1
    mad.lo.u32          %part, %group, ${WARPS * 4 * count}, %part;
//: endif
    mad.lo.u32          %slot, %slot, ${4 * count}, %part;
    setp.eq.u32         %p, %at, 0;
    @%p st.shared${wide(count, "f32")} [%slot], ${several("s", 0, count)};
    bar.sync            0;
    and.b32             %at, %at, ${WARPS - 1};
    mad.lo.u32          %slot, %at, ${4 * count}, %part;
    ld.shared${wide(count, "f32")} ${several("s", 0, count)}, [%slot];
//: for b in range(count)
//: for step in (16, 8, 4, 2, 1) if step < WARPS
    shfl.sync.bfly.b32  %other, %s${b}, ${step}, 31, -1;
    add.f32             %s${b}, %s${b}, %other;
//: endfor
//: endfor
//: endmacro
//: macro begin(name, batch, held)
.version 8.0
.target sm_80
.address_size 64

.visible .entry ${name}(
    .param .u64 out, .param .u64 x, .param .u64 weight, .param .u32 rows, .param .f32 inverse, .param .f32 eps
)
.reqntid ${LANES}, ${ROWS}, 1
{
    .reg .pred  %p, %inside, %there<${batch}>;
    .reg .b16   %h<2>;
    .reg .b32   %row, %rows, %group, %lane, %at, %slot, %part, %i;
    .reg .b32   %w<${batch * held}>, %g<${held}>;
    .reg .b64   %in, %out, %weight, %from, %last;
    .reg .f32   %s<${batch}>, %other, %inverse, %eps, %low, %high, %glow, %ghigh;
    .shared .align 16 .b8 part[${ROWS * WARPS * batch * 4}];

    // this group's first row; a warp never straddles two groups
    mov.u32             %row, %ctaid.x;
    mov.u32             %group, %tid.y;
    mad.lo.u32          %row, %row, ${ROWS}, %group;
    mul.lo.u32          %row, %row, ${batch};
    ld.param.u32        %rows, [rows];

    // this thread's first element: row * COLS + lane * VEC, in bytes; 64 bits, a tensor may pass 4 GiB
    mov.u32             %lane, %tid.x;
    mul.wide.u32        %from, %row, ${COLS * SIZE};
//: for register, name in (("%in", "x"), ("%out", "out"), ("%weight", "weight"))
    ld.param.u64        ${register}, [${name}];
    cvta.to.global.u64  ${register}, ${register};
    mad.wide.u32        ${register}, %lane, ${VEC * SIZE}, ${register};
//: endfor
    add.s64             %in, %in, %from;
    add.s64             %out, %out, %from;
    ld.param.f32        %inverse, [inverse];
    ld.param.f32        %eps, [eps];
    ${"createpolicy.fractional.L2::evict_last.b64 %last, 1.0;" if LAST}
//: endmacro
"""

ROW = (
    COMMON
    + r"""
//: set CHUNKS = (VECTORS + LANES - 1) // LANES
//: set FULL = VECTORS // LANES
//: set HELD = CHUNKS * WORDS
//: set ROW_BYTES = COLS * SIZE
${begin("rms_norm_rows", BATCH, HELD)}
    // which of the BATCH rows there are, and whether the last access of a row is inside. What is not there counts as 0
//: if FULL < CHUNKS
    setp.lt.u32         %inside, %lane, ${VECTORS - FULL * LANES};
//: endif
//: for b in range(BATCH)
    add.u32             %at, %row, ${b};
    setp.lt.u32         %there${b}, %at, %rows;
//: for i in range(HELD)
    mov.b32             %w${b * HELD + i}, 0;
//: endfor
//: endfor
    // all rows: ${BATCH * CHUNKS} loads in flight before anybody waits for one
//: for b in range(BATCH)
//: for c in range(FULL)
    @%there${b} ${load(HINT, "w", b * HELD + c * WORDS, "[%in+" ~ (b * ROW_BYTES + c * STRIDE) ~ "]")}
//: endfor
//: if FULL < CHUNKS
    and.pred            %p, %inside, %there${b};
    @%p ${load(HINT, "w", b * HELD + FULL * WORDS, "[%in+" ~ (b * ROW_BYTES + FULL * STRIDE) ~ "]")}
//: endif
//: endfor

    // the weight is the same for all rows: the L1 shall keep it
//: for c in range(CHUNKS)
    ${"@%inside " if c >= FULL}${load(".L1::evict_last", "g", c * WORDS, "[%weight+" ~ c * STRIDE ~ "]")}
//: endfor

    // sums of squares of the thread, of the warp, of the row
//: for b in range(BATCH)
    mov.f32             %s${b}, 0f00000000;
//: for c in range(CHUNKS)
${squares("%s" ~ b, "w", b * HELD + c * WORDS)}
//:- endfor
${across("%s" ~ b)}
//:- endfor
//: if WARPS > 1
${across_warps(BATCH)}
//:- endif

    // 1 / sqrt(mean + eps), then each row is scaled, weighted and stored
//: for b in range(BATCH)
    fma.rn.f32          %s${b}, %s${b}, %inverse, %eps;
    rsqrt.approx.ftz.f32 %s${b}, %s${b};
//: for c in range(CHUNKS)
${scaled("w", b * HELD + c * WORDS, c * WORDS, "%s" ~ b)}
//:- if c >= FULL
    and.pred            %p, %inside, %there${b};
//: endif
//: set guard = "@%p " if c >= FULL else "@%there" ~ b ~ " "
${store(guard, "w", b * HELD + c * WORDS, "[%out+" ~ (b * ROW_BYTES + c * STRIDE) ~ "]")}
//:- endfor
//: endfor
    ret;
}
"""
)

# Rows that no block can hold: twice over the row, the second time from the L2.
LONG = (
    COMMON
    + r"""
${begin("rms_norm_long", 1, WORDS)}
    mov.f32             %s0, 0f00000000;
    mov.u32             %i, %lane;
sum:
    setp.ge.u32         %p, %i, ${VECTORS};
    @%p bra             summed;
    ${load(HINT, "w", 0, "[%in]")}
${squares("%s0", "w", 0)}    add.s64             %in, %in, ${STRIDE};
    add.u32             %i, %i, ${LANES};
    bra                 sum;
summed:
${across("%s0")}${across_warps(1)}    fma.rn.f32          %s0, %s0, %inverse, %eps;
    rsqrt.approx.ftz.f32 %s0, %s0;

    // back to the thread's first element: as many steps as it went forward
    sub.u32             %i, %i, %lane;
    mul.wide.u32        %from, %i, ${VEC * SIZE};
    sub.s64             %in, %in, %from;
    mov.u32             %i, %lane;
scale:
    setp.ge.u32         %p, %i, ${VECTORS};
    @%p bra             done;
    ${load(HINT, "w", 0, "[%in]")}
    ${load(".nc", "g", 0, "[%weight]")}
${scaled("w", 0, 0, "%s0")}${store("", "w", 0, "[%out]")}    add.s64             %in, %in, ${STRIDE};
    add.s64             %weight, %weight, ${STRIDE};
    add.s64             %out, %out, ${STRIDE};
    add.u32             %i, %i, ${LANES};
    bra                 scale;
done:
    ret;
}
"""
)


def vector(cols, *tensors):
    """Elements of one access: as many as 16 bytes hold and every row's first address allows."""
    size = tensors[0].element_size()
    widths = (16 // size, 8 // size, 4 // size, 1)
    return next(v for v in widths if v <= 1 or (cols % v == 0 and all(t.data_ptr() % (v * size) == 0 for t in tensors)))


# (accesses of a thread on a row, threads of a block, BATCH, blocks that begin together), the best first: what is read,
# rows and weight, with the L2 policy evict_last, took 63.94, 64.02, 64.04 and 64.4 us on an H200 (16384x4096 bfloat16).
# Without a policy 1024 threads were best, 65.6, and the others took 66.4, 66.4 and 66.1. Slower, too: accesses of 8
# bytes, more rows in flight, rows read again instead of kept (64.5), stores with a policy of evict_first (64.55 for
# 64.37), blocks of 1024 threads with one access each (80).
SHAPES = ((2, 256, 1, 2), (2, 256, 1, 1), (2, 512, 1, 1), (1, 512, 2, 1))
PLAIN = ((2, 1024, 1, 1),)


def shaped(fixed, size, shapes, last):
    """Configs with those shapes for rows of that length, each once."""
    words, vectors = max(fixed["VEC"] * size // 4, 1), -(-fixed["COLS"] // fixed["VEC"])
    whole = next((n for n in (32, 64, 128, 256, 512) if n >= vectors), 1024)
    made = {}
    for accesses, threads, batch, cluster in shapes:
        lanes = max(32, whole // accesses)
        if -(-vectors // lanes) * words * batch <= MOST_WORDS // 2:
            made[lanes, max(1, threads // lanes), batch, cluster] = None
    same = {**fixed, "LAST": last, "STORE": ""}
    return [{**same, "LANES": n, "ROWS": rows, "BATCH": batch, "CLUSTER": c} for n, rows, batch, c in made]


def configs(fixed, size, n_bytes):
    """Long streams with the policy first, in clusters where the GPU has them; what fits the L2 needs neither."""
    plain = shaped(fixed, size, PLAIN, False)
    if n_bytes <= 2**25:
        return plain + shaped(fixed, size, SHAPES[1:], False)
    clusters = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    return shaped(fixed, size, SHAPES if clusters else SHAPES[1:], True) + plain


def rms_norm(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * weight, of float32, bfloat16 or float16."""
    x, weight = x.contiguous(), weight.to(x.dtype)
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    fixed = {"COLS": cols, "VEC": vector(cols, x, y, weight), "T": NAMES[x.dtype]}
    if -(-cols // (1024 * fixed["VEC"])) * max(fixed["VEC"] * x.element_size() // 4, 1) <= MOST_WORDS // 2:
        kernel = PtxKernel(ROW, entry="rms_norm_rows", configs=configs(fixed, x.element_size(), x.nbytes))
    else:
        only = {**fixed, "LANES": 1024, "ROWS": 1, "BATCH": 1, "CLUSTER": 1, "LAST": False, "STORE": ".cs"}
        kernel = PtxKernel(LONG, entry="rms_norm_long", configs=[only])
    kernel[lambda c: -(-rows // (c["ROWS"] * c["BATCH"] * c["CLUSTER"])) * c["CLUSTER"]](
        y, x, weight, rows, 1.0 / cols, eps, cluster=lambda c: c["CLUSTER"]
    )
    return y
