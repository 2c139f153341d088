"""The author that needs no key: TorchInductor's kernels and our own expert ones, and a search over both."""
