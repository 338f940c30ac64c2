"""What a user can do wrong; each is one readable line and exit status 2."""


class UsageError(Exception):
    """A plan that cannot be made or run."""
