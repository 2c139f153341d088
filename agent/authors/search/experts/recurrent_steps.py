# says: recurrent layers step by step
# takes: what `inductor` makes of torch.lstm, gru, rnn_tanh and rnn_relu
# search: UNITS = 8 16 32
# search: WIDTH_BLOCK = 16 32 64
# search: STEP_WARPS = 2 4 8
"""The steps of recurrent layers. No candidate by itself: `recurrent` takes the place of the layers in what TorchInductor
writes.

What the first layer makes of its inputs is one product, before the loop. A step of a layer is the product with its state,
that with what the layer below gave for the same step, the gates, and the next state.

In float32 a launch does a step of every layer, so a layer is a step behind the one below it: N layers of T steps are
T + N - 1 launches. The two directions of a layer need nothing of each other: T launches. Six layers of an LSTM, 256 wide,
10 rows, 512 steps, take 19.6 ms on an H200, 10.5 with products of three TF32 ones; cuDNN 8.1.

Where products may be three of float16, one cooperative launch does all steps: a program keeps the weights of its units in
shared memory, as pairs of float16, and waits for the states that it reads. The same LSTM takes 2.6 ms with an error of
2.8e-7 (cuDNN's is 1.3e-7; 8 warps or 8 units a program: 3.4), a GRU 2.9 (cuDNN 7.2), both directions of an LSTM's layer
1.7 (3.7), of a GRU's 2.0 (3.2), one layer 512 wide of 32 rows and 128 steps 1.0 (3.2). A state of rnn_relu has no bound
to scale it by, and weights of more than 512 columns do not fit: those go by steps.
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


@triton.jit
def next_of(a, b, c, d, state, cell, KIND: tl.constexpr):
    """The next state and an LSTM's next cell, of the sums of the gates."""
    if KIND == "lstm":  # input, forget, cell, output
        cell = tl.sigmoid(b) * cell + tl.sigmoid(a) * tanh(c)
        state = tl.sigmoid(d) * tanh(cell)
    elif KIND == "gru":  # reset, update, new
        new = tanh(c + tl.sigmoid(a) * d)
        state = new + tl.sigmoid(b) * (state - new)
    elif KIND == "rnn_tanh":
        state = tanh(a)
    else:
        state = tl.maximum(a, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return state, cell


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
        state, cell = a, a
        if KIND == "lstm":
            cell_ptr += layer * size
            cell = tile(cell_ptr, row, unit, WIDTH, inside)
        elif KIND == "gru":
            state = tile(state_ptr, row, unit, WIDTH, inside)
        state, cell = next_of(a, b, c, d, state, cell, KIND)
        if KIND == "lstm":
            tl.store(cell_ptr + row[:, None] * WIDTH + unit[None, :], cell, mask=inside)
        tl.store(next_ptr + row[:, None] * WIDTH + unit[None, :], state, mask=inside)


@triton.jit
def halves_of(v):
    """A number below 2^15 as the sum of two float16."""
    high = v.to(tl.float16)
    return high, (v - high.to(tl.float32)).to(tl.float16)


@triton.jit
def powers_for(largest):
    """2^k and 2^-k such that numbers up to this one, times 2^k, are below 2^15."""
    exponent = tl.minimum(tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) & 255, 15), 253)
    return ((268 - exponent) << 23).to(tl.float32, bitcast=True), ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def kept_weights(ptr, line, k, inside, WIDTH: tl.constexpr):
    """Rows of a weight as pairs of float16, and the factor of each row."""
    weight = tl.load(ptr + line[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
    up, down = powers_for(tl.max(tl.abs(weight), 1))
    high, low = halves_of(weight * up[:, None])
    return high, low, down


@triton.jit
def products_with(high, low, down, x, largest):
    """Kept weights times columns up to this value; of their halves low x low, below 2^-22 of a product, is left out."""
    x_up, x_down = powers_for(largest)
    x_high, x_low = halves_of(x * x_up)
    made = tl.dot(high, x_high, tl.dot(high, x_low, tl.dot(low, x_high)))
    return made * x_down * down[:, None]


@triton.jit
def largest_after(x, KIND: tl.constexpr):
    """What no state after these exceeds: 1, or in a GRU the largest of these."""
    largest = tl.full([], 1.0, tl.float32)
    if KIND == "gru":
        largest = tl.maximum(tl.max(tl.abs(x)), largest)
    return largest


@triton.jit
def wait_for(count_ptr, programs):
    """Until so many programs have counted themselves. One thread sees what they wrote before, the barrier lets all see it:
    without it an H200 read states that were not there yet."""
    while tl.load(count_ptr, volatile=True) < programs:
        pass
    tl.atomic_add(count_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def layers_kernel(  # noqa: PLR0915 - one loop, which reads what is loaded before it
    gates_ptr, states_ptr, cell_ptr, last_ptr, below_ptr, own_ptr, bias_ptr,
    count_ptr,  # row blocks x layers, COUNT_STRIDE apart: programs that have done a step
    steps, lowest, rows,
    KIND: tl.constexpr, GATES: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr,
    UNITS: tl.constexpr, HAS_UPPER: tl.constexpr, COUNT_STRIDE: tl.constexpr,
):  # fmt: skip
    """All steps of a layer's UNITS. Pointers are those of `recurrent_kernel`, but that the cells are read at one place and
    the last of them written at another. A sum of a unit is a line of the tile, and its gates lie side by side."""
    SUMS: tl.constexpr = 4 if GATES > 1 else 1
    layer, layers = tl.program_id(1), tl.num_programs(1)
    line = tl.arange(0, SUMS * UNITS)
    gate, line_unit = line % SUMS, tl.program_id(0) * UNITS + line // SUMS
    k = tl.arange(0, COLS)
    inside = (line_unit < WIDTH)[:, None] & (k < WIDTH)[None, :]
    own_gate, has_own, has_below = gate, gate >= 0, gate >= 0
    if KIND == "gru":  # of its third gate, c is a sum of its input, d one of its state
        own_gate, has_own, has_below = tl.minimum(gate, 2), gate != 2, gate != 3
    own_ptr += layer * GATES * WIDTH * WIDTH
    own_high, own_low, own_factor = kept_weights(
        own_ptr, own_gate * WIDTH + line_unit, k, inside & has_own[:, None], WIDTH
    )
    is_upper = layer >= lowest
    if HAS_UPPER:
        below_ptr += tl.maximum(layer - lowest, 0) * GATES * WIDTH * WIDTH
        upper_high, upper_low, upper_factor = kept_weights(
            below_ptr, gate * WIDTH + line_unit, k, inside & has_below[:, None] & is_upper, WIDTH
        )
    bias = tl.load(bias_ptr + (layer * SUMS + gate) * WIDTH + line_unit, mask=line_unit < WIDTH, other=0.0)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    size = rows * WIDTH
    at = row[None, :] * WIDTH + unit[:, None]
    inside = (row < rows)[None, :] & (unit < WIDTH)[:, None]
    x_at = row[None, :] * WIDTH + k[:, None]
    x_inside = (row < rows)[None, :] & (k < WIDTH)[:, None]
    gates_at = row[None, :] * GATES * WIDTH + (gate * WIDTH + line_unit)[:, None]
    gates_inside = (row < rows)[None, :] & (has_below & (line_unit < WIDTH))[:, None] & (layer < lowest)
    state = tl.load(states_ptr + layer * size + at, mask=inside, other=0.0)
    cell = state
    if KIND == "lstm":
        cell = tl.load(cell_ptr + layer * size + at, mask=inside, other=0.0)
    programs = tl.num_programs(0)
    count_ptr += (tl.program_id(2) * layers + layer) * COUNT_STRIDE
    # known from the step before, and one for all rows: scales made of x itself, one a row, took 1 us a step
    x = tl.load(states_ptr + layer * size + x_at, mask=x_inside, other=0.0)
    own_largest = tl.max(tl.abs(x))
    x = tl.load(states_ptr + (layer - 1) * size + x_at, mask=x_inside & is_upper, other=0.0)
    below_largest = tl.maximum(tl.max(tl.abs(x)), 1.0)
    for step in range(0, steps):
        next_ptr = states_ptr + ((step + 1).to(tl.int64) * layers + layer) * size
        gates = gates_ptr + (step.to(tl.int64) * lowest + layer) * size * GATES
        sums = tl.load(gates + gates_at, mask=gates_inside, other=0.0) + bias[:, None]
        if HAS_UPPER:
            if is_upper:
                wait_for(count_ptr - COUNT_STRIDE, (step + 1) * programs)
            x = tl.load(next_ptr - size + x_at, mask=x_inside & is_upper, other=0.0, cache_modifier=".cg")
            sums += products_with(upper_high, upper_low, upper_factor, x, below_largest)
            below_largest = largest_after(x, KIND)
        wait_for(count_ptr, step * programs)
        x = tl.load(next_ptr - layers * size + x_at, mask=x_inside, other=0.0, cache_modifier=".cg")
        sums += products_with(own_high, own_low, own_factor, x, own_largest)
        a, b, c, d = sums, sums, sums, sums
        if SUMS > 1:
            even, odd = tl.split(tl.permute(tl.reshape(sums, [UNITS, 2, 2, ROWS]), (0, 3, 1, 2)))
            a, c = tl.split(even)
            b, d = tl.split(odd)
        state, cell = next_of(a, b, c, d, state, cell, KIND)
        tl.store(next_ptr + at, state, mask=inside, cache_modifier=".cg")
        tl.debug_barrier()
        tl.atomic_add(count_ptr, 1, sem="release", scope="gpu")
        own_largest = largest_after(x, KIND)
    tl.store(last_ptr + layer * size + at, cell, mask=inside)


def recurrent(kind, gates, hidden, cell, below, own, bias, split=False):
    """The states before the first step and after each, of every layer, and an LSTM's last cells. `split`: whether a product
    of float32 may be three of float16 or of TF32."""
    steps, lowest, rows, _ = gates.shape
    layers, _, width = hidden.shape
    states = torch.empty((steps + 1, layers, rows, width), dtype=hidden.dtype, device=hidden.device)
    states[0].copy_(hidden)
    row_block, layer_units = min(max(triton.next_power_of_2(rows), 16), 32), 16 if kind in ("lstm", "gru") else 64
    grid = (triton.cdiv(width, layer_units), layers, triton.cdiv(rows, row_block))
    gpu = torch.cuda.get_device_properties(hidden.device)
    cols, has_upper = max(triton.next_power_of_2(width), 16), layers > lowest
    fits = (256 << has_upper) * cols + 4 * row_block * cols <= gpu.shared_memory_per_block_optin  # weights and states
    all_run = grid[0] * grid[1] * grid[2] <= gpu.multi_processor_count
    if split and fits and all_run and kind != "rnn_relu":
        last = torch.empty_like(cell)
        count = torch.zeros(layers * grid[2] * 32, dtype=torch.int32, device=hidden.device)
        layers_kernel[grid](
            gates, states, cell, last, below, own, bias, count, steps, lowest, rows,
            KIND=kind, GATES=own.shape[1] // width, WIDTH=width, COLS=cols, ROWS=row_block, UNITS=layer_units,
            HAS_UPPER=has_upper, COUNT_STRIDE=32, num_warps=4, launch_cooperative_grid=True,
        )  # fmt: skip
        return states, last
    cells = cell.clone() if kind == "lstm" else cell
    row_block = min(max(triton.next_power_of_2(rows), 16), 64)
    grid = (triton.cdiv(width, UNITS), triton.cdiv(rows, row_block), layers)
    sizes = {"KIND": kind, "GATES": own.shape[1] // width, "WIDTH": width, "ROWS": row_block}
    sizes |= {"UNITS": UNITS, "WIDTH_BLOCK": WIDTH_BLOCK, "INPUT_PRECISION": "tf32x3" if split else "ieee"}
    for launch in range(steps + layers - lowest):
        recurrent_kernel[grid](
            gates, states, cells, below, own, bias, launch, steps, lowest, rows, **sizes, num_warps=STEP_WARPS
        )  # fmt: skip
    return states, cells
