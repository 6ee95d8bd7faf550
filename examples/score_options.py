"""Multiple choice without generating: how probable is each answer after the question?

Run it with ``ramet run examples/score_options.py``. A question is computed once for all of its answers.
"""

from ramet import Engine

QUESTIONS = [
    ("The capital of France is", [" Paris", " Berlin", " a kind of cheese"]),
    ("The first month of the year is", [" January", " July", " the month after New Year"]),
    ("The opposite of hot is", [" cold", " warm", " Wednesday"]),
    ("Bees make", [" honey", " milk", " bicycles"]),
]


def main(engine: Engine) -> list[str]:
    chosen = []
    for question, options in QUESTIONS:
        # Per token, because a longer answer is less probable just because it is longer.
        scores = engine.score(question, options, normalize=True)
        best = max(scores, key=lambda score: score.score)
        chosen.append(best.text)
        print(question)
        for score in scores:
            mark = "*" if score is best else " "
            print(f"  {mark} {score.score:7.2f}  {score.text.strip()}")
    return chosen
