"""Scaling laws of loss over parameters and tokens, fitted to small runs.

Never imports torch.
"""
