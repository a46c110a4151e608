"""`python -m pointillist` is the `pointillist` command."""

from .cli import main

if __name__ == "__main__":
    main()
