"""TokenizerSpec on its way to disk and back, and the tokens that end a turn."""

import msgspec
import pytest

from ramet.runtime.tokenizer.spec import END_OF_TURN_TEXTS, TokenizerSpec, end_of_turn_ids
from ramet.runtime.tokenizer.spelling import Spelling

SMALL = TokenizerSpec(tokenizer_json="{}", num_tokens=3, vocab_size=4, spelling=Spelling("byte_level"))


class TestSpec:
    def test_every_field_survives_the_disk(self) -> None:
        spec = TokenizerSpec(
            tokenizer_json='{"é": 1}',
            num_tokens=9,
            vocab_size=16,
            spelling=Spelling("sentencepiece", byte_fallback=True, leading_space=True),
            chat_template="{{ x }}",
            named_chat_templates={"tool_use": "T"},
            bos_id=1,
            eos_id=2,
            unk_id=0,
            pad_id=3,
            eos_token_ids=(2, 5),
            special_token_ids=(0, 1, 2, 3),
            unused_token_ids=(8,),
            add_bos=True,
            special_token_names={"bos_token": "<s>"},
        )
        changed = [name for name in spec.__struct_fields__ if getattr(spec, name) != getattr(SMALL, name)]
        assert changed == list(spec.__struct_fields__)
        for packed in (msgspec.msgpack.encode(spec), msgspec.msgpack.encode(SMALL)):
            back = msgspec.msgpack.decode(packed, type=TokenizerSpec)
            assert msgspec.msgpack.encode(back) == packed
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TokenizerSpec) == spec

    def test_specs_share_no_defaults(self) -> None:
        other = msgspec.structs.replace(SMALL)
        assert msgspec.convert(msgspec.to_builtins(SMALL), TokenizerSpec).special_token_names is not (
            other.special_token_names
        )

    def test_is_frozen_and_named(self) -> None:
        with pytest.raises(AttributeError):
            SMALL.vocab_size = 5  # type: ignore[misc]
        with pytest.raises(TypeError):
            TokenizerSpec("{}", 3, 4, Spelling("byte_level"))  # type: ignore[call-arg]

    @pytest.mark.parametrize("field", ["tokenizer_json", "num_tokens", "vocab_size", "spelling"])
    def test_a_spec_that_lacks_a_field_is_not_read(self, field: str) -> None:
        fields = msgspec.to_builtins(SMALL)
        del fields[field]
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.convert(fields, TokenizerSpec)


class TestEndOfTurn:
    def test_declared_ones_come_first_each_once(self) -> None:
        special = {"<|im_end|>": 7, "<|endoftext|>": 3, "<|im_start|>": 6}
        assert end_of_turn_ids(special, [9, 7, 9]) == (9, 7, 3)
        assert end_of_turn_ids(special, []) == (7, 3)
        assert end_of_turn_ids({}, [4, 4]) == (4,)
        assert end_of_turn_ids({}, []) == ()

    @pytest.mark.parametrize("text", END_OF_TURN_TEXTS)
    def test_every_known_text_ends_a_turn(self, text: str) -> None:
        assert end_of_turn_ids({"<other>": 1, text: 5}, ()) == (5,)

    def test_token_0_may_end_a_turn(self) -> None:
        assert end_of_turn_ids({"<|endoftext|>": 0}, ()) == (0,)

    def test_end_closes_a_message_only_in_harmony(self) -> None:
        harmony = {"<|end|>": 1, "<|return|>": 2, "<|call|>": 3}
        assert end_of_turn_ids(harmony, ()) == (2, 3)
        assert end_of_turn_ids(harmony, [1]) == (1, 2, 3)
        assert end_of_turn_ids({"<|end|>": 1, "<|return|>": 2}, ()) == (1, 2)
        assert end_of_turn_ids({"<|end|>": 1, "<|call|>": 3}, ()) == (1, 3)
        assert end_of_turn_ids({"<|end|>": 1}, ()) == (1,)
