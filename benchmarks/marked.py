"""Pages of which a part is generated: it stands between two marks amid the rest."""


def split_marked(text: str, part: str, writer: str) -> tuple[str, str, str]:
    """Cut a page into what is up to the first mark, what is between, and the rest.

    ``writer`` is the command that the mark names.
    """
    begin = f"<!-- {part}: written by `{writer}` -->\n"
    end = f"<!-- end of {part} -->\n"
    head, begun, rest = text.partition(begin)
    inside, ended, tail = rest.partition(end)
    assert begun, f"no mark for {part}"
    assert ended, f"no end of {part}"
    return head + begin, inside, end + tail
