"""GSM8K by chain of thought: worked examples, then the model reasons and says a number.

Run it with ``ramet run examples/math_word_problems.py``. The number is a call of its own that goes on from the
reasoning, so its prompt is in the cache already.
"""

import re

import ramet
from ramet import Engine, ProgramState

SHOTS = [
    (
        "There are 15 trees in the grove. Workers plant trees today. Afterwards there are 21 trees. How many "
        "did they plant?",
        "There were 15 trees and then 21. They planted 21 - 15 = 6 trees.",
        "6",
    ),
    (
        "Leah had 32 chocolates and her sister had 42. They ate 35. How many pieces are left?",
        "Together they had 32 + 42 = 74 chocolates. After eating 35 there are 74 - 35 = 39.",
        "39",
    ),
    (
        "A pen costs 2 dollars and a notebook 5. How much are 3 pens and 2 notebooks?",
        "3 pens cost 3 * 2 = 6 dollars and 2 notebooks 2 * 5 = 10 dollars. Together that is 6 + 10 = 16.",
        "16",
    ),
]
PROBLEMS = [
    ("Tom has 3 apples and buys 5 more. How many apples does he have?", "8"),
    ("A box holds 6 eggs. How many eggs are in 4 boxes?", "24"),
    ("Mia had 10 stickers and gave 4 to Ben. How many are left?", "6"),
    ("A train goes 60 miles an hour. How far does it go in 2 hours?", "120"),
]


@ramet.function
def solve(s: ProgramState, problem: str) -> None:
    s += "Solve each problem step by step, then give the number.\n\n"
    for asked, reasoning, number in SHOTS:
        s += f"Problem: {asked}\nReasoning: {reasoning}\nAnswer: {number}\n\n"
    s += f"Problem: {problem}\nReasoning:"
    s += ramet.gen("reasoning", max_tokens=48, stop=["\nAnswer", "\n\n"], temperature=0)
    s += "\nAnswer:" + ramet.gen("number", max_tokens=8, stop="\n", temperature=0)


def number_in(text: str) -> str | None:
    """The first number in an answer."""
    found = re.search(r"-?\d[\d,]*(\.\d+)?", text)
    return None if found is None else found[0].replace(",", "")


def main(engine: Engine) -> int:
    states = solve.run_batch([{"problem": problem} for problem, _ in PROBLEMS], backend=engine)
    num_right = 0
    for (problem, expected), state in zip(PROBLEMS, states, strict=True):
        found = number_in(state["number"])
        num_right += found == expected
        print(f"{problem}\n {state['reasoning'].strip()}\n => {found} (expected {expected})")
    print(f"{num_right} of {len(PROBLEMS)} right")
    return num_right
