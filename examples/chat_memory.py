"""A conversation: each turn sends the whole history, and pays for what is new in it.

Run it with ``ramet run examples/chat_memory.py``.
"""

from ramet import Engine, SamplingParams
from ramet.runtime.engine import Output

TURNS = [
    "My name is Ada and I grow tomatoes on my balcony.",
    "The leaves are turning yellow. What could be the reason?",
    "How often should I water them?",
    "What is my name, and what do I grow?",
]


def main(engine: Engine) -> list[Output]:
    params = SamplingParams(temperature=0, max_tokens=48)
    messages = [{"role": "system", "content": "You are a friendly gardener. Answer in one or two sentences."}]
    answers = []
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        answer = engine.chat(messages, params)
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer)

        stats = answer.stats
        print(f"> {turn}\n{answer.text.strip()}")
        print(f"  [{stats.num_prompt_tokens} prompt tokens, {stats.num_cached_tokens} of them cached]\n")
    return answers
