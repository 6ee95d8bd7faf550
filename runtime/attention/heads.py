"""The shape of the heads, shared by the pieces of an attention plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Query heads come in groups that share a KV head: head = kv_head * group_size + member of the group."""

    num_kv_heads: int
    group_size: int
    head_dim: int

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size
