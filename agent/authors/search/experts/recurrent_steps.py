# says: recurrent layers by a launch a step
# takes: what `inductor` makes of torch.lstm, gru, rnn_tanh and rnn_relu
# search: UNITS = 8 16 32
# search: WIDTH_BLOCK = 16 32 64
# search: STEP_WARPS = 2 4 8
"""The steps of recurrent layers, a launch each. No candidate by itself: `recurrent` takes the place of the layers in what
TorchInductor writes.

What the first layer makes of its inputs is one product, before the loop. A launch does a step of every layer: the product
with the layer's state, that with what the layer below gave for the same step, the gates, and the next state. So a layer is
a step behind the one below it: N layers of T steps are T + N - 1 launches. The two directions of a layer need nothing of
each other: T launches.
"""

UNITS = 16  # of the state, a program
WIDTH_BLOCK = 32
STEP_WARPS = 4


@triton.jit
def tile(ptr, row, unit, stride, inside):
    """What lies in these rows, in float32."""
    return tl.load(ptr + row[:, None] * stride + unit[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def tiles(ptr, row, unit, stride, inside, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """The same of up to four gates, which are WIDTH apart; of one that is not there zeros."""
    a = tile(ptr, row, unit, stride, inside)
    zero = tl.zeros([row.shape[0], unit.shape[0]], tl.float32)
    b, c, d = zero, zero, zero
    if COUNT > 1:
        b = tile(ptr + WIDTH, row, unit, stride, inside)
        c = tile(ptr + 2 * WIDTH, row, unit, stride, inside)
    if COUNT > 3:
        d = tile(ptr + 3 * WIDTH, row, unit, stride, inside)
    return a, b, c, d


@triton.jit
def add_products(
    a, b, c, d, x_ptr, weight_ptr, row, unit, rows, GATES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to the sum of each gate, of which there may be 1, 3 or 4, rows of x times rows of the gate's weight."""
    for start in range(0, WIDTH, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x_inside = (row < rows)[:, None] & (k < WIDTH)[None, :]
        x = tl.load(x_ptr + row[:, None] * WIDTH + k[None, :], mask=x_inside, other=0.0)
        at = weight_ptr + unit[None, :] * WIDTH + k[:, None]
        inside = (k < WIDTH)[:, None] & (unit < WIDTH)[None, :]
        a = tl.dot(x, tl.load(at, mask=inside, other=0.0), a, input_precision=INPUT_PRECISION)
        if GATES > 1:
            b = tl.dot(x, tl.load(at + WIDTH * WIDTH, mask=inside, other=0.0), b, input_precision=INPUT_PRECISION)
            c = tl.dot(x, tl.load(at + 2 * WIDTH * WIDTH, mask=inside, other=0.0), c, input_precision=INPUT_PRECISION)
        if GATES > 3:
            d = tl.dot(x, tl.load(at + 3 * WIDTH * WIDTH, mask=inside, other=0.0), d, input_precision=INPUT_PRECISION)
    return a, b, c, d


@triton.jit(do_not_specialize=["launch"])
def recurrent_kernel(
    gates_ptr,  # steps x lowest x rows x GATES x WIDTH: of the layers whose inputs were multiplied before
    states_ptr,  # steps + 1 x layers x rows x WIDTH: the first are given
    cell_ptr,  # layers x rows x WIDTH: an LSTM's, in place
    below_ptr,  # layers above the lowest x GATES x WIDTH x WIDTH: weights for the states of the layer below
    own_ptr,  # layers x GATES x WIDTH x WIDTH: weights for the layer's own states
    bias_ptr,  # layers x sums x WIDTH
    launch,
    steps,
    lowest,
    rows,
    KIND: tl.constexpr,
    GATES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """A step of each layer: the n-th above the lowest is n steps behind."""
    layer, layers = tl.program_id(2), tl.num_programs(2)
    step = (launch - tl.maximum(layer - lowest + 1, 0)).to(tl.int64)
    if (step >= 0) & (step < steps):
        unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (unit < WIDTH)[None, :]
        size = rows * WIDTH
        state_ptr = states_ptr + (step * layers + layer) * size
        next_ptr = state_ptr + layers * size
        # a gate a sum, but a GRU's third gate has two: c of its input, d of its state
        if layer < lowest:
            gates_ptr += (step * lowest + layer) * size * GATES
            a, b, c, d = tiles(gates_ptr, row, unit, GATES * WIDTH, inside, GATES, WIDTH)
        else:
            below_ptr += (layer - lowest) * GATES * WIDTH * WIDTH
            a, x_ptr = tl.zeros([ROWS, UNITS], tl.float32), next_ptr - size
            a, b, c, d = add_products(
                a, a, a, a, x_ptr, below_ptr, row, unit, rows, GATES, WIDTH, WIDTH_BLOCK, INPUT_PRECISION
            )
        own_ptr += layer * GATES * WIDTH * WIDTH
        if KIND == "gru":
            a, b, d, c = add_products(
                a, b, d, c, state_ptr, own_ptr, row, unit, rows, GATES, WIDTH, WIDTH_BLOCK, INPUT_PRECISION
            )
        else:
            a, b, c, d = add_products(
                a, b, c, d, state_ptr, own_ptr, row, unit, rows, GATES, WIDTH, WIDTH_BLOCK, INPUT_PRECISION
            )
        SUMS: tl.constexpr = 4 if GATES > 1 else 1
        bias_a, bias_b, bias_c, bias_d = tiles(bias_ptr + layer * SUMS * WIDTH, row, unit, 0, inside, SUMS, WIDTH)
        a, b, c, d = a + bias_a, b + bias_b, c + bias_c, d + bias_d
        if KIND == "lstm":  # input, forget, cell, output
            cell_ptr += layer * size
            cell = tl.sigmoid(b) * tile(cell_ptr, row, unit, WIDTH, inside) + tl.sigmoid(a) * tanh(c)
            tl.store(cell_ptr + row[:, None] * WIDTH + unit[None, :], cell, mask=inside)
            state = tl.sigmoid(d) * tanh(cell)
        elif KIND == "gru":  # reset, update, new
            new = tanh(c + tl.sigmoid(a) * d)
            state = new + tl.sigmoid(b) * (tile(state_ptr, row, unit, WIDTH, inside) - new)
        elif KIND == "rnn_tanh":
            state = tanh(a)
        else:
            state = tl.maximum(a, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(next_ptr + row[:, None] * WIDTH + unit[None, :], state, mask=inside)


def recurrent(kind, gates, hidden, cell, below, own, bias, precision="ieee"):
    """The states before the first step and after each, of every layer, and an LSTM's last cells."""
    steps, lowest, rows, _ = gates.shape
    layers, _, width = hidden.shape
    states = torch.empty((steps + 1, layers, rows, width), dtype=hidden.dtype, device=hidden.device)
    states[0].copy_(hidden)
    cells = cell.clone() if kind == "lstm" else cell
    row_block = min(max(triton.next_power_of_2(rows), 16), 64)
    grid = (triton.cdiv(width, UNITS), triton.cdiv(rows, row_block), layers)
    sizes = {"KIND": kind, "GATES": own.shape[1] // width, "WIDTH": width, "ROWS": row_block}
    sizes |= {"UNITS": UNITS, "WIDTH_BLOCK": WIDTH_BLOCK, "INPUT_PRECISION": precision, "num_warps": STEP_WARPS}
    for launch in range(steps + layers - lowest):
        recurrent_kernel[grid](gates, states, cells, below, own, bias, launch, steps, lowest, rows, **sizes)
    return states, cells
