"""Private names of torch: only this package imports torch names that start with an underscore.

A torch release may remove any of them without notice. So each has a comment: its purpose, why
no public name replaces it, and the tested releases. `tests/components/torch_internals` checks
the behavior that we rely on, in every release of `docs/versions.md`. Other modules import
undocumented names without an underscore (schedules, checkpoint planners) directly.
"""
