import torch
import torch.nn as nn


class Model(nn.Module):
    """
    One step of an LSTM: gates from two products, new cell and hidden state.

    Source: lstm_cell of PyTorch's fastrnns, github.com/pytorch/pytorch, benchmarks/fastrnns/cells.py;
    Hochreiter and Schmidhuber 1997
    """

    def __init__(self, inputs, hidden):
        super().__init__()
        self.w_x = nn.Linear(inputs, 4 * hidden)
        self.w_h = nn.Linear(hidden, 4 * hidden)

    def forward(self, x, h, c):
        """x: (batch, inputs), h, c: (batch, hidden), float32. Returns the new h and c."""
        i, f, g, o = (self.w_x(x) + self.w_h(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


batch_size = 4096
inputs = 1024
hidden = 1024


def get_inputs():
    return [torch.randn(batch_size, inputs), torch.randn(batch_size, hidden), torch.randn(batch_size, hidden)]


def get_init_inputs():
    return [inputs, hidden]
