"""Private names of torch: whatever of it begins with an underscore is imported here alone.

A release may take any of these away without a word, so each says what it is, why nothing public
does it, and in which releases it was seen; `tests/components/torch_internals` proves of each
what we rely on, under every release of `docs/versions.md`. Names without an underscore that
torch does not document (schedules, checkpoint planners) are used where they are needed.
"""
