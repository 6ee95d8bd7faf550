"""Programs in the shapes that SGLang's documentation shows run here with nothing changed but the import."""

import asyncio
import re
from collections.abc import Iterator

import pytest

import ramet as sgl
from ramet.lang.backends.scripted import Reply, Scores, ScriptedBackend
from ramet.runtime.protocol import InvalidRequestError

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    """The default one, as in SGLang's scripts."""
    scripted = ScriptedBackend()
    sgl.set_default_backend(scripted)
    yield scripted
    sgl.set_default_backend(None)


def answering(**script: object) -> ScriptedBackend:
    scripted = ScriptedBackend({"*": "ok", **script})  # type: ignore[dict-item]
    sgl.set_default_backend(scripted)
    return scripted


@sgl.function
def two_turns(s, first, second):  # type: ignore[no-untyped-def]
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(second)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


def test_two_turns(backend: ScriptedBackend) -> None:
    answering(answer_1="Paris", answer_2="The Seine")
    state = two_turns.run(first="Which capital has France?", second="And which river?", temperature=0)
    assert [message["role"] for message in state.messages()] == ["system", *("user", "assistant") * 2]
    assert state["answer_1"] == "Paris"
    assert state["answer_2"] == "The Seine"


def test_begin_and_end_of_roles(backend: ScriptedBackend) -> None:
    @sgl.function
    def marked(s, question):  # type: ignore[no-untyped-def]
        s += sgl.system_begin() + "Be brief." + sgl.system_end()
        s += sgl.user_begin() + question + sgl.user_end()
        s += sgl.assistant_begin() + sgl.gen("a", max_tokens=16) + sgl.assistant_end()

    @sgl.function
    def nested(s, question):  # type: ignore[no-untyped-def]
        s += s.system("Be brief.")
        with s.user():
            s += question
        with s.assistant():
            s += sgl.gen("a", max_tokens=16)

    assert marked.run("Why?").text() == nested.run("Why?").text()


def test_a_choice_decides_what_comes_next(backend: ScriptedBackend) -> None:
    @sgl.function
    def tool_use(s, question):  # type: ignore[no-untyped-def]
        s += "To answer this question: " + question + ". "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The math expression is" + sgl.gen("expression")
        elif s["tool"] == "search engine":
            s += "The key word to search is" + sgl.gen("word")

    answering(tool="search engine", word=" ice")
    state = tool_use.run("What is ice?")
    assert "expression" not in state
    assert state.text().endswith("a search engine. The key word to search is ice")


def test_forks_write_at_once(backend: ScriptedBackend) -> None:
    @sgl.function
    def expand_tip(s, topic, tip):  # type: ignore[no-untyped-def]
        s += f"Please expand this tip about {topic}: {tip}\n"
        s += sgl.gen("paragraph", max_tokens=64)

    @sgl.function
    def tips(s):  # type: ignore[no-untyped-def]
        s += "Here are two tips for staying healthy: 1. Balanced diet. 2. Regular exercise.\n\n"
        forks = s.fork(2)
        for number, fork in enumerate(forks):
            fork += f"Now, expand tip {number + 1} into a paragraph:\n"
            fork += sgl.gen("detailed_tip", max_tokens=256, stop="\n\n")
        s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
        s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary")
        expand_tip(s, "health", "sleep")

    scripted = answering(detailed_tip=lambda prompt: "eat" if "tip 1" in prompt else "run", summary=", live.")
    state = tips.run()
    assert "Tip 1:eat\nTip 2:run\nIn summary, live." in state.text()
    assert state["paragraph"] == "ok"
    assert scripted.max_running == 2


def test_samples_are_gathered(backend: ScriptedBackend) -> None:
    @sgl.function
    def sample(s, question, count):  # type: ignore[no-untyped-def]
        s += sgl.user(question)
        forks = s.fork(count)
        forks += sgl.assistant(sgl.gen("answer", temperature=0.7, max_tokens=16))
        forks.join()
        s += sgl.user("Which is best? Say its number.")
        s += sgl.assistant(sgl.gen_int("best"))

    answering(answer=["a", "b", "c"], best="2")
    state = sample.run(question="Why?", count=3)
    assert sorted(state["answer"]) == ["a", "b", "c"]
    assert state["best"] == 2


def test_regular_expressions_and_types(backend: ScriptedBackend) -> None:
    address = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def server(s):  # type: ignore[no-untyped-def]
        s += "Q: What is the IP address of the name server?\nA: "
        s += sgl.gen("ip", temperature=0, regex=address)
        s += " port " + sgl.gen("port", dtype=int) + " host " + sgl.gen_string("host")

    answering(ip="8.8.8.8", port="53", host='"dns"')
    state = server.run()
    assert re.fullmatch(address, state["ip"])
    assert (state["port"], state["host"]) == (53, "dns")


def test_batches_and_streams(backend: ScriptedBackend) -> None:
    @sgl.function
    def text_qa(s, question):  # type: ignore[no-untyped-def]
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n")

    answering(answer=lambda prompt: " Paris is it" if "France" in prompt else " Rome is it")
    questions = [{"question": "France?"}, {"question": "Italy?"}]
    states = text_qa.run_batch(questions, progress_bar=True, num_threads=2)
    assert [state["answer"] for state in states] == [" Paris is it", " Rome is it"]
    state = text_qa.run("France?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()) == "Q: France?\nA: Paris is it"
    state = text_qa.run("France?", stream=True)
    assert list(state.text_iter("answer")) == [" Paris", " is", " it"]

    async def listen() -> str:
        running = text_qa.run("Italy?", stream=True)
        return "".join([chunk async for chunk in running.text_async_iter(var_name="answer")])

    assert asyncio.run(listen()) == " Rome is it"
    assert [state["answer"] for state in text_qa.run_batch(questions, generator_style=True)][1] == " Rome is it"


def test_images_and_reasoning(backend: ScriptedBackend) -> None:
    @sgl.function
    def image_qa(s, image, question):  # type: ignore[no-untyped-def]
        s += sgl.user(sgl.image(image) + question)
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer"), model_type="deepseek-r1"))

    scripted = answering(answer="It has legs.</think>A dog")
    state = image_qa.run(image=PNG, question="What is this?", max_new_tokens=32)
    assert state["answer"] == "A dog"
    assert state["answer_reasoning_content"] == "It has legs."
    assert scripted.calls[0].params is not None
    assert scripted.calls[0].params.max_tokens == 32
    content = state.messages()[0]["content"]
    assert isinstance(content, list)
    assert content[0]["type"] == "image_url"


def test_selecting(backend: ScriptedBackend) -> None:
    @sgl.function
    def judge(s, method):  # type: ignore[no-untyped-def]
        s += "Is ice cold? " + sgl.select("answer", choices=["yes", "no"], choices_method=method)

    answering(answer=Scores({"yes": -0.1, "no": -2.0}))
    for method in (
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ):
        assert judge.run(method)["answer"] == "yes"


def test_variables_scopes_and_copies(backend: ScriptedBackend) -> None:
    @sgl.function
    def report(s):  # type: ignore[no-untyped-def]
        with s.var_scope("whole"):
            s += "Title: " + sgl.gen("title")
        with s.copy() as other:
            other += " aside " + sgl.gen("aside")
        s.set_var("note", 3)
        return s.get_var("note")

    answering(title="Ice", aside="never mind")
    state = report.run()
    assert state["whole"] == "Title: Ice"
    assert state.ret_value == 3
    assert state["aside"] == ["never mind"]
    meta = report.run(return_logprob=True, backend=ScriptedBackend()).get_meta_info("title")
    assert meta["completion_tokens"] == 1


def test_the_backend_is_asked_directly_and_arguments_are_bound(backend: ScriptedBackend) -> None:
    scripted = answering(answer_1=Reply("a"), answer_2=Reply("b"))
    sgl.flush_cache()
    assert scripted.num_flushes == 1
    assert sgl.get_server_info()["num_calls"] == 0
    bound = two_turns.bind(first="Why?")
    assert bound.run(second="How?")["answer_2"] == "b"
    with pytest.raises(InvalidRequestError, match="did you mean 'second'"):
        two_turns.bind(secnd="x")


def test_names_that_are_not_here_say_what_to_do() -> None:
    for name, words in (
        ("VertexAI", "LiteLLM"),
        ("Crusoe", "OpenAI"),
        ("ServerArgs", "Engine"),
        ("global_config", "options"),
    ):
        with pytest.raises(AttributeError, match=f"has no {name}: .*{words}"):
            getattr(sgl, name)


def test_an_offset_of_positions_is_refused(backend: ScriptedBackend) -> None:
    @sgl.function
    def shifted(s):  # type: ignore[no-untyped-def]
        s.fork(2, [0, 10])

    with pytest.raises(sgl.ProgramStructureError, match=r"position_ids_offset is \[0, 10\]"):
        shifted.run()
