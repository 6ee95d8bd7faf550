"""Experts: several of them answer a question in parallel, and a summary is made of all they said.

Run it with ``ramet run examples/expert_answers.py``.
"""

import ramet
from ramet import Engine, ProgramState

EXPERTS = ("a doctor", "an economist", "a historian", "a teacher")
QUESTION = "Should cities close their centres to cars?"


@ramet.function
def ask_experts(s: ProgramState, question: str = QUESTION, experts: tuple[str, ...] = EXPERTS) -> str:
    s += ramet.system("You speak for the expert whom you are told to be, in two sentences at most.")
    s += ramet.user(f"The question is: {question}")
    branches = s.fork(len(experts))
    branches += lambda index: ramet.user(f"Answer as {experts[index]}.")
    branches += ramet.assistant(ramet.gen("opinion", max_tokens=32, temperature=0))
    branches.join()
    for expert, opinion in zip(experts, s["opinion"], strict=True):
        s += ramet.user(f"{expert} says: {opinion.strip()}")
    s += ramet.user("What do they agree on? One sentence.")
    s += ramet.assistant(ramet.gen("summary", max_tokens=32, temperature=0))
    return str(s["summary"])


def main(engine: Engine) -> ProgramState:
    state = ask_experts.run(backend=engine)
    for expert, opinion in zip(EXPERTS, state["opinion"], strict=True):
        print(f"{expert}: {opinion.strip()}")
    print(f"Together: {state['summary'].strip()}")
    return state
