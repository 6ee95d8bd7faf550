"""Programs as data: what is taken, what is refused, and an order in which everything comes after its cause."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError, JsonSchema, SamplingParams
from ramet.runtime.protocol.programs import (
    MAX_BRANCHES,
    MAX_OPERATIONS,
    BeginScope,
    EndScope,
    Fork,
    Gen,
    Join,
    OfferedTools,
    Operation,
    ProgramBranch,
    ReasoningMarks,
    SayText,
    SayValue,
    Select,
    ToolDescription,
    WireProgram,
    in_causal_order,
    variables_of,
)


def program(*branches: list[Operation], version: int = 1) -> WireProgram:
    return WireProgram(
        version=version,
        branches=[ProgramBranch(name=str(number), operations=own) for number, own in enumerate(branches)],
    )


def test_it_goes_through_json() -> None:
    tools = OfferedTools(tools=[ToolDescription(name="f", parameters={"type": "object"})], choice="f")
    whole = program(
        [
            SayText(text="a"),
            Gen(variable="x", params=SamplingParams(grammar=JsonSchema("{}"), logit_bias={3: 1.0})),
            Gen(variable="y", tools=tools, reasoning=ReasoningMarks(begin="<", end=">")),
            Fork(branches=["1"]),
            Join(branches=["1"]),
            SayValue(variable="y_reasoning_content"),
        ],
        [BeginScope(), Select(variable="s", options=["a", "b"]), EndScope(variable="z")],
    )
    assert msgspec.json.decode(msgspec.json.encode(whole), type=WireProgram) == whole


def test_an_operation_is_one_of_the_known() -> None:
    for operation in (
        {"do": "run", "code": "x"},
        {"text": "a"},
        {"do": "text"},
        {"do": "text", "text": "", "x": 1},
    ):
        body: Any = {"version": 1, "branches": [{"name": "0", "operations": [operation]}]}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(body, WireProgram)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: program([], version=3), "version is 3"),
        (lambda: program(), "0 entries"),
        (lambda: program(*([[]] * (MAX_BRANCHES + 1))), "1025 entries"),
        (lambda: program([SayText(text="")] * (MAX_OPERATIONS + 1)), "16385 operations"),
        (lambda: program([Gen(variable="")]), "printable"),
        (lambda: program([Gen(variable="x" * 1000)]), "printable"),
        (lambda: program([Gen(variable="a\nb")]), "printable"),
        (lambda: program([Gen(variable="x", reasoning=ReasoningMarks(begin="<", end=">")),
                          Gen(variable="x_reasoning_content")]), "twice"),
        (lambda: program([SayValue(variable="x")]), "never comes"),
        (lambda: program([Fork(branches=["1", "1"])], []), "forked elsewhere"),
        (lambda: program([Fork(branches=["0"])]), "forked elsewhere"),
        (lambda: program([], [Fork(branches=["2"])], [Fork(branches=["1"])]), "never comes"),
        (lambda: program([Fork(branches=["1"]), Join(branches=["2"])], [Fork(branches=["2"])], []), "joins"),
        (lambda: program([Fork(branches=["1"]), Join(branches=["1"]), Gen(variable="x")],
                         [SayValue(variable="x")]), "never comes"),
        (lambda: program([EndScope(variable="x")]), "none is open"),
        (lambda: program([BeginScope()]), r"branches\[0\].*1 scopes that it does not end"),
        (lambda: program([Select(variable="x", options=["a"] * 2000)]), "2000 options"),
        (lambda: program([Gen(variable="x", tools=OfferedTools(tools=[]))]), "0 tools"),
        (lambda: program([Gen(variable="x", tools=OfferedTools(
            tools=[ToolDescription(name="f", parameters={})] * 2))]), "different names"),
        (lambda: program([Gen(variable="x", tools=OfferedTools(
            tools=[ToolDescription(name="f", parameters={})], choice="g"))]), "choice"),
        (lambda: program([Gen(variable="x", tools=OfferedTools(
            tools=[ToolDescription(name="f", parameters={})], max_rounds=0))]), "max_rounds"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as raised:
        make()
    assert str(raised.value.field).startswith("program")


def test_two_branches_of_one_name() -> None:
    with pytest.raises(InvalidRequestError, match="two of the name"):
        WireProgram(version=1, branches=[ProgramBranch(name="a", operations=[])] * 2)


@st.composite
def drawn_programs(draw: st.DrawFn) -> list[list[Operation]]:
    """Trees of branches that make variables, and say some that there may be."""
    num_branches = draw(st.integers(1, 6))
    own: list[list[Operation]] = [[] for _ in range(num_branches)]
    for branch in range(num_branches):
        for number in range(draw(st.integers(0, 3))):
            own[branch].append(Gen(variable=f"v{branch}_{number}"))
    for child in range(1, num_branches):
        parent = draw(st.integers(0, child - 1))
        place = draw(st.integers(0, len(own[parent])))
        own[parent].insert(place, Fork(branches=[str(child)]))
        if draw(st.booleans()):
            own[parent].insert(draw(st.integers(place + 1, len(own[parent]))), Join(branches=[str(child)]))
    for _ in range(draw(st.integers(0, 4))):
        branch = draw(st.integers(0, num_branches - 1))
        said = SayValue(variable=f"v{draw(st.integers(0, num_branches - 1))}_{draw(st.integers(0, 2))}")
        own[branch].insert(draw(st.integers(0, len(own[branch]))), said)
    return own


@given(drawn_programs())
def test_everything_comes_after_what_it_waits_for(branches: list[list[Operation]]) -> None:
    try:
        whole = program(*branches)
    except InvalidRequestError:
        assert not _can_end(branches)
        return
    assert _can_end(branches)
    made: set[str] = set()
    done = {branch.name: 0 for branch in whole.branches}
    begun = {"0"}
    for branch, position in in_causal_order(whole):
        assert branch.name in begun
        assert position == done[branch.name]
        operation = branch.operations[position]
        if isinstance(operation, SayValue):
            assert operation.variable in made
        if isinstance(operation, Join):
            assert all(done[name] == len(branches[int(name)]) for name in operation.branches)
        if isinstance(operation, Fork):
            begun |= set(operation.branches)
        done[branch.name] += 1
        made |= set(variables_of(operation))
    assert all(done[branch.name] == len(branch.operations) for branch in whole.branches)


def _can_end(branches: list[list[Operation]]) -> bool:
    """By going round and round until nothing more moves."""
    done = [0] * len(branches)
    begun, made = {0}, set[str]()
    moved = True
    while moved:
        moved = False
        for branch in list(begun):
            if done[branch] == len(branches[branch]):
                continue
            operation = branches[branch][done[branch]]
            match operation:
                case SayValue(variable=variable) if variable not in made:
                    continue
                case Join(branches=joined) if any(
                    int(name) not in begun or done[int(name)] < len(branches[int(name)]) for name in joined
                ):
                    continue
                case Fork(branches=forked):
                    begun |= {int(name) for name in forked}
            made |= set(variables_of(operation))
            done[branch] += 1
            moved = True
    return all(count == len(own) for count, own in zip(done, branches, strict=True))
