"""Outlines: what the program has asked of one branch so far, seen from the thread that writes it.

Here nodes become operations. An expression is checked as a whole before any of it is done.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from ramet.lang import capabilities as check
from ramet.lang.backends.base import Capabilities, SelectRequest
from ramet.lang.errors import ProgramError, ProgramStructureError, UnknownVariableError
from ramet.lang.interpreter import Branch
from ramet.lang.ir import (
    Gen,
    Image,
    Later,
    Leaf,
    Node,
    ReasoningFormat,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    VarScopeBegin,
    VarScopeEnd,
    leaves,
)
from ramet.lang.operations import (
    AppendImage,
    AppendText,
    AppendValue,
    BeginRole,
    Choose,
    CloseScope,
    Concatenate,
    EndRole,
    Generate,
    OpenScope,
    Operation,
    Spawn,
)
from ramet.lang.options import Sampling
from ramet.lang.signals import Signal
from ramet.lang.variables import Place, Variable, gathered
from ramet.runtime.protocol import ProgramTag

REASONING_SUFFIX = "_reasoning_content"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a whole run."""

    capabilities: Capabilities
    defaults: Sampling


@dataclass(slots=True)
class _Draft:
    """An expression's operations while it is being checked."""

    role: str | None
    step: int
    scopes: list[str]
    operations: list[Operation] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    roles: list[tuple[str, bool]] = field(default_factory=list)


class Outline:
    """The variables, the open role and the open scopes of a branch. Thread-safe.

    ``names`` maps to the latest variable of each name; a fork sees those of its parent at that moment.
    """

    def __init__(self, branch: Branch, terms: Terms, parent: "Outline | None" = None) -> None:
        self.branch = branch
        self.terms = terms
        self.changed = Signal()
        """Notified when a name has come, and when no more will."""
        self._lock = threading.RLock()
        self._names: dict[str, Variable] = {} if parent is None else dict(parent._names)
        self._own_names: dict[str, None] = {}
        """Set since the fork, in order."""
        self._role: str | None = None if parent is None else parent._role
        self._roles: list[tuple[str, bool]] = []
        """Begun (True) and ended since the fork."""
        self._step: int = 0 if parent is None else parent._step
        self._scopes: list[str] = []
        self._child_numbers = count()
        self._ended: str | None = None
        self._end_followers: list[Callable[[], None]] = []

    @property
    def place(self) -> Place:
        return self.branch.place

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def say(self, node: Node) -> None:
        """Raises what is wrong with the expression; then nothing of it is done."""
        with self._lock:
            self._refuse_if_ended()
            draft = _Draft(self._role, self._step, list(self._scopes))
            for leaf, reasoning in leaves(node):
                self._add(draft, leaf, reasoning)
            self._role, self._step, self._scopes = draft.role, draft.step, draft.scopes
            self._roles += draft.roles
            for variable in draft.variables:
                self._set(variable)
            for operation in draft.operations:
                self.branch.submit(operation)
        if draft.variables:
            self.changed.notify()

    def submit(self, operation: Operation) -> None:
        """One that says nothing."""
        self.branch.submit(operation)

    def set(self, variable: Variable) -> None:
        with self._lock:
            self._set(variable)
        self.changed.notify()

    def find(self, name: str) -> Variable | None:
        with self._lock:
            return self._names.get(name)

    def names(self) -> list[str]:
        with self._lock:
            return list(self._names)

    def unknown(self, name: str) -> ProgramError:
        """The error for a name that there is not."""
        with self._lock:
            known = list(self._names)
            is_open = name in self._scopes
        if is_open:
            message = f"variable {name!r} is there after the end of its var_scope"
        elif known:
            message = f"no call has made a variable {name!r}; there are {', '.join(map(repr, known))}"
        else:
            message = f"no call has made a variable {name!r}, nor any other"
        return self.place.error(UnknownVariableError, message, name)

    def spawn(self, branches: Callable[[Iterator[str]], Sequence[Branch]]) -> "list[Outline]":
        """Outlines that go on from here, for the branches that the function makes for their paths."""
        with self._lock:
            self._refuse_if_ended()
            paths = (f"{self.branch.path}/{number}" for number in self._child_numbers)
            children = [Outline(branch, self.terms, self) for branch in branches(paths)]
            self.branch.submit(Spawn(tuple(child.branch for child in children)))
        return children

    def gather(self, children: "Sequence[Outline]", *, keep_errors: bool) -> None:
        """Every name that a child has set becomes the list of the children's variables."""
        names = dict.fromkeys(name for child in children for name in child._own_names)
        with self._lock:
            self._refuse_if_ended()
            for name in names:
                parts = [child.find(name) for child in children]
                self._set(gathered(name, self.place, parts, keep_errors=keep_errors))
        self.changed.notify()

    def concatenate(self, children: "Sequence[Outline]", *, keep_errors: bool) -> None:
        """Raises ProgramStructureError where the children's roles do not follow one another."""
        with self._lock:
            self._refuse_if_ended()
            role = self._role
            roles = [event for child in children for event in child._roles]
            for name, begins in roles:
                check.check_role_order(role, name, self.place, begins=begins)
                role = name if begins else None
            self._role = role
            self._roles += roles
            self.branch.submit(Concatenate(tuple(child.branch for child in children), keep_errors))

    def end(self, why: str) -> None:
        """Nothing more is said. Ending twice changes nothing."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = why
            followers, self._end_followers = self._end_followers, []
        for follow in followers:
            follow()
        self.changed.notify()

    def when_ended(self, follow: Callable[[], None]) -> None:
        """Calls it once nothing more will be said, which may be now."""
        with self._lock:
            if self._ended is None:
                self._end_followers.append(follow)
                return
        follow()

    def _refuse_if_ended(self) -> None:
        if (cancelled := self.branch.execution.cancelled) is not None:
            raise cancelled
        if self._ended is not None:
            raise self.place.error(ProgramStructureError, f"{self._ended}: nothing can be added any more")

    def _set(self, variable: Variable) -> None:
        if variable.name is not None:
            self._names[variable.name] = variable
            self._own_names[variable.name] = None

    def _add(self, draft: _Draft, leaf: Leaf, reasoning: ReasoningFormat | None) -> None:
        capabilities = self.terms.capabilities
        match leaf:
            case Text(text):
                if draft.role is None and text:
                    check.check_outside_roles(capabilities, self.place, "text")
                draft.operations.append(AppendText(text))
            case Later(variable):
                if draft.role is None:
                    check.check_outside_roles(capabilities, self.place, "text")
                draft.operations.append(AppendValue(variable))
            case Image(url):
                check.check_image(capabilities, self.place)
                draft.operations.append(AppendImage(url))
            case RoleBegin(role):
                check.check_role(capabilities, self.place, role)
                check.check_role_order(draft.role, role, self.place, begins=True)
                draft.role = role
                draft.roles.append((role, True))
                draft.operations.append(BeginRole(role))
            case RoleEnd(role):
                check.check_role_order(draft.role, role, self.place, begins=False)
                draft.role = None
                draft.roles.append((role, False))
                draft.operations.append(EndRole(role))
            case VarScopeBegin(name):
                draft.scopes.append(name)
                draft.operations.append(OpenScope())
            case VarScopeEnd(name):
                self._end_scope(draft, name)
            case Gen():
                self._add_gen(draft, leaf, reasoning)
            case Select():
                self._add_select(draft, leaf)

    def _end_scope(self, draft: _Draft, name: str) -> None:
        if not draft.scopes or draft.scopes[-1] != name:
            inside = f"the innermost open one is {draft.scopes[-1]!r}" if draft.scopes else "none is open"
            raise self.place.error(ProgramStructureError, f"the var_scope {name!r} ends where {inside}")
        draft.scopes.pop()
        variable = Variable(name, self.place)
        draft.variables.append(variable)
        draft.operations.append(CloseScope(variable))

    def _add_gen(self, draft: _Draft, gen: Gen, reasoning: ReasoningFormat | None) -> None:
        if draft.role is None:
            check.check_outside_roles(self.terms.capabilities, self.place, "a gen", gen.name)
        params = Sampling(gen.params, gen.given).over(self.terms.defaults).params
        if "seed" not in gen.given and params.seed is not None:
            params = msgspec.structs.replace(params, seed=self._derived_seed(params.seed, draft.step))
        check.check_sampling(params, self.terms.capabilities, self.place, gen.name)
        variable = Variable(
            gen.name,
            self.place,
            streams=params.n == 1,
            num_answers=params.n,
            is_text=gen.parse is str or reasoning is not None,
        )
        draft.variables.append(variable)
        split = None
        if reasoning is not None:
            if params.grammar is not None:
                raise self.place.error(
                    ProgramStructureError,
                    "separate_reasoning around a constrained gen: the constraint would hold for the reasoning "
                    "too; generate the reasoning with a gen of its own",
                    gen.name,
                )
            name = None if gen.name is None else gen.name + REASONING_SUFFIX
            split = reasoning, Variable(name, self.place, streams=params.n == 1, num_answers=params.n)
            draft.variables.append(split[1])
        if gen.tools is not None:
            check.check_tools(self.terms.capabilities, self.place, draft.role, params, gen.name)
        if gen.lora is not None:
            check.check_lora(self.terms.capabilities, self.place, gen.lora, gen.name)
        tag = self._tag(draft, gen.name)
        draft.operations.append(
            Generate(variable, params, tag, gen.parse, gen.priority, split, gen.tools, gen.lora)
        )

    def _add_select(self, draft: _Draft, select: Select) -> None:
        if draft.role is None:
            check.check_outside_roles(self.terms.capabilities, self.place, "a select", select.name)
        check.check_select(self.terms.capabilities, self.place, select.name)
        seed = select.seed
        if seed is None and self.terms.defaults.params.seed is not None:
            seed = self._derived_seed(self.terms.defaults.params.seed, draft.step)
        variable = Variable(select.name, self.place)
        draft.variables.append(variable)
        request = SelectRequest(
            options=select.options,
            normalization=select.normalization,
            temperature=select.temperature,
            seed=seed,
            tag=self._tag(draft, select.name),
            priority=select.priority,
        )
        draft.operations.append(Choose(variable, request))

    def _tag(self, draft: _Draft, name: str | None) -> ProgramTag:
        step = draft.step
        draft.step += 1
        return ProgramTag(
            program_id=self.branch.execution.program_id,
            branch=self.branch.path,
            step=step,
            variable=name or "",
        )

    def _derived_seed(self, seed: int, step: int) -> int:
        """A run's seed makes every call repeatable, and no two calls the same."""
        text = f"{seed}:{self.branch.path}:{step}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
