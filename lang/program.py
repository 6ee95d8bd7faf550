"""Programs: what ``@function`` makes of a Python function, and the ways to run it."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from ramet.lang.backends.chosen import AnyBackend
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.batch import DEFAULT_PARALLEL, Batch
from ramet.lang.compiler.deferral import deferred
from ramet.lang.compiler.explain import Explanation, explain_trace
from ramet.lang.compiler.pieces import COMPILED, INTERPRETED, Compilation, Pace
from ramet.lang.compiler.prefix import CachedPrefix, compute_prefix
from ramet.lang.compiler.trace import Subject, Trace, trace_program
from ramet.lang.defaults import backend_or_default, backend_or_none
from ramet.lang.errors import ProgramStructureError
from ramet.lang.loop_thread import bodies_loop
from ramet.lang.options import SAMPLING_OPTIONS, Sampling, sampling, unknown_option
from ramet.lang.session import Invocation, Session
from ramet.lang.state import ProgramState
from ramet.runtime.protocol import InvalidRequestError, SamplingParams

Function = Callable[..., Any]

_RESERVED = frozenset({"backend", "sampling_params", "stream"})
_RUN_OPTIONS = SAMPLING_OPTIONS | {"max_new_tokens", "use_thread", "cache_salt"}


class Program:
    """A function whose first argument is the program's state.

    Arguments of ``run``, ``arun``, ``stream`` and (for all items) ``run_batch``:
        the function's own, by place or by name;
        sampling options (``temperature=0``), which hold for every gen that does not give its own; where the
        function has a parameter of the same name, that is meant. A ``seed`` makes the run repeatable: every
        call gets one of its own that follows from it. ``max_new_tokens`` is another name for max_tokens;
        sampling_params: the same as a whole;
        cache_salt: a text; what one run has computed is used only by runs with the same (one tenant's, say);
        backend: whom to ask, a backend or an engine; without one, the default backend.

    Errors that all of them raise:
        what the function raises, after everything that it started was ended;
        ProgramError: a call failed and the function was not told, since it read nothing of it.
    """

    def __init__(
        self,
        function: Function,
        bound: Mapping[str, Any] | None = None,
        compilation: Compilation = COMPILED,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._bound = dict(bound or {})
        self._compilation = compilation
        self._body = function
        if compilation.defers:
            # What is read at its end besides the outputs may not be left out.
            self._body = deferred(function, says_its_end=compilation.outputs is None)
        self._signature = _signature_without_state(function, self.name)
        self._is_async = inspect.iscoroutinefunction(function)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._signature}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: says the program there, in place, and returns what the function returns (of an
        ``async def`` function, to be awaited). Without: ``run``.
        """
        if args and isinstance(args[0], ProgramState):
            own = self._bind(args[1:], kwargs)
            return self._function(args[0], *own.args, **own.kwargs)
        return self.run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs the program to its end. With ``stream`` it returns at once, as the method ``stream`` does."""
        session = Session(self._invocation(args, kwargs, backend, sampling_params))
        if stream:
            return session.stream()
        if self._is_async:
            return bodies_loop().run(session.arun())
        return session.run()

    async def arun(
        self,
        *args: Any,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """As ``run``, awaited. An ``async def`` function runs on this event loop, another one on a thread.
        Cancelling it ends everything that the program has started.
        """
        return await Session(self._invocation(args, kwargs, backend, sampling_params)).arun()

    def stream(
        self,
        *args: Any,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs it in the background and returns its state at once, for ``text_iter`` and for reading variables
        as they come. Used as a context manager the program is cancelled where the block is left before its end.
        """
        return Session(self._invocation(args, kwargs, backend, sampling_params)).stream()

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_errors: bool = False,
        **options: Any,
    ) -> Any:
        """Runs the program once for each item (a dict or tuple of its arguments), at most ``num_threads`` at
        a time. A list of states in the items' order; with ``generator_style`` an iterator.

        The first run that fails ends the batch: its error is raised, with the item's index in a note. With
        ``return_errors`` all run, and the failed ones' states raise their error when they are read and return
        it from ``error()``. The bar is shown on a terminal only.
        """
        settings = (backend, sampling_params, options)
        batch = self._batch(batch_kwargs, settings, num_threads, return_errors, progress_bar)
        return batch.iterate() if generator_style else batch.run()

    async def arun_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        return_errors: bool = False,
        **options: Any,
    ) -> list[ProgramState]:
        """As ``run_batch``, awaited."""
        settings = (backend, sampling_params, options)
        return await self._batch(batch_kwargs, settings, num_threads, return_errors, progress_bar).arun()

    def bind(self, **kwargs: Any) -> "Program":
        """The program with some of its arguments given."""
        for name in kwargs:
            if name not in self._signature.parameters and not self._takes_any_name():
                raise InvalidRequestError(
                    unknown_option(name, frozenset(self._signature.parameters)), field=name
                )
        return Program(self._function, self._bound | kwargs, self._compilation)

    def compile(self, *, outputs: Sequence[str] | None = None) -> "Program":
        """The program, run in pieces that are as large as they can be: nothing is sent before the program waits
        for a value or ends, or does something else for a second.

        Values that the program only says (``s += f"... {s['name']} ..."``) it does not wait for: calls that it
        says later and that do not need them run meanwhile.

        Every run is compiled, and gives the same with and without this. ``outputs`` says which variables are
        read after a run. Calls that none of them needs are then not made, and their errors do not occur;
        reading another variable, or the text behind a call that was left out, raises ProgramStructureError.
        """
        if isinstance(outputs, str) or (outputs is not None and not all(isinstance(o, str) for o in outputs)):
            raise InvalidRequestError(f"outputs is {outputs!r}; it must be a list of names", field="outputs")
        names = None if outputs is None else tuple(outputs)
        return Program(self._function, self._bound, Compilation(Pace.PATIENT, names))

    def interpreted(self) -> "Program":
        """The program without the compiler's passes: each call is made as it is said. For comparing."""
        return Program(self._function, self._bound, INTERPRETED)

    def trace(self, *args: Any, backend: "AnyBackend | None" = None, **kwargs: Any) -> Trace:
        """What the program says, without any call. The body is run once, as far as it does not depend on what
        is generated; what it does besides saying takes place. Arguments that are not given are left open.
        """
        return trace_program(self._subject(args, kwargs, backend, None)[0])

    def explain(
        self,
        *args: Any,
        backend: "AnyBackend | None" = None,
        sampling_params: SamplingParams | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """What a run with these arguments will do: print it. See ``trace`` for how it is found out.

        ``html``: a path; a page with the graph drawn is written there (where the program has an argument of
        that name, that is meant: use ``write_html`` of the result).
        """
        html = None if "html" in self._signature.parameters else kwargs.pop("html", None)
        subject, _ = self._subject(args, kwargs, backend, sampling_params)
        explanation = explain_trace(trace_program(subject), subject.backend, self._compilation)
        if html is not None:
            explanation.write_html(html)
        return explanation

    def cache(self, *args: Any, backend: "AnyBackend | None" = None, **kwargs: Any) -> CachedPrefix:
        """Has the backend compute what every run begins with: up to the first argument that is not given here,
        the first call or the first fork. See ``trace`` for how it is found out. It stays in the cache as long
        as the backend keeps it. Raises what the backend raises.
        """
        subject, cache_salt = self._subject(args, kwargs, backend, None)
        return compute_prefix(trace_program(subject), backend_or_default(backend), cache_salt)

    def inline(self, state: ProgramState) -> None:
        """What ``state += program`` does."""
        if self._is_async:
            raise ProgramStructureError(
                f"{self.name} is an async program; say it with `await {self.name}(s, ...)`", program=self.name
            )
        self(state)

    def _invocation(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        backend: "AnyBackend | None",
        sampling_params: SamplingParams | None,
    ) -> Invocation:
        own, options = self._split(kwargs)
        cache_salt = _take_cache_salt(options)
        bound = self._bind(args, own)
        return Invocation(
            self.name,
            self._body,
            self._is_async,
            bound.args,
            bound.kwargs,
            backend_or_default(backend),
            _defaults(sampling_params, options),
            cache_salt=cache_salt,
            compilation=self._compilation,
        )

    def _subject(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        backend: "AnyBackend | None",
        sampling_params: SamplingParams | None,
    ) -> tuple[Subject, str]:
        """What is to be traced; and the cache salt."""
        own, options = self._split(kwargs)
        cache_salt = _take_cache_salt(options)
        try:
            bound = self._signature.bind_partial(*args, **{**self._bound, **own})
        except TypeError as error:
            raise TypeError(f"program {self.name}: {error}") from None
        missing = [
            parameter
            for name, parameter in self._signature.parameters.items()
            if name not in bound.arguments
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        for parameter in missing:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(f"program {self.name}: missing a required argument: {parameter.name!r}")
        subject = Subject(
            name=self.name,
            function=self._body,
            args=bound.args,
            kwargs=bound.kwargs,
            missing=tuple(parameter.name for parameter in missing),
            backend=backend_or_none(backend) or ScriptedBackend(),
            defaults=_defaults(sampling_params, options),
            compilation=self._compilation,
        )
        return subject, cache_salt

    def _batch(
        self,
        items: Sequence[Mapping[str, Any] | Sequence[Any]],
        settings: "tuple[AnyBackend | None, SamplingParams | None, Mapping[str, Any]]",
        num_threads: int | str,
        return_errors: bool,
        progress_bar: bool,
    ) -> Batch:
        parallel = DEFAULT_PARALLEL if num_threads == "auto" else num_threads
        if not isinstance(parallel, int) or isinstance(parallel, bool) or parallel < 1:
            raise InvalidRequestError(
                f"num_threads is {num_threads!r}; it must be 'auto' or a whole number of at least 1",
                field="num_threads",
            )
        backend, sampling_params, options = settings
        if items:
            # Once, so that all have the same.
            backend = backend_or_default(backend)
        _check_items(items)
        invocations = []
        for index, item in enumerate(items):
            args, kwargs = ((), item) if isinstance(item, Mapping) else (item, {})
            try:
                invocations.append(self._invocation(args, {**options, **kwargs}, backend, sampling_params))
            except (TypeError, ValueError) as error:
                error.add_note(f"in item {index} of the batch")
                raise
        return Batch(self.name, invocations, parallel, return_errors, progress_bar)

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The function's own arguments, and sampling options."""
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in self._signature.parameters:
                own[name] = value
            elif name in _RUN_OPTIONS:
                options[name] = value
            elif self._takes_any_name():
                own[name] = value
            else:
                known = frozenset(self._signature.parameters) | _RUN_OPTIONS
                raise InvalidRequestError(f"program {self.name}: {unknown_option(name, known)}", field=name)
        return own, options

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **{**self._bound, **kwargs})
        except TypeError as error:
            raise TypeError(f"program {self.name}: {error}") from None

    def _takes_any_name(self) -> bool:
        return any(item.kind is item.VAR_KEYWORD for item in self._signature.parameters.values())


@overload
def function(function: Function) -> Program: ...


@overload
def function(
    function: None = None, *, num_api_spec_tokens: int | None = None
) -> Callable[[Function], Program]: ...


def function(
    function: Function | None = None, *, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Function], Program]:
    """Makes a program of a function, sync or async, whose first argument is the program's state.

    Works as ``@function`` and as ``@function()``. ``num_api_spec_tokens`` is refused unless it is None: SGLang
    guesses with it how an API goes on behind a gen, which may change what a program says.
    """
    if num_api_spec_tokens is not None:
        raise InvalidRequestError(
            f"num_api_spec_tokens is {num_api_spec_tokens!r}; every gen is a call of its own here, and prompts "
            "that begin alike share their computation: leave it out",
            field="num_api_spec_tokens",
        )
    return Program if function is None else Program(function)


def _signature_without_state(function: Function, name: str) -> inspect.Signature:
    if not callable(function):
        raise ProgramStructureError(f"@function stands before a function, not before {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ProgramStructureError(f"program {name} has a yield; stream() yields what a program says")
    signature = inspect.signature(function)
    first, *rest = signature.parameters.values() or (None,)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ProgramStructureError(f"program {name} takes no state; write `def {name}(s, ...)`")
    for parameter in rest:
        if parameter.name in _RESERVED:
            raise ProgramStructureError(
                f"program {name} has a parameter {parameter.name!r}, which run() has itself; rename it"
            )
    return signature.replace(parameters=rest)


def _check_items(items: object) -> None:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise InvalidRequestError(
            f"batch_kwargs is a {type(items).__name__}; it must be a list with a dict or a tuple of arguments "
            "for each run",
            field="batch_kwargs",
        )
    for index, item in enumerate(items):
        if isinstance(item, str | bytes) or not isinstance(item, Mapping | Sequence):
            raise InvalidRequestError(
                f"batch_kwargs[{index}] is {item!r}; it must be a dict or a tuple of the run's arguments",
                field="batch_kwargs",
            )


def _take_cache_salt(options: dict[str, Any]) -> str:
    cache_salt = options.pop("cache_salt", None) or ""
    if not isinstance(cache_salt, str):
        raise InvalidRequestError(f"cache_salt is {cache_salt!r}; it must be a string", field="cache_salt")
    return cache_salt


def _defaults(sampling_params: SamplingParams | None, options: dict[str, Any]) -> Sampling:
    options = dict(options)
    if not options.pop("use_thread", True):
        raise InvalidRequestError(
            "use_thread is False; the calls of a program always run beside its body: leave it out",
            field="use_thread",
        )
    if "max_new_tokens" in options:
        options.setdefault("max_tokens", options.pop("max_new_tokens"))
    given = sampling(options)
    if sampling_params is None:
        # SamplingParams' own default of max_tokens holds, unless something was given.
        return given.over(Sampling())
    return given.over(Sampling(sampling_params, frozenset(SamplingParams.__struct_fields__)))
