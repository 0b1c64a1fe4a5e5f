"""The ledger of recipes, and the runs, proofs and dry runs that it keeps."""
