"""Layers of a decoder. They are built from values and weights, and know no config and no cache."""

from ramet.runtime.layers.attention import AttentionBlock
from ramet.runtime.layers.decoder_layer import DecoderLayer
from ramet.runtime.layers.embedding import Embedding, FloatEmbedding, Int8Embedding
from ramet.runtime.layers.linear import FloatLinear, Int8Linear, Int16Linear, Linear, linear_from, linear_of
from ramet.runtime.layers.mlp import MLP, GatedMLP
from ramet.runtime.layers.moe import FusedSparseMLP, SparseMLP
from ramet.runtime.layers.norm import RMSNorm
from ramet.runtime.layers.rotary import RotaryTable

__all__ = [
    "MLP",
    "AttentionBlock",
    "DecoderLayer",
    "Embedding",
    "FloatEmbedding",
    "FloatLinear",
    "FusedSparseMLP",
    "GatedMLP",
    "Int8Embedding",
    "Int8Linear",
    "Int16Linear",
    "Linear",
    "RMSNorm",
    "RotaryTable",
    "SparseMLP",
    "linear_from",
    "linear_of",
]
