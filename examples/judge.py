"""A judge: one essay, graded on several dimensions at once, then as a whole.

Run it with ``ramet run examples/judge.py``. Grades are selects, so they are always one of the allowed ones; the
branches share the essay.
"""

import ramet
from ramet import Engine, ProgramState

ESSAY = (
    "Libraries matter because they give everybody the same start. A child whose family owns no books finds "
    "them there, and a quiet table besides. An old man reads the newspaper without paying for it. Some say "
    "that the internet has made libraries useless. But somebody has to keep what is no longer sold, and "
    "somebody has to help those who do not know where to look. A town that closes its library saves a little "
    "money each year, and loses the one place where nobody has to buy anything."
)
DIMENSIONS = ("clarity", "evidence", "style")
GRADES = ("1", "2", "3", "4", "5")


@ramet.function
def judge(s: ProgramState, essay: str = ESSAY, dimensions: tuple[str, ...] = DIMENSIONS) -> str:
    s += ramet.system("You are a fair judge of essays.")
    s += ramet.user(f"Here is an essay:\n\n{essay}\n\nYou will be asked about it.")
    branches = s.fork(len(dimensions))
    for branch, dimension in zip(branches, dimensions, strict=True):
        branch += ramet.user(f"Say in one sentence what you think of its {dimension}.")
        branch += ramet.assistant(ramet.gen("comment", max_tokens=24, temperature=0))
        branch += ramet.user("Grade it from 1 (poor) to 5 (excellent).")
        branch += ramet.assistant(ramet.select("grade", GRADES))
    branches.join()
    for dimension, comment, grade in zip(dimensions, s["comment"], s["grade"], strict=True):
        s += ramet.user(f"{dimension}: {grade}. {comment.strip()}")
    s += ramet.user("Sum up your judgement in one sentence, then grade the whole essay.")
    s += ramet.assistant(
        ramet.gen("summary", max_tokens=24, temperature=0) + "\nGrade: " + ramet.select("overall", GRADES)
    )
    return str(s["overall"])


def main(engine: Engine) -> ProgramState:
    state = judge.run(backend=engine)
    for dimension, grade in zip(DIMENSIONS, state["grade"], strict=True):
        print(f"{dimension}: {grade}")
    print(f"overall: {state['overall']}; {state['summary'].strip()}")
    return state
