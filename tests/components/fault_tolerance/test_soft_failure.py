"""What a soft failure tells is read again from the text that reaches an error file."""

from components.fault_tolerance import soft_failure as failures


def hang_message(ranks: dict[str, list[int]]) -> str:
    """Return the message that torch's ``record`` writes for a loss that is not finite."""
    cause = "loss not finite"
    error = failures.NotFiniteError(step=1_200, tokens=9_830_400, cause=cause, ranks=ranks)
    return f"{type(error).__name__}: {error}"


def suspected(message: str) -> tuple[int, ...]:
    found = failures.soft_failure(message)
    assert found is not None
    assert found.step == 1_200
    return found.ranks


def test_step_and_ranks_are_parsed_from_the_message() -> None:
    text = hang_message({"x4204c5s2b0n0": [0, 1], "jwb-0002.local": [24]})
    assert text == (
        "NotFiniteError: step 1200, after 9,830,400 tokens: loss not finite; the forward pass "
        "was not finite on x4204c5s2b0n0 (rank 0, 1), jwb-0002.local (rank 24)"
    )
    said = text.removeprefix("NotFiniteError: ")
    expected = failures.SoftFailure(text=said, step=1_200, ranks=(0, 1, 24))
    assert failures.soft_failure(text) == expected


def test_a_bad_backward_pass_names_no_node() -> None:
    assert "in a backward pass, so no node is known" in hang_message({})
    assert suspected(hang_message({})) == ()


def test_more_nodes_than_any_group_has_are_not_suspected() -> None:
    ranks = {f"n{number}": [number] for number in range(failures.MOST_NODES + 1)}
    assert hang_message(ranks).endswith("not finite on 65 nodes, so no node is suspected")
    assert suspected(hang_message(ranks)) == ()
    ranks.popitem()
    assert suspected(hang_message(ranks)) == tuple(range(failures.MOST_NODES))


def test_another_error_is_no_soft_failure() -> None:
    assert failures.soft_failure(f"RuntimeError: {hang_message({'n1': [0]})}") is None
