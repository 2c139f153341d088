"""FlagGems' rotary embedding, which wants the heads of a token together: copied there, as library work."""

from torch import nn

PUBLIC = {"gems": {"fused/rotary_embedding.py": ["apply_rotary_pos_emb"]}}


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)
