import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Softmax of attention scores with a learned bias for each bucket of distances.

    Source: T5Attention, github.com/huggingface/transformers, src/transformers/models/t5/modeling_t5.py; Raffel
    et al. 2020 (arXiv:1910.10683)
    """

    def __init__(self, heads, length, buckets, max_distance):
        super().__init__()
        self.bias = nn.Embedding(buckets, heads)
        place = torch.arange(length)
        self.register_buffer("bucket", self._bucket(place[None, :] - place[:, None], buckets // 2, max_distance))

    @staticmethod
    def _bucket(distance, half, max_distance):
        """Half of the buckets for each direction: near ones exactly, far ones by their logarithm."""
        exact = half // 2
        far = distance.abs().clamp(min=1).float() / exact
        log = exact + (torch.log(far) / torch.log(torch.tensor(max_distance / exact)) * (half - exact)).long()
        near = distance.abs()
        return (distance > 0).long() * half + torch.where(near < exact, near, log.clamp(max=half - 1))

    def forward(self, scores):
        """scores: (batch, heads, length, length) float32."""
        bias = self.bias(self.bucket).permute(2, 0, 1).unsqueeze(0)
        return torch.softmax(scores + bias, dim=-1)


batch_size = 8
heads = 12
length = 1024
buckets = 32
max_distance = 128


def get_inputs():
    return [torch.randn(batch_size, heads, length, length)]


def get_init_inputs():
    return [heads, length, buckets, max_distance]
