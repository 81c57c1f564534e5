"""`python -m shardctl`."""

from shardctl.cli import main

if __name__ == "__main__":
    main()
