"""Many short extractions over one instruction, each answer one of a few words.

Run it with ``ramet run examples/batch_extraction.py``. The instruction and its examples are computed once, in
the first step; each review costs its own tokens. The answer cannot be anything but one of the choices, whatever
the model would like to say.
"""

from ramet import Engine, SamplingParams
from ramet.runtime.engine import Output
from ramet.runtime.protocol import Choice

INSTRUCTION = """Classify the review of a product as positive, negative or mixed.

Review: I love it, it works every day and looks great.
Class: positive

Review: It broke after two days and nobody answered my mails.
Class: negative

Review: Good sound, but the battery is empty after an hour.
Class: mixed
"""

REVIEWS = [
    "Arrived on time, easy to set up, does what it should.",
    "The handle fell off the first time I used it.",
    "Nice colour. The fabric is thinner than I expected.",
    "Best pan I have ever had.",
    "Smells of chemicals even after washing it three times.",
    "Fast and quiet, although the manual is hard to read.",
    "My daughter uses it every day and is happy with it.",
    "It never turned on. I want my money back.",
    "Great lens, poor case.",
    "I bought a second one for my parents.",
    "The app asks for a password again and again.",
    "Exactly as described.",
]


def main(engine: Engine) -> list[Output]:
    prompts = [f"{INSTRUCTION}\nReview: {review}\nClass:" for review in REVIEWS]
    # A choice begins with the space that follows the colon, as a token of the model does.
    choices = Choice((" positive", " negative", " mixed"))
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=8, grammar=choices))

    for review, output in zip(REVIEWS, outputs, strict=True):
        print(f"{output.text.strip():<10}{review}")
    num_prompt = sum(output.stats.num_prompt_tokens for output in outputs)
    num_cached = sum(output.stats.num_cached_tokens for output in outputs)
    print(f"\n{num_cached} of {num_prompt} prompt tokens came from the cache")
    return outputs
