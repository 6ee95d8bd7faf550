"""Several agents at once on one engine, none waiting for another; the slow ones are cancelled.

Run it with ``ramet run examples/async_agents.py``. Each agent plans, then works on its plan, in two calls; all
share the task's description. As soon as two are done the others are cancelled, which aborts what they compute.
"""

import asyncio

from ramet import Engine, ProgramTag, SamplingParams

TASK = "You plan a picnic for ten people in a city park on a warm day. There is no budget for rented furniture."
ROLES = {
    "cook": "Say which food to bring.",
    "host": "Say which games to play.",
    "driver": "Say how everybody gets there.",
    "poet": "Write a very long poem about the day, with at least fifty verses.",
}


async def agent(engine: Engine, name: str, job: str) -> str:
    messages = [
        {"role": "system", "content": TASK},
        {"role": "user", "content": f"{job} First make a plan in one sentence."},
    ]
    # The poet is given more room than the others, and is the one who will not get ready.
    room = 400 if name == "poet" else 24
    for step in range(2):
        answer = await engine.agenerate(
            messages=messages,
            sampling_params=SamplingParams(temperature=0, max_tokens=room, ignore_eos=name == "poet"),
            tag=ProgramTag(program_id="picnic", branch=name, step=step, remaining_calls=1 - step),
        )
        stats = answer.stats
        print(
            f"{name}, step {step}: {stats.num_cached_tokens} of {stats.num_prompt_tokens} prompt tokens cached"
        )
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "Now do it."}]
    return str(answer.text)


async def main(engine: Engine, wanted: str = "2") -> dict[str, str]:
    tasks = {asyncio.create_task(agent(engine, name, job)): name for name, job in ROLES.items()}
    results: dict[str, str] = {}
    pending = set(tasks)
    while len(results) < int(wanted):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        results |= {tasks[task]: task.result() for task in done}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)

    for name, text in results.items():
        print(f"\n{name}: {text.strip()}")
    print(f"\ncancelled: {', '.join(tasks[task] for task in pending)}")
    return results
