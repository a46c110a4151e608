"""The one error for parameters that break a bound of the protocol."""


class ParameterError(ValueError):
    """A plan, task or catalogue breaks a bound; `bound` names it for people and for scripts."""

    def __init__(self, bound: str, expected: str, got: object) -> None:
        super().__init__(f"{bound}: expected {expected}, got {got}")
        self.bound = bound
        self.expected = expected
        self.got = str(got)
