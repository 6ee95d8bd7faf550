"""Templates in their sandbox: like transformers' own, and without a way out of it."""

from collections.abc import Callable
from copy import deepcopy
from datetime import datetime
from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError, ModelLoadError
from ramet.runtime.tokenizer.template_environment import compile_template

VARIABLES: dict[str, Any] = {
    "messages": [{"role": "user", "content": " hé <b>\n"}, {"role": "assistant", "content": "ok"}],
    "items": {"b": [1, None, True], "a": "é<&>'"},
}


def render(source: str, **variables: Any) -> str:
    return compile_template(source, lambda: datetime(2026, 11, 30, 7, 5))(deepcopy(VARIABLES) | variables)


@pytest.fixture(scope="module")
def transformers_environment() -> Callable[[str], Any]:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    made: Callable[[str], Any] = utilities._compile_jinja_template
    return made


class TestLikeTransformers:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ items | tojson }} {{ items | tojson(indent=2) }} {{ items | tojson(sort_keys=true) }}",
            "{{ items | tojson(true, none, (',', ':')) }} {{ 'plain <b>' }} {{ [1] | tojson | length }}",
            "  {% if true %}\n  kept\n  {% endif %}\nend\n",
            "{% for m in messages %}{% if loop.last %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}",
            "a {% generation %}\n {{ messages[1].content }} {% endgeneration %}\n b",
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
            "{% generation %}{% set y = 2 %}{% endgeneration %}[{{ y }}]",
            "{% set ns = namespace(n=0, self=3) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
            "{{ ns.n }}{{ ns.self }}",
            "{% set ns = namespace({'n': 4}) %}{{ ns.n }}{{ ns.missing is defined }}",
            "{{ dict(a=1, **{'b': 2}) }} {{ dict([('c', 3)]) }} {{ dict.fromkeys(['d'], 0) }}",
            "{{ messages[0].content | trim | upper }}{{ missing }}{{ messages[0].missing is defined }}",
        ],
    )
    def test_renders_the_same(self, source: str, transformers_environment: Callable[[str], Any]) -> None:
        assert render(source) == transformers_environment(source).render(**deepcopy(VARIABLES))


def test_the_clock_is_the_one_given() -> None:
    assert render("{{ strftime_now('%d %b %Y %H:%M') }}") == "30 Nov 2026 07:05"


def test_one_compilation_serves_many_renderings() -> None:
    renderer = compile_template(
        "{% set ns = namespace(n=n) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", datetime.now
    )
    assert [renderer({"n": n}) for n in (1, 5, 1)] == ["2", "6", "2"]


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'role': 'x'}) }}",
            "{{ messages[0].pop('role') }}",
            "{{ dict.update(messages[0], {'role': 'x'}) }}",
            "{{ dict.pop(messages[0], 'role') }}",
            "{{ dict.clear(items) }}",
            "{% set messages[0].role = 'x' %}",
            "{% do messages.clear() %}",
        ],
    )
    def test_what_it_is_given_stays_as_it_is(self, source: str) -> None:
        variables = deepcopy(VARIABLES)
        with pytest.raises((InvalidRequestError, ModelLoadError), match="chat template"):
            compile_template(source, datetime.now)(variables)
        assert variables == VARIABLES

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ ''['__class__']['__mro__'] }}",
            "{{ (messages | map(attribute='__class__') | first).x }}",
            "{{ '{0.__class__.__mro__[1]}'.format(items) + 1 }}",
            "{{ cycler.__init__.__globals__.os.system('true') }}",
            "{{ dict.__init__.__globals__.json }}",
            "{{ namespace.__init__.__globals__.json }}",
            "{{ strftime_now.__globals__.json }}",
            "{{ raise_exception.__code__.co_consts }}",
            "{{ namespace(__class__=1) }}",
            "{{ namespace({'__call__': 1}) }}",
            "{% set ns = namespace() %}{% set ns._x = 1 %}",
            "{% for i in range(1000000) %}{% endfor %}",
            "{% include 'other' %}",
        ],
    )
    def test_it_reaches_out_nowhere(self, source: str) -> None:
        with pytest.raises(InvalidRequestError, match="chat template fails") as error:
            render(source)
        assert error.value.field == "messages"


class TestErrors:
    def test_a_refusal_is_in_the_templates_words(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"refuses messages: roles must alternate$") as error:
            render("{{ raise_exception('roles must alternate') }}")
        assert error.value.field == "messages"

    @pytest.mark.parametrize(
        ("source", "kind"),
        [
            ("{{ missing.x.y }}", "UndefinedError"),
            ("{{ missing | tojson }}", "TypeError"),
            ("{{ messages[0].role + 1 }}", "TypeError"),
            ("{{ 1 // 0 }}", "ZeroDivisionError"),
            ("{{ 'x'.encode('nothing') }}", "LookupError"),
            ("{{ 'é'.encode('ascii') }}", "UnicodeEncodeError"),
            ("{{ strftime_now(3) }}", "TypeError"),
            ("{{ 10.0 ** 400 }}", "OverflowError"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
            ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "RecursionError"),
            (
                "{% macro f() %}{{ caller() }}{% call f() %}{% endcall %}{% endmacro %}"
                "{% call f() %}{% endcall %}",
                "RecursionError",
            ),
            ("{% block b %}{{ self.b() }}{% endblock %}", "RecursionError"),
        ],
    )
    def test_a_failure_names_its_kind(self, source: str, kind: str) -> None:
        with pytest.raises(InvalidRequestError, match=f"fails on messages: {kind}: ") as error:
            render(source)
        assert error.value.field == "messages"

    @pytest.mark.parametrize(
        ("depth", "refused"),
        [(100, False), (200, True)],
    )
    def test_calls_nest_up_to_a_bound(self, depth: int, refused: bool) -> None:
        """Of macros, and of loops over what is nested; a renderer goes on after a refusal."""
        nested: list[Any] = []
        for _ in range(depth - 1):
            nested = [nested]
        renderer = compile_template(
            "{% macro down(n) %}{{ n }}{% if n %} {{ down(n - 1) }}{% endif %}{% endmacro %}"
            "{% for inner in [values] recursive %}.{{ loop(inner) }}{% endfor %}"
            "{% if n %}{{ down(n) }}{% endif %}",
            datetime.now,
        )
        for variables in ({"values": nested, "n": 0}, {"values": [], "n": depth}):
            if refused:
                with pytest.raises(InvalidRequestError, match="inside of one another, more than 128 deep"):
                    renderer(variables)
            else:
                renderer(variables)
        assert renderer({"values": [], "n": 2}) == ".2 1 0"

    @pytest.mark.parametrize(
        ("source", "line"),
        [
            ("x\n{% if %}", 2),
            ("{{ messages | nofilter }}", 1),
            ("\n\n{% nothing %}", 3),
            ("{% generation %}x", 1),
            ("{{ 'x' ", 1),
        ],
    )
    def test_what_is_no_template_is_named_by_its_line(self, source: str, line: int) -> None:
        with pytest.raises(ModelLoadError, match=f"not valid, line {line}: "):
            compile_template(source, datetime.now)
