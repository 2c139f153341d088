"""In place of FlagGems' devices: NVIDIA's."""

import types

import torch

device = types.SimpleNamespace(name="cuda", vendor_name="nvidia")
torch_device_fn = torch.cuda
