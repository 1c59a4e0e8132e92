"""What every method promises: the checks that ``fedfeat check`` and the tests hold a method to.

problem, trial              a toy problem, and a method that runs on it
promise                     what a promise is, and what comes of checking one
running, repeating,         the promises
exchanging, clients, streams,
stepping
observed, both_ways,        how they look: at replies, at two engines, at generators, at waiting for a device,
generators, waiting,        at what parts remember, at settings
memory, reading
source, compare             where in the author's file, and where in a run
"""
