"""JSON from text: a dataclass says what is wanted, and the answer is an instance of it.

Run it with ``ramet run examples/json_extraction.py``. The model is held to the dataclass's JSON schema,
token by token, so that the answer always parses. The bounds of its fields keep the answer short, whatever the
model would like to say.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

import ramet
from ramet import Engine, ProgramState

TEXTS = [
    "The Grand Hotel in Bergen has 131 rooms, a sauna and a very good breakfast. We paid too much, though.",
    "Pension Rosa is small, 12 rooms, close to the station of Ulm. Loud at night, but cheap and clean.",
    "At the Lakeside Inn in Bled they have 40 rooms and boats for all guests. We shall come again!",
]


@dataclass
class Hotel:
    name: Annotated[str, Meta(max_length=32)]
    town: Annotated[str, Meta(max_length=32)]
    rooms: Annotated[int, Meta(ge=1, le=999)]
    opinion: Literal["good", "mixed", "bad"]


@ramet.function
def extract(s: ProgramState, text: str) -> None:
    s += ramet.system("You turn texts into data. You answer with JSON only.")
    s += ramet.user(
        "Read the text, and give the hotel's name, its town, how many rooms it has, and whether the writer's "
        f"opinion is good, mixed or bad.\n\nText: {text}"
    )
    s += ramet.assistant(ramet.gen("hotel", json_schema=Hotel, max_tokens=80, temperature=0))


def main(engine: Engine) -> list[Hotel]:
    states = extract.run_batch([{"text": text} for text in TEXTS], backend=engine)
    hotels: list[Hotel] = [state["hotel"] for state in states]
    for hotel in hotels:
        print(hotel)
    return hotels
