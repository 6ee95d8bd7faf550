import torch

from ramet.kernels import attention
from ramet.runtime.forward import AttentionSpec
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch

CPU = torch.device("cpu")
SPEC = AttentionSpec(layer_id=0, scale=0.5, sliding_window=4, softcap=2.0)


def heads(num_tokens: int, num_heads: int, seed: int) -> torch.Tensor:
    return torch.randn((num_tokens, num_heads, 8), generator=torch.Generator().manual_seed(seed))


def test_rows_attend_to_their_own_past_only() -> None:
    q, k, v = heads(9, 4, 1), heads(9, 2, 2), heads(9, 2, 3)
    whole = attention(q, k, v, scale=0.5, sliding_window=4, softcap=2.0)
    sequence, other = DenseSequence(), DenseSequence()
    first = dense_batch([(sequence, [1] * 5)], CPU).attention
    part = first(q[:5], k[:5], v[:5], SPEC)
    branch = sequence.copy()
    second = dense_batch([(other, [1] * 2), (sequence, [1] * 4)], CPU).attention
    mixed_q, mixed_k, mixed_v = (torch.cat((tensor[:2], tensor[5:])) for tensor in (q, k, v))
    mixed = second(mixed_q, mixed_k, mixed_v, SPEC)
    assert torch.allclose(torch.cat((part, mixed[2:])), whole, atol=1e-6)
    assert torch.allclose(mixed[:2], whole[:2], atol=1e-6)
    again = dense_batch([(branch, [1] * 4)], CPU).attention(q[5:], k[5:], v[5:], SPEC)
    assert torch.allclose(again, whole[5:], atol=1e-6)


def test_batches_count_positions_and_name_the_wanted_logits() -> None:
    a, b = DenseSequence(num_computed_tokens=7), DenseSequence()
    batch = dense_batch([(a, [4, 5]), (b, [6, 7, 8])], CPU, all_logits=False)
    assert batch.input_ids.tolist() == [4, 5, 6, 7, 8]
    assert batch.positions.tolist() == [7, 8, 0, 1, 2]
    assert batch.logit_indices.tolist() == [1, 4]
    assert (a.num_computed_tokens, b.num_computed_tokens) == (9, 3)
    assert dense_batch([(a, [4])], CPU).logit_indices.tolist() == [0]
