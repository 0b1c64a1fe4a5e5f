"""The ledger of recipes, with their stored runs, proofs and dry runs."""
