"""What every method promises: the checks that ``fedfeat check`` and the tests hold a method to.

problem, trial                  a toy problem, and a method that runs on it
promise, hold                   what a promise is, and what comes of checking one
running, repeating,             the promises
exchanging, stepping, streams
observed, both_ways, waiting,   how they look: at replies, at two engines, at waiting for a device, at what no
hidden                          checkpoint knows
source, compare                 where in the author's file, and where in a run
"""
