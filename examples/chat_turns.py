"""A conversation as a program: each turn goes on from the one before, with the ids that were generated.

Run it with ``ramet run examples/chat_turns.py``.
"""

import ramet
from ramet import Engine, ProgramState

TURNS = (
    "I would like to bake bread. What do I need?",
    "I have no yeast. What else could I use?",
    "And how do I know that it is done?",
)


@ramet.function
def converse(s: ProgramState, turns: tuple[str, ...] = TURNS, max_tokens: int = 24) -> None:
    s += ramet.system("You are a patient baker. Answer in one or two sentences.")
    for number, turn in enumerate(turns):
        s += ramet.user(turn)
        s += ramet.assistant(ramet.gen(f"answer{number}", max_tokens=max_tokens, temperature=0))


def main(engine: Engine) -> ProgramState:
    state = converse.run(backend=engine)
    for number, turn in enumerate(TURNS):
        meta = state.get_meta_info(f"answer{number}")
        print(f"> {turn}\n{state[f'answer{number}'].strip()}")
        print(f"  [{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached]")
    return state
