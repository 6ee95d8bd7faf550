"""Tree of thought: several thoughts at a time, a vote on each, and on from the best ones.

Run it with ``ramet run examples/tree_of_thought.py``. All branches of a level run at once; they share the
problem and the thoughts above them. A vote is a select, whose scores say how sure the model is.
"""

import ramet
from ramet import Engine, ProgramState, ProgramStateGroup

PROBLEM = (
    "A farmer must bring a wolf, a goat and a cabbage across a river. The boat carries the farmer and one "
    "more. Alone, the wolf eats the goat and the goat eats the cabbage. How does everything get across?"
)


@ramet.function
def solve_by_tree(
    s: ProgramState, problem: str = PROBLEM, branches: int = 3, depth: int = 2, kept: int = 1
) -> str:
    s += ramet.system("You solve problems one short step at a time.")
    s += ramet.user(f"{problem}\nGive one first step.")
    frontier: list[tuple[float, ProgramState]] = [(0.0, s)]
    for level in range(depth):
        forks = [(score, state.fork(branches)) for score, state in frontier]
        for _, group in forks:
            think(group, level)
        voted = [(score + promise(child), child) for score, group in forks for child in group]
        frontier = sorted(voted, key=lambda scored: scored[0], reverse=True)[:kept]
    best = frontier[0][1]
    best += ramet.user("Now give the whole solution in one sentence.")
    best += ramet.assistant(ramet.gen("solution", max_tokens=32, temperature=0))
    s["path"] = best["step"]
    s["solution"] = best["solution"]
    return str(best["solution"])


def think(group: ProgramStateGroup, level: int) -> None:
    """Each branch makes a step of its own, and votes on it."""
    for number, branch in enumerate(group):
        step = ramet.gen("step", max_tokens=24, temperature=0.8, seed=100 * level + number)
        branch += ramet.assistant(step)
        branch += ramet.user("Is this a good step? Answer yes or no.")
        branch += ramet.assistant(ramet.select("vote", ["yes", "no"]))
        branch += ramet.user("Give one next step.")


def promise(branch: ProgramState) -> float:
    """How much more the model believes in yes than in no."""
    yes, no = branch.get_meta_info("vote")["scores"]
    return float(yes - no)


def main(engine: Engine) -> ProgramState:
    state = solve_by_tree.run(backend=engine)
    print(f"Last step: {state['path'].strip()}\nSolution: {state['solution'].strip()}")
    stats = engine.stats()
    print(f"[{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens came from the cache]")
    return state
