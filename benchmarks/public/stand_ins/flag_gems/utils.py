"""In place of FlagGems' caches of launches and of tuning: Triton's own."""

import types

import torch
import triton
from triton.language.extra import libdevice as tl_extra_shim

from flag_gems.utils.shape_utils import broadcastable_to, dim_compress
from flag_gems.utils.triton_lang_extension import num_programs, program_id


def libentry():
    return lambda kernel: kernel


def libtuner(configs, key, **_):
    return triton.autotune(configs=configs, key=key)


def get_device_properties(index):
    return torch.cuda.get_device_properties(index)


def _module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    return made


triton_lang_extension = _module("triton_lang_extension", program_id=program_id, num_programs=num_programs)
