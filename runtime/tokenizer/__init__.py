"""Text to tokens and back: tokenizers, chat templates, incremental detokenising and stops. No torch."""

from ramet.runtime.tokenizer.byte_tokenizer import ByteTokenizer
from ramet.runtime.tokenizer.chat_encoding import encode_chat
from ramet.runtime.tokenizer.chat_template import ChatTemplate
from ramet.runtime.tokenizer.detokenizer import IncrementalDetokenizer
from ramet.runtime.tokenizer.gguf_tokenizer import spec_from_gguf
from ramet.runtime.tokenizer.hf_tokenizer import spec_from_folder
from ramet.runtime.tokenizer.spec import TokenizerSpec
from ramet.runtime.tokenizer.spelling import Spelling
from ramet.runtime.tokenizer.stops import StopMatcher
from ramet.runtime.tokenizer.tokenizer import FastTokenizer, Segment, Tokenizer

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "FastTokenizer",
    "IncrementalDetokenizer",
    "Segment",
    "Spelling",
    "StopMatcher",
    "Tokenizer",
    "TokenizerSpec",
    "encode_chat",
    "spec_from_folder",
    "spec_from_gguf",
]
