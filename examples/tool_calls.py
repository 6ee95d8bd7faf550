"""Tools: the model calls Python functions, with arguments that fit their hints, and answers from the results.

Run it with ``ramet run examples/tool_calls.py``. The functions' names, hints and docstrings are what the model
is told. A function that fails is reported to the model, which may try again.
"""

from typing import Literal

import ramet
from ramet import Engine, ProgramState

PRICES = {"apple": 0.5, "bread": 3.2, "cheese": 4.0}
STOCK = {"apple": 120, "bread": 0, "cheese": 7}

Product = Literal["apple", "bread", "cheese"]


def price(product: Product) -> float:
    """What one piece costs, in dollars."""
    return PRICES[product]


def reserve(product: Product, count: int) -> str:
    """Puts pieces aside for a customer.

    Args:
        count: how many pieces
    """
    if count > STOCK[product]:
        raise ValueError(f"there are only {STOCK[product]} pieces of {product}")
    return f"{count} pieces of {product} are reserved"


@ramet.function
def shopkeeper(s: ProgramState, wish: str, first: str = "required") -> str:
    s += ramet.system("You keep a shop. You look things up before you answer.")
    s += ramet.user(wish)
    s += ramet.assistant(
        ramet.gen(
            "answer",
            tools=[price, reserve],
            tool_choice=first,
            max_tool_rounds=2,
            max_tokens=80,
            temperature=0,
        )
    )
    return str(s["answer"])


def main(engine: Engine) -> list[ProgramState]:
    wishes = ["How much is one bread?", "Please put 3 pieces of cheese aside for me."]
    states: list[ProgramState] = shopkeeper.run_batch([{"wish": wish} for wish in wishes], backend=engine)
    for wish, state in zip(wishes, states, strict=True):
        print(f"> {wish}")
        for call in state.get_meta_info("answer")["tool_calls"]:
            print(f"  {call['name']}({call['arguments']}) -> {call['error'] or call['result']}")
        print(state["answer"].strip())
    return states
