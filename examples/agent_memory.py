"""Generative agents: people with a memory, who rate what they see, remember what matters, and act on it.

Run it with ``ramet run examples/agent_memory.py``. After "Generative Agents" (arXiv 2304.03442): each
observation is rated from 1 to 10, the best rated ones are what the agent reflects on, and it acts on that.
"""

import ramet
from ramet import Engine, ProgramState

PEOPLE = {
    "Ada": "Ada is a gardener. She is quiet, gets up early, and knows everybody's plants.",
    "Ben": "Ben runs the café at the corner. He talks a lot and wants to win the cake contest.",
    "Eve": "Eve is a student of music. She is always late, and plays the violin at night.",
}
OBSERVATIONS = (
    "The café is closed today.",
    "Somebody has cut down the old apple tree.",
    "It has begun to rain.",
)
WORLD = (
    "This is a small town with one square, one café, a music school and many gardens. People here meet in the "
    "morning at the fountain and know each other well. What happens to one is soon known by all."
)
RATINGS = tuple(map(str, range(1, 11)))


@ramet.function
def live_a_day(
    s: ProgramState, name: str, observations: tuple[str, ...] = OBSERVATIONS, remembered: int = 2
) -> str:
    s += ramet.system(WORLD)
    s += ramet.user(f"You are {name}. {PEOPLE[name]}")
    ratings = s.fork(len(observations))
    for branch, observation in zip(ratings, observations, strict=True):
        branch += ramet.user(f"You see: {observation} How important is this to you, from 1 to 10?")
        branch += ramet.assistant(ramet.select("rating", RATINGS))
    rated = [(int(branch["rating"]), text) for branch, text in zip(ratings, observations, strict=True)]
    memory = [text for _, text in sorted(rated, key=lambda item: -item[0])[:remembered]]
    s += ramet.user("You remember: " + " ".join(memory) + " What does it mean to you? One sentence.")
    s += ramet.assistant(ramet.gen("reflection", max_tokens=24, temperature=0))
    s += ramet.user("What do you do next? One sentence.")
    s += ramet.assistant(ramet.gen("action", max_tokens=24, temperature=0))
    return str(s["action"])


def main(engine: Engine) -> list[ProgramState]:
    states: list[ProgramState] = live_a_day.run_batch([{"name": name} for name in PEOPLE], backend=engine)
    for name, state in zip(PEOPLE, states, strict=True):
        print(f"{name} thinks: {state['reflection'].strip()}\n  and does: {state['action'].strip()}")
    return states
