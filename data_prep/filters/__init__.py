"""Why a document is removed: one file for each published set of rules."""
