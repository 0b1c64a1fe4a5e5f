"""The folder of a run, as anybody may have written it: files, lines, links, and whose it is.

What comes in: reading and checking what a run leaves behind. It knows the recipe's schema
(`spec`), `json_file` and `errors`, and never torch: login nodes read run folders, too.
"""
