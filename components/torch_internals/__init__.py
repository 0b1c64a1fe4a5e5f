"""Private names of torch: whatever of it begins with an underscore is imported here alone.

A release may take any of these away without a word, so each says what it is, why nothing public
does it, and in which releases it was seen; `tests/components/torch_internals` proves of each
what we rely on, under every release of `docs/versions.md`.

    autograd.py      what a backward pass is asked for; activation checkpointing
    compiler.py      how many graphs torch's compiler made, and what happens at its limit
    operators.py     operators by their registered names; arithmetic on many tensors at once
    distributed.py   shards with strides, meshes made of meshes, the flight recorder
    dispatch.py      seeing operators; tensors and process groups that stand for others
    pipelining.py    the stage of a pipeline, which receives as torch's does not

Names without an underscore that torch does not document are used where they are needed: the
schedules and stages of `torch.distributed.pipelining`, and the planners and readers of
`torch.distributed.checkpoint`.
"""
