"""All that the author of a method, or a caller from Python, needs: one import.

A method is a function that returns a :class:`Method`, registered with :func:`base` or :func:`addon`. An experiment is
a configuration that :func:`start` takes to its end. FEAT's pieces stand alone: :class:`ETFHead`, :func:`gsa_loss`,
:func:`egc_correct`.
"""
