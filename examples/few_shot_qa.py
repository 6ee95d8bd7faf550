"""Few-shot question answering: one long prompt of worked examples, many questions behind it.

Run it with ``ramet run examples/few_shot_qa.py``. The examples are computed once for all questions.
"""

import ramet
from ramet import Engine, ProgramState

SHOTS = [
    ("What is the capital of France?", "Paris"),
    ("Which planet is closest to the sun?", "Mercury"),
    ("How many legs does a spider have?", "Eight"),
    ("What do bees make?", "Honey"),
    ("In which month does the year begin?", "January"),
    ("What gas do plants take in?", "Carbon dioxide"),
    ("Which ocean lies between Europe and America?", "The Atlantic"),
    ("What is frozen water called?", "Ice"),
]
QUESTIONS = [
    "What is the capital of Italy?",
    "Which animal says meow?",
    "What color is grass?",
    "What do cows give?",
    "What is the opposite of hot?",
    "How many days are in a week?",
]


@ramet.function
def answer_question(s: ProgramState, question: str, shots: list[tuple[str, str]] = SHOTS) -> None:
    s += "Answer each question in a few words.\n\n"
    for asked, answered in shots:
        s += f"Question: {asked}\nAnswer: {answered}\n\n"
    s += f"Question: {question}\nAnswer:"
    s += ramet.gen("answer", max_tokens=12, stop="\n", temperature=0)


def main(engine: Engine) -> list[ProgramState]:
    states: list[ProgramState] = answer_question.run_batch(
        [{"question": question} for question in QUESTIONS], backend=engine
    )
    for question, state in zip(QUESTIONS, states, strict=True):
        meta = state.get_meta_info("answer")
        print(f"{question}{state['answer']}")
        print(f"  [{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached]")
    return states
