"""A program of several calls on one document: three questions at once, then a title.

Run it with ``ramet run examples/research_note.py [text file]``. All calls begin with the same document, so
it is computed once: the three answers are decoded side by side and read it from the cache.
"""

from pathlib import Path

from ramet import Engine, SamplingParams
from ramet.runtime.engine import Output

DOCUMENT = """Coral reefs cover less than one percent of the ocean floor, yet about a quarter of all marine
species live on them. Reefs are built by small animals called polyps, which take calcium from the
water and leave a stony skeleton. Inside the polyps live algae that turn sunlight into sugar and
give the reef its colours. When the water stays too warm for several weeks, the polyps push the
algae out and turn white: the reef bleaches. A bleached reef is not dead, but it starves unless the
water cools. Besides warm water, reefs suffer from dynamite fishing, from fertiliser that rivers
carry into the sea, and from the acid that forms when sea water takes up carbon dioxide. Reefs
protect coasts from storms, feed half a billion people, and bring visitors. Protected areas, cleaner
rivers and nurseries where corals are grown and planted out again help, but without slower warming
most reefs will be gone within the century."""

QUESTIONS = ["What are coral reefs made of?", "Why do reefs bleach?", "What can people do to help?"]


def ask(question: str, document: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"Answer from this text.\n\n{document}"},
        {"role": "user", "content": question},
    ]


def main(engine: Engine, path: str | None = None) -> list[Output]:
    document = Path(path).read_text(encoding="utf-8") if path else DOCUMENT
    params = SamplingParams(temperature=0, max_tokens=60)

    # Three calls that do not need each other run at once. One of them computes the document, in the first step.
    answers = engine.generate(
        messages=[ask(question, document) for question in QUESTIONS], sampling_params=params
    )
    for question, answer in zip(QUESTIONS, answers, strict=True):
        show(question, answer)

    # The last call needs the others' answers.
    notes = "\n".join(answer.text for answer in answers)
    title = engine.generate(
        messages=ask(f"Notes:\n{notes}\n\nWrite a short title for these notes.", document),
        sampling_params=params,
    )
    show("Title", title)
    return [*answers, title]


def show(label: str, output: Output) -> None:
    stats = output.stats
    print(f"{label}\n  {output.text.strip()}")
    print(
        f"  [{stats.num_prompt_tokens} prompt tokens, {stats.num_cached_tokens} from the cache; "
        f"{stats.num_output_tokens} generated in {stats.e2e:.2f} s]\n"
    )
