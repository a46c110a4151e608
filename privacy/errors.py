"""The one error for parameters that break a bound of the protocol."""


class ParameterError(ValueError):
    """A plan, task or catalogue breaks a bound; `bound` names it for people and for scripts."""

    def __init__(self, bound: str, expected: str, got: object, hint: str | None = None) -> None:
        """hint   what a person can do about it, where that is not plain from the bound."""
        super().__init__(f"{bound}: expected {expected}, got {got}")
        self.hint = hint
        self.bound = bound
        self.expected = expected
        self.got = str(got)
