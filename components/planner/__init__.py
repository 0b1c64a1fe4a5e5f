"""The planner: memory, time and bill of a run from its recipe and the machine's profile.

It computes and never imports torch. Predictions depend on numbers alone: no name, no published
figure and no identity of a run is read.
"""
