from ramet.runtime.engine.results import Completion, Output
from ramet.runtime.protocol import FinishReason, Logprob, RequestStats, TokenLogprobs


def completion(index: int, error: str | None = None) -> Completion:
    return Completion(
        index=index,
        text=f"text {index}",
        token_ids=[index],
        finish_reason=FinishReason.STOP if error is None else FinishReason.ERROR,
        stop_reason=index,
        logprobs=[TokenLogprobs(Logprob(index, -1.0, 0))],
        stats=RequestStats(num_output_tokens=index),
        error=error,
    )


def test_an_output_speaks_of_its_first_answer() -> None:
    output = Output(request_id="r", prompt_token_ids=[1], outputs=[completion(0), completion(1)])
    first = output.outputs[0]
    assert (output.text, output.token_ids, output.logprobs) == ("text 0", [0], first.logprobs)
    assert (output.finish_reason, output.stop_reason, output.stats) == (FinishReason.STOP, 0, first.stats)
    assert output.error is None


def test_the_error_of_any_answer_is_the_outputs() -> None:
    output = Output(request_id="r", prompt_token_ids=[1], outputs=[completion(0), completion(1, "on fire")])
    assert output.error == "on fire"
