"""Any tree of forks and joins gives what one branch after the other would give."""

import zlib
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ramet.lang import ProgramState, function, gen, select
from ramet.lang.backends.scripted import Reply, ScriptedBackend

OPTIONS = (" yes", " no", " perhaps")


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Generate:
    name: str | None


@dataclass(frozen=True)
class Choose:
    name: str


@dataclass(frozen=True)
class Scope:
    name: str
    steps: tuple["Step", ...]


@dataclass(frozen=True)
class Fork:
    branches: tuple[tuple["Step", ...], ...]
    mode: str


@dataclass(frozen=True)
class Read:
    """Says a variable's value, where there is one."""

    name: str


Step = Say | Generate | Choose | Scope | Fork | Read

NAMES = ("a", "b", "c", "p", "q")

names = st.sampled_from(["a", "b", "c"])
leaf = st.one_of(
    st.builds(Say, st.sampled_from(["", "x", " tree", "\n"])),
    st.builds(Generate, st.one_of(st.none(), names)),
    st.builds(Choose, st.sampled_from(["p", "q"])),
    st.builds(Read, st.sampled_from(NAMES)),
)


def inner(step: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    steps = st.lists(step, max_size=3).map(tuple)
    modes = st.sampled_from(["gather_variable", "concate_and_append", "none"])
    return st.one_of(
        st.builds(Scope, names, steps),
        st.builds(Fork, st.lists(steps, max_size=3).map(tuple), modes),
    )


trees = st.lists(st.recursive(leaf, inner, max_leaves=12), max_size=6)


def reply(prompt: str) -> Reply:
    key = zlib.crc32(prompt.encode())
    return Reply(f" word{key % 97}", delay=(key % 5) / 2000)


def chosen(prompt: str) -> str:
    return OPTIONS[zlib.crc32(prompt.encode()) % 3]


@dataclass
class Oracle:
    """Carries the steps out one after the other."""

    text: str = ""
    values: dict[str, object] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    start: int = 0

    def set(self, name: str | None, value: object) -> None:
        if name is not None:
            self.values[name] = value
            self.own.add(name)

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Say(text):
                    self.text += text
                case Generate(name):
                    value = reply(self.text).text
                    self.text += value
                    self.set(name, value)
                case Choose(name):
                    value = chosen(self.text)
                    self.text += value
                    self.set(name, value)
                case Read(name):
                    self.text += f"<{self.values.get(name)}>"
                case Scope(name, inside):
                    before = len(self.text)
                    self.run(inside)
                    self.set(name, self.text[before:])
                case Fork():
                    self.fork(step)

    def fork(self, fork: Fork) -> None:
        children = [Oracle(self.text, dict(self.values), start=len(self.text)) for _ in fork.branches]
        for child, steps in zip(children, fork.branches, strict=True):
            child.run(steps)
        if fork.mode == "concate_and_append":
            self.text += "".join(child.text[child.start :] for child in children)
        if fork.mode == "gather_variable":
            for name in set().union(*(child.own for child in children)):
                self.set(name, [child.values.get(name) for child in children])


def say(s: ProgramState, steps: tuple[Step, ...]) -> None:
    for step in steps:
        match step:
            case Say(text):
                s += text
            case Generate(name):
                s += gen(name)
            case Choose(name):
                s += select(name, OPTIONS)
            case Read(name):
                value = s[name] if name in s else None  # noqa: SIM401
                s += f"<{value}>"
            case Scope(name, inside):
                with s.var_scope(name):
                    say(s, inside)
            case Fork(branches, mode):
                children = s.fork(len(branches))
                for child, own in zip(children, branches, strict=True):
                    say(child, own)
                if mode != "none":
                    children.join(mode)


@function
def program(s: ProgramState, steps: tuple[Step, ...]) -> None:
    say(s, steps)


def backend() -> ScriptedBackend:
    """Replies and choices are functions of the prompt alone."""

    def choose(prompt: str) -> Reply:
        return Reply(chosen(prompt), delay=0.001)

    return ScriptedBackend({"p": choose, "q": choose, "*": reply})


@given(trees)
@hypothesis_settings(max_examples=150)
def test_concurrent_and_sequential_runs_agree(steps: list[Step]) -> None:
    oracle = Oracle()
    oracle.run(tuple(steps))
    state = program.run(tuple(steps), backend=backend())
    assert state.text() == oracle.text
    assert {name: state[name] for name in NAMES if name in state} == oracle.values


@given(trees)
@hypothesis_settings(max_examples=60)
def test_a_stream_of_any_program_is_its_text(steps: list[Step]) -> None:
    oracle = Oracle()
    oracle.run(tuple(steps))
    state = program.run(tuple(steps), backend=backend(), stream=True)
    assert "".join(state.text_iter()) == oracle.text
