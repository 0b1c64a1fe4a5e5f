"""Run folders: read and write their files without torch, so that login nodes can use them.

Another user may have written a run folder, so its contents are checked.
"""
