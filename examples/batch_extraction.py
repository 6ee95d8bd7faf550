"""Many short extractions over one instruction, each answer one of a few words.

Run it with ``ramet run examples/batch_extraction.py``. The instruction and its examples are computed once, in
the first step; each sentence costs its own tokens. The answer cannot be anything but one of the choices,
whatever the model would like to say.
"""

from ramet import Engine, SamplingParams
from ramet.runtime.engine import Output
from ramet.runtime.protocol import Choice

INSTRUCTION = """Name the language of each sentence.

Sentence: The weather is nice today.
Language: English

Sentence: Ich habe einen Hund.
Language: German

Sentence: Je voudrais un café.
Language: French

Sentence: Me gusta la música.
Language: Spanish
"""

SENTENCES = [
    "Where is the station?",
    "Wo ist der Bahnhof?",
    "Où est la gare?",
    "¿Dónde está la estación?",
    "Das Brot ist frisch.",
    "Il fait beau aujourd'hui.",
    "My brother lives in London.",
    "Mi hermano vive en Londres.",
    "Können Sie mir bitte helfen?",
    "The train leaves at nine.",
    "Nous avons deux enfants.",
    "El perro duerme en la casa.",
]


def main(engine: Engine) -> list[Output]:
    prompts = [f"{INSTRUCTION}\nSentence: {sentence}\nLanguage:" for sentence in SENTENCES]
    # A choice begins with the space that follows the colon, as a token of the model does.
    choices = Choice((" English", " German", " French", " Spanish"))
    outputs = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=8, grammar=choices))

    for sentence, output in zip(SENTENCES, outputs, strict=True):
        print(f"{output.text.strip():<10}{sentence}")
    num_prompt = sum(output.stats.num_prompt_tokens for output in outputs)
    num_cached = sum(output.stats.num_cached_tokens for output in outputs)
    print(f"\n{num_cached} of {num_prompt} prompt tokens came from the cache")
    return outputs
