"""Which instructions PTX has, and which of them no plan can hold, with the reason. Pure.

Opcodes are those of the PTX ISA, version 9.0; ptxas knows which of them a target has.
"""

OPCODES = frozenset(
    """
    abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call clz
    clusterlaunchcontrol cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns
    getctarank griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar
    min mma mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux
    rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix sub
    subc suld suq sured sust szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd
    vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4
    wgmma wmma xor
    """.split()
)

_AHEAD = "what it brings into the L2 or drops from it may be another run's, so it is not timed; remove it"
_BOUND = "it needs an object that a driver binds, which no launch here does; use ld and st"
FORBIDDEN = {
    "brkpt": "it stops the GPU for a debugger; remove it",
    "pmevent": "it triggers events of a profiler; remove it",
    "multimem": "it addresses the memory of several GPUs; there is one",
    "prefetchu": _AHEAD,
    "applypriority": _AHEAD,
    "discard": _AHEAD,
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq"), _BOUND),
}
BULK_PREFETCH = ("async", "bulk", "prefetch")
AHEAD = _AHEAD

# What other languages call it, and what a near name would not say.
SLIPS = {
    "exp": "'ex2' is 2^x: multiply by log2 e, 0f3FB8AA3B, first",
    "log": "'lg2' is the logarithm to the base of 2: multiply by ln 2, 0f3F317218, after it",
    "load": "it is 'ld'",
    "store": "it is 'st'",
    "jmp": "it is 'bra'",
    "cmp": "it is 'setp'",
    "syncthreads": "it is 'bar.sync 0'",
    "fadd": "it is 'add.f32'",
    "fmul": "it is 'mul.f32'",
    "ffma": "it is 'fma.rn.f32'",
}

# Functions that a driver supplies. Memory that outlives a launch is in no plan.
EXTERNAL_FUNCTIONS = frozenset({"__assertfail"})
EXTERNAL = {
    "malloc": "its memory outlives the launch; pass a tensor",
    "free": "it frees memory that is in no plan",
    "vprintf": "nobody reads what it prints; remove it",
}
