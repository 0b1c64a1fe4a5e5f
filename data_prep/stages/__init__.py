"""Stages from raw text to clean text: independent tasks, each resumable and verifiable."""
