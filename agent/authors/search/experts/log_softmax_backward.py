# says: a row's logits in registers where they fit, else a second walk that finds them in the L2
# gradients: x = log_softmax_backward(gradient, x) of torch.log_softmax(x, -1)
# gradients: x = log_softmax_backward(gradient, x) of torch.log_softmax(x, 1) where x: R C
# gradients: x = cross_entropy_backward(gradient, x, target) of F.cross_entropy(x, target, reduction="none") where x: R C, target: R
# gradients: x = mean_cross_entropy_backward(gradient, x, target) of F.cross_entropy(x, target) where x: R C, target: R
# gradients: x = mean_cross_entropy_backward(gradient, x, target) of F.cross_entropy(x.view(_, _), target.view(_)) where x: ... C, target: ...
# gradients: x = mean_cross_entropy_backward(gradient, x, target) of F.cross_entropy(x.flatten(0, 1), target.flatten()) where x: B T C, target: B T
# search: BLOCK = 4096 8192
# search: NUM_WARPS = 8 16 32
"""Backward of log-softmax, dx = dy - softmax(x) sum(dy), and of cross entropy, dx = dloss (softmax(x) - [target]), from
x alone: nothing of the forward is kept. Of a mean, every row that counts has the same dloss, which a first kernel finds.

A program has a row. Up to 32768 columns stay in registers from the first read to the end, 64 of them a thread at 16
warps, so that two programs share a multiprocessor: one loads while the other stores. Longer rows are walked over twice.
A row's logits are the last to leave the L2 and its gradients the first, so the second walk seldom goes to memory: the
rows under way on an H200 are 34 MB of 128256 bfloat16.
"""

BLOCK = 4096  # columns a step, of a row that is walked over
NUM_WARPS = 16
NUM_STAGES = 3


@triton.jit
def exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def whole_row_kernel(
    dy_ptr, x_ptr, target_ptr, dx_ptr, cols, step, ignored, LOSS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    dx_ptr += row * cols
    column = tl.arange(0, COLS)
    inside = column < cols
    if LOSS:
        target = tl.load(target_ptr + row)
        share = tl.where(target == ignored, 0.0, tl.load(dy_ptr + row * step).to(tl.float32))
    else:
        dy_ptr += row * cols
        dy = tl.load(dy_ptr + column, mask=inside, other=0.0, eviction_policy="evict_last")
        share = tl.sum(dy.to(tl.float32), axis=0)
    x = tl.load(x_ptr + column, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
    grown = exp(x - tl.max(x, axis=0))
    grown *= share / tl.sum(grown, axis=0)
    if LOSS:
        dx = grown - tl.where(column == target, share, 0.0)
    else:
        dx = tl.load(dy_ptr + column, mask=inside, other=0.0).to(tl.float32) - grown
    tl.store(dx_ptr + column, dx, mask=inside, eviction_policy="evict_first")


@triton.jit
def walk_kernel(
    dy_ptr, x_ptr, target_ptr, dx_ptr, cols, step, ignored, LOSS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    dx_ptr += row * cols
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    passed = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # a lane that has seen only -inf adds nothing
        total = total * exp(top - safe) + exp(x - safe)
        top = higher
        if not LOSS:
            passed += tl.load(
                dy_ptr + row * cols + column, mask=column < cols, other=0.0, eviction_policy="evict_last"
            ).to(tl.float32)
    row_top = tl.max(top, axis=0)
    row_total = tl.sum(total * exp(top - row_top), axis=0)
    if LOSS:
        target = tl.load(target_ptr + row)
        share = tl.where(target == ignored, 0.0, tl.load(dy_ptr + row * step).to(tl.float32))
    else:
        target = -1
        share = tl.sum(passed, axis=0)
    factor = share / row_total
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy="evict_first")
        dx = exp(x.to(tl.float32) - row_top) * factor
        if LOSS:
            dx -= tl.where(column == target, share, 0.0)
        else:
            dy = tl.load(dy_ptr + row * cols + column, mask=column < cols, other=0.0, eviction_policy="evict_first")
            dx = dy.to(tl.float32) - dx
        tl.store(dx_ptr + column, dx, mask=column < cols, eviction_policy="evict_first")


@triton.jit
def share_kernel(gradient_ptr, target_ptr, share_ptr, rows, ignored, BLOCK: tl.constexpr):
    counted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        target = tl.load(target_ptr + row, mask=row < rows, other=0)
        counted += tl.where((row < rows) & (target != ignored), 1.0, 0.0)
    tl.store(share_ptr, tl.load(gradient_ptr).to(tl.float32) / tl.sum(counted, axis=0))


def rows_backward(gradient, x, target, step=1):
    gradient, x = gradient.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    loss = target is not None
    if block <= 32768:
        warps = max(1, min(NUM_WARPS, block // 256), block // 2048)  # at most 64 columns a thread
        whole_row_kernel[(rows,)](gradient, x, target, dx, cols, step, -100, LOSS=loss, COLS=block, num_warps=warps)
    else:
        walk_kernel[(rows,)](
            gradient, x, target, dx, cols, step, -100,
            LOSS=loss, BLOCK=BLOCK, STAGES=NUM_STAGES, num_warps=NUM_WARPS,
        )  # fmt: skip
    return dx


def log_softmax_backward(gradient, x):
    return rows_backward(gradient, x, None)


def cross_entropy_backward(gradient, x, target):
    return rows_backward(gradient, x, target.contiguous())


def mean_cross_entropy_backward(gradient, x, target):
    target = target.contiguous()
    share = torch.empty((), dtype=torch.float32, device=x.device)
    share_kernel[(1,)](gradient, target, share, target.numel(), -100, BLOCK=4096, num_warps=16)
    return rows_backward(share, x, target, step=0)
