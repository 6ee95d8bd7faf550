"""The compiler: what a program says becomes pieces, passes work on them, and calls are made of the result.

A piece is what a program has said from one point at which it waits to the next. A program that decides nothing
by what was generated is one piece; another one is compiled piece by piece, while it runs.
"""
