"""A trusted kernel in TTIR that warms a fresh compiler."""

TEXT = """
module {
  tt.func public @warm(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %r = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32>
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
    %a = tt.addptr %p, %r : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
    %v = tt.load %a : tensor<256x!tt.ptr<f32>>
    %w = arith.addf %v, %v : tensor<256xf32>
    tt.store %a, %w : tensor<256x!tt.ptr<f32>>
    tt.return
  }
}
"""
