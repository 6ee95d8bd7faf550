"""Skeleton of thought: first the points of an answer, then all of them are written at once.

Run it with ``ramet run examples/skeleton_of_thought.py``. The branches share the question and the skeleton,
and what they said is gathered in their order.
"""

import ramet
from ramet import Engine, ProgramState

QUESTION = "What should one think of before getting a dog?"


@ramet.function
def write_by_skeleton(s: ProgramState, question: str = QUESTION, num_points: int = 3) -> list[str]:
    s += ramet.system("You give helpful, well ordered answers.")
    s += ramet.user(f"{question} List {num_points} points, a few words each.")
    with s.assistant():
        for number in range(1, num_points + 1):
            s += f"{number}." + ramet.gen(f"point{number}", max_tokens=12, stop="\n", temperature=0) + "\n"
    branches = s.fork(num_points)
    for number, branch in enumerate(branches, start=1):
        branch += ramet.user(f"Write one or two sentences about point {number}.")
        branch += ramet.assistant(ramet.gen("text", max_tokens=40, temperature=0))
    branches.join("gather_variable")
    return [str(text).strip() for text in s["text"]]


def main(engine: Engine) -> list[str]:
    state = write_by_skeleton.run(backend=engine)
    for number, text in enumerate(state.ret_value, start=1):
        print(f"{number}. {state[f'point{number}'].strip()}\n   {text}")
    return list(state.ret_value)
