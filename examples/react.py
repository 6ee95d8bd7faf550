"""ReAct: the model thinks, asks a local tool, reads what it says, and thinks on.

Run it with ``ramet run examples/react.py``. The term to search for is selected among those that there are. What
the program says after the tool has answered goes on from the prompt so far, so a round costs its own tokens
only.
"""

import ramet
from ramet import Engine, ProgramState

FACTS = {
    "coral reef": "Coral reefs are built by colonies of small animals called polyps, which make limestone.",
    "polyp": "A polyp is a soft animal a few millimetres wide. It lives together with algae.",
    "algae": "Algae make sugar from light. When the water is too warm, polyps lose their algae and turn white.",
    "honey": "Honey is made by bees from nectar. It keeps for years.",
    "moon": "The moon is 384,000 kilometres away and takes 27 days to go around the earth.",
}
EXAMPLE = """Question: What do the animals that make honey drink?
Thought 1: I need to find out which animals make honey.
Action 1: Search[honey]
Observation 1: Honey is made by bees from nectar. It keeps for years.
Thought 2: Bees make honey, and they make it from nectar, so they drink nectar.
Action 2: Finish[nectar]
"""
QUESTIONS = ["Why do coral reefs turn white?", "How far away is the moon?"]


def search(term: str) -> str:
    """What the encyclopedia says of a term."""
    return FACTS[term]


@ramet.function
def react(s: ProgramState, question: str, max_rounds: int = 3) -> str:
    s += "Answer with thoughts, actions and observations. Actions are Search[term] and Finish[answer].\n"
    s += f"{EXAMPLE}Question: {question}\n"
    for number in range(1, max_rounds + 1):
        s += f"Thought {number}:" + ramet.gen("thought", max_tokens=40, stop="\n", temperature=0)
        s += f"\nAction {number}: "
        if number == max_rounds:
            s += "Finish"
            break
        if number == 1:
            s += "Search"
            s["action"] = "Search"
        else:
            s += ramet.select("action", ["Search", "Finish"])
        if s["action"] == "Finish":
            break
        s += "[" + ramet.select("term", list(FACTS)) + "]\n"
        s += f"Observation {number}: {search(s['term'])}\n"
    s += "[" + ramet.gen("answer", max_tokens=24, stop=["]", "\n"], temperature=0) + "]"
    return str(s["answer"])


def main(engine: Engine) -> list[ProgramState]:
    states = [react.run(question, backend=engine) for question in QUESTIONS]
    for state in states:
        print(state.text().split(EXAMPLE)[1], "\n")
    return states
